"""Client-level privacy: lengths and noise by hand, the adaptive length, epsilon, refusals."""

from __future__ import annotations

import math

import pytest

import fedloom
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.testing.small_world import trace, usual

W = "body.value"


def after(parabolas, **params: object) -> Payload:
    """From 1, clients of 0 and 4 go to 0.9 and 1.3; they have 1 and 3 samples."""
    return parabolas([0, 4], [1, 3]).run(make("fedavg+dp", params), 1.0, lr=0.1, steps=1)[0]


def test_updates_are_cut(parabolas) -> None:
    """0.3 becomes 0.2; without noise clients count by size."""
    server = after(parabolas, dp_noise=0.0, dp_clip=0.2)
    assert server.tree("model")[W].item() == pytest.approx(1 + (-0.1 + 3 * 0.2) / 4, abs=1e-6)


def test_the_noise_of_the_sum(parabolas) -> None:
    """With noise all count alike, and the mean has z S / n of it."""
    method = make("fedavg+dp", {"dp_noise": 2.0, "dp_clip": 0.2})
    server = after(parabolas, dp_noise=2.0, dp_clip=0.2)
    drawn = method.noise(
        server.replace(dp_bound=0.2), Payload(model=server.tree("model")).tree("model")
    )
    expected = 1 + (-0.1 + 0.2 + drawn[W].item()) / 2
    assert abs(drawn[W].item()) > 0.01
    assert server.tree("model")[W].item() == pytest.approx(expected, abs=1e-6)


def test_noise_has_the_size_it_should(place) -> None:
    method = make("fedavg+dp", {"dp_noise": 2.0, "dp_clip": 0.5})
    server = method.init(place(method)).replace(seed=1, round=1)
    drawn = method.noise(server, server.tree("model").without(["body.1.num_batches_tracked"]))
    numbers = sum(t.numel() for t in drawn.values())
    assert float(drawn.norm()) / math.sqrt(numbers) == pytest.approx(1.0, rel=0.1)
    other = method.noise(server.replace(round=2), server.tree("model").only(drawn))
    assert not other.equal(drawn)
    adaptive = make("fedavg+dp", {"dp_noise": 2.0, "dp_clip": 0.5, "adaptive_clip": True})
    more = adaptive.noise(server, server.tree("model").only(drawn))
    factor = (2**-2 - 10**-2) ** -0.5 / 2
    assert float(more.norm() / drawn.norm()) == pytest.approx(factor, rel=1e-5)


def test_the_length_moves_towards_the_quantile(parabolas) -> None:
    """Lengths are 0.1 and 0.3: 0.2 leaves one half whole, 0.05 none of them, 1 all."""
    for bound, share in ((0.2, 0.5), (0.05, 0.0), (1.0, 1.0)):
        server = after(parabolas, dp_noise=0.0, dp_clip=bound, adaptive_clip=True)
        expected = bound * math.exp(-0.2 * (share - 0.5))
        assert server.number("dp_bound") == pytest.approx(expected)


def test_neutral_values_are_fedavg_to_the_last_bit() -> None:
    quiet = trace(make("fedavg+dp", {"dp_noise": 0.0, "dp_clip": None}))
    plain = usual(make("fedavg"))
    assert quiet.metrics == plain.metrics
    assert quiet.server.tree("model").equal(plain.server.tree("model"))


def test_counters_and_variances_stay_possible() -> None:
    server = trace(make("fedavg+dp", {"dp_noise": 5.0})).server
    assert server.tensor("model/body.1.num_batches_tracked").item() == 0, "it would tell sizes"
    assert float(server.tensor("model/body.1.running_var").min()) >= 0


def test_counters_stay_where_changes_of_weights_travel() -> None:
    server = trace(make("scaffold+dp")).server.tree("model")
    counters = [server[name] for name in server if name.endswith("num_batches_tracked")]
    assert counters and not any(counters)
    assert all(bool(tensor.isfinite().all()) for tensor in server.values())


def test_epsilon_is_dp_accountings() -> None:
    accounting = pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    made = fedloom.run(
        "fedavg+dp",
        partition="iid",
        clients=4,
        model="linear",
        rounds=3,
        eval_every=3,
        ratio=0.5,
        flatten=True,
        size=8,
        limit_train=6,
        dp_noise=1.3,
        dp_delta=1e-4,
    )
    spent = accounting.rdp.RdpAccountant()
    event = accounting.PoissonSampledDpEvent(0.5, accounting.GaussianDpEvent(1.3))
    spent.compose(event, 3)
    told = made.summary["privacy"]
    assert told["epsilon"] == [spent.get_epsilon(1e-4)] * 4
    assert told["epsilon_max"] == told["epsilon"][0] and told["rates"] == [0.5] * 4
    assert (told["noise_multiplier"], told["delta"], told["each"]) == (1.3, 1e-4, "round")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("term+dp", r"clients of term also upload a mean loss \(loss\)"),
        ("fedavg+daa+dp", "all count alike"),
        ("fedavg+median+dp", "median would see an update with noise"),
        ("fedavg+median+fedadam+dp", "median would see an update with noise"),
        ("fedavg+dp+median", "promises would not hold"),
        ("fedavg+dp+daa", "promises would not hold"),
        ("fedavg+topk+dp", "also upload"),
        ("local+dp", "does not average"),
    ],
)
def test_what_would_break_the_promise_is_refused(spec: str, said: str) -> None:
    with pytest.raises(FedloomError, match=said):
        make(spec)


def test_what_keeps_the_promise_is_not() -> None:
    for spec in ("fedavg+dp+fedadam", "fedavg+fedadam+dp", "fedavg+dp+topk", "scaffold+dp"):
        assert make(spec).promise() is not None
    assert make("fedavg+dp", {"dp_noise": 0.0}).promise() is None


def test_settings_that_promise_nothing_are_refused(place) -> None:
    for params, said in (
        ({"dp_clip": None}, "noise without dp_clip"),
        ({"adaptive_clip": True, "count_noise": 0.5}, "count_noise"),
    ):
        method = make("fedavg+dp", params)
        with pytest.raises(FedloomError, match=said):
            method.init(place(method))
