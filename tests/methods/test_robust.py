"""Robust means round methods, attacks, and what the one is worth against the other."""

from __future__ import annotations

import pytest
import torch

from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.methods.plugins.attack import little
from fedloom.testing.small_world import federation, trace, usual

W = "body.value"


def after(parabolas, spec: str, a: list[float], n: list[int], **params: object) -> float:
    server, _ = parabolas(a, n).run(make(spec, params), 1.0, lr=0.1, steps=1)
    return server.tree("model")[W].item()


@pytest.mark.parametrize(
    ("spec", "params", "expected"),
    [
        # From 1, clients go to 0.9 + 0.1 a: 0.9, 1.0, 1.1, 1.3, 9.9; they count 1, 2, 3, 4, 1.
        ("fedavg", {}, (0.9 + 2.0 + 3.3 + 5.2 + 9.9) / 11),
        ("fedavg+median", {}, 1.1),
        ("fedavg+trimmed", {"trim": 0.2}, (2.0 + 3.3 + 5.2) / 9),
        ("fedavg+trimmed", {"trim": 0.4}, 1.1),
        ("fedavg+krum", {"liars": 0.2}, 1.0),
        ("fedavg+multikrum", {"liars": 0.2}, (0.9 + 2.0 + 3.3 + 5.2) / 10),
        ("fedavg+multikrum", {"liars": 0.2, "selected": 3}, (0.9 + 2.0 + 3.3) / 6),
        ("fedavg+normclip", {"norm_bound": 0.1}, 1 + (-0.1 + 0.3 + 0.4 + 0.1) / 11),
    ],
)
def test_by_hand(parabolas, spec: str, params: dict[str, float], expected: float) -> None:
    """Krum's scores over the two nearest: 0.05, 0.02, 0.05, 0.13, and far more."""
    got = after(parabolas, spec, [0, 1, 2, 4, 90], [1, 2, 3, 4, 1], **params)
    assert got == pytest.approx(expected, abs=1e-5)


def test_the_geometric_median_hardly_feels_a_liar(parabolas) -> None:
    got = after(parabolas, "fedavg+geomed", [0, 1, 2, 4, 90], [1, 2, 3, 4, 1], weiszfeld=100)
    assert got == pytest.approx(1.1, abs=2e-3), "on a line it is the weighted median"


@pytest.mark.parametrize(
    ("spec", "params", "tolerance"),
    [
        ("fedavg+trimmed", {"trim": 0.0}, 1e-6),
        ("fedavg+multikrum", {"liars": 0.0}, 0.0),
        ("fedavg+normclip", {"norm_bound": 1e9}, 0.0),
        ("fedavg+attack", {"attackers": 0.0}, 0.0),
    ],
)
def test_neutral_values(spec: str, params: dict[str, float], tolerance: float) -> None:
    ours = trace(make(spec, params)).server.tree("model")
    plain = usual(make("fedavg")).server.tree("model")
    apart = max(float((ours[n] - plain[n]).abs().max()) for n in plain)
    assert apart <= tolerance


def test_everything_that_scaffold_uploads_is_protected(place) -> None:
    method = make("scaffold+median")
    worker = place(method)
    server = method.init(worker).replace(round=1, seed=0)
    server = method.join(server, {k: Payload(size=4) for k in range(4)})
    w = server.tree("model")
    uploads = []
    for k in range(4):
        size = 1e6 if k == 3 else float(k)
        uploads.append((k, Payload(delta=w.zeros_like() + size, c=server.tree("c") + size)))
    new = method.aggregate(server, iter(uploads))
    assert float((new.tree("model")["head.bias"] - w["head.bias"])[0]) == pytest.approx(1.5)
    assert float(new.tree("c")["head.bias"][0]) == pytest.approx(1.5)


def test_refusals() -> None:
    with pytest.raises(FedloomError, match="name trimmed before it"):
        make("fedavg+daa+trimmed")
    with pytest.raises(FedloomError, match="sets the weights of clients already"):
        make("fedavg+daa+krum")
    with pytest.raises(FedloomError, match="does not average"):
        make("fedheal+median")
    assert make("fedavg+trimmed+daa").name == "fedavg+trimmed+daa"


# -- attacks ---------------------------------------------------------------------------------
def test_flipped_and_scaled_updates(parabolas) -> None:
    """One of two clients is drawn; from 1 both go to 1.3, so the update is 0.3."""
    for attack, factor in (("sign", -4), ("scaled", 4)):
        got = after(parabolas, "fedavg+attack", [4, 4], [1, 1], attack=attack, attackers=0.5)
        assert got == pytest.approx(1 + 0.3 * (1 + factor) / 2, abs=1e-6)


def test_attackers_stay_the_same_and_depend_on_the_seed() -> None:
    method = make("fedavg+attack", {"attackers": 0.25})
    sets = {frozenset(method.drawn(seed, 20)) for seed in range(5)}
    assert all(len(liars) == 5 for liars in sets) and len(sets) == 5
    assert method.drawn(3, 20) == method.drawn(3, 20)


def test_flipped_labels(parabolas) -> None:
    """With five classes, 4 becomes 0: the attacker goes to 0.9 and the other one to 1.3."""
    got = after(parabolas, "fedavg+attack", [4, 4], [1, 1], attack="labels", attackers=0.5)
    assert got == pytest.approx(1.1, abs=1e-6)


def test_a_little_is_enough() -> None:
    """50 clients of which 24 lie: two must be further out, so z is the quantile of 24 / 26."""
    generator = torch.Generator().manual_seed(0)
    honest = [Tree({"w": torch.randn(3, generator=generator)}) for _ in range(26)]
    lie = little(honest, 24)
    values = torch.stack([tree["w"] for tree in honest])
    assert torch.allclose(
        (values.mean(0) - lie["w"]) / values.std(0), torch.tensor(1.4261), atol=1e-3
    )


def test_robust_means_stand_what_fedavg_does_not() -> None:
    """One of six clients sends its update times -10."""
    world = federation(sizes=[30] * 6)

    def learned(spec: str, **params: object) -> float:
        seen = trace(make(spec, params), world, rounds=5)
        return seen.metrics[-1]["personal"]["accuracy_mean"]

    attack = {"attackers": 0.17, "attack_scale": 10.0}
    plain = learned("fedavg")
    assert learned("fedavg+attack", **attack) < plain - 0.2
    for name in ("median", "trimmed", "krum", "multikrum", "geomed"):
        assert learned(f"fedavg+{name}+attack", **attack) > plain - 0.15, name
