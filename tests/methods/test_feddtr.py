"""FedDTR against numbers worked out by hand, and who gets which gradient."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedloom
from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.local import Batch
from fedloom.core.payload import Payload
from fedloom.data.catalogue import load
from fedloom.engine.config import build as configure
from fedloom.engine.engine import Engine
from fedloom.engine.schedule import Schedule
from fedloom.executors.inplace import Inplace
from fedloom.methods.feddtr import FedDTR
from fedloom.models import Task, build
from fedloom.parts.texts import Texts, fixed_rows, prior, similarities


def test_prior_by_hand() -> None:
    anchors = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])
    assert prior(anchors, torch.tensor([2, 1, 1])).tolist() == [1.25, 1.25]
    assert prior(anchors, torch.tensor([3, 1, 0])).tolist() == [0.75, 0.5]
    assert prior(anchors, torch.tensor([0, 0, 7])).tolist() == [3.0, 3.0]  # one class: its anchor


@pytest.mark.parametrize(("scale", "expected"), [(1.0, 0.313262), (100.0, 0.0)])
def test_image_loss_by_hand(scale: float, expected: float) -> None:
    """A feature on its anchor, at a right angle to the other one, has the loss ln(1 + exp(-s)).

    Lengths do not matter.
    """
    logits = scale * similarities(torch.tensor([[5.0, 0.0]]), 3 * torch.eye(2))
    assert F.cross_entropy(logits, torch.tensor([0])).item() == pytest.approx(expected, abs=1e-6)
    assert math.log1p(math.exp(-scale)) == pytest.approx(expected, abs=1e-6)


def test_similarities_of_maps_are_those_of_their_pixels() -> None:
    maps, anchors = torch.randn(2, 5, 3, 4), torch.randn(6, 5)
    rows = maps.permute(0, 2, 3, 1).reshape(-1, 5)
    expected = similarities(rows, anchors).reshape(2, 3, 4, 6).permute(0, 3, 1, 2)
    torch.testing.assert_close(similarities(maps, anchors), expected)


@pytest.mark.parametrize(("depth", "count"), [(1, 262_656), (5, 1_313_280), (10, 2_626_560)])
def test_size_of_the_text_side(depth: int, count: int) -> None:
    made = Texts("hash", ["a", "b"], 512, depth)
    assert sum(p.numel() for p in made.parameters()) == count
    assert not made.state_dict().keys() & {"rows"}  # what everybody can make is not sent


def test_hashed_rows_depend_on_the_words_only() -> None:
    rows = fixed_rows("hash", ["guitar", "7x3k", "electric_guitar"], 64)
    again = fixed_rows("hash", ["7x3k", "guitar"], 64)
    assert torch.equal(rows[0], again[1]) and torch.equal(rows[1], again[0])
    assert abs(F.cosine_similarity(rows[0], rows[1], dim=0)) < 0.4


def worker(
    method: FedDTR, clients: int = 4, model: str = "linear", **options: object
) -> ClientWorker:
    federation = fedloom.federate(
        load("digits4"), "pathological", clients=clients, seed=0, classes_per_client=5
    )
    task = Task((3, 32, 32), 10)
    torch.manual_seed(0)
    return ClientWorker(
        method,
        federation,
        build(model, task, **options),
        Training(lr=0.05, steps=2, batch=16),
        seed=0,
    )


def gradients(method: FedDTR, part: str) -> set[str]:
    """Which groups of tensors a part of the loss reaches."""
    place = worker(method, model="mlp", hidden=(8,))
    found: set[str] = set()

    class Spy(ClientContext):
        def fit(self, loss, **_):  # type: ignore[override]
            x, y = self.worker.federation.samples(0)
            features = self.model.body(self.worker.prepare(x[:8]))
            value = loss(Batch(features, self.model.head(features), x, y[:8], {}))[part]
            for name, p in self.model.named_parameters():
                g = torch.autograd.grad(value, p, retain_graph=True, allow_unused=True)[0]
                if g is not None and g.abs().max() > 0:
                    found.add(name.split(".")[0])

    place.load()
    down = method.download(method.init(place), 0)
    method.client(down, Payload(), Spy(place, 0, 1))
    return found


@pytest.mark.parametrize(
    ("part", "reached"), [("image", {"body"}), ("text", {"text"}), ("ce", {"body", "head"})]
)
def test_no_gradient_crosses(part: str, reached: set[str]) -> None:
    assert gradients(FedDTR(), part) == reached


def test_one_loss_moves_both_sides() -> None:
    assert gradients(FedDTR(frozen_text=False), "both") == {"body", "text"}


def test_the_global_head_is_the_mean_of_private_ones_which_no_download_changes() -> None:
    method = FedDTR(scale=1.0)
    place = worker(method)
    engine = Engine(place, Inplace(place), Schedule(rounds=1))
    engine.run()
    sizes = torch.tensor([len(c.train) for c in place.federation.clients]).double()
    heads = [engine.store.get(k).tree("model")["head.weight"].double() for k in range(4)]
    expected = sum(s * h for s, h in zip(sizes, heads, strict=True)) / sizes.sum()
    torch.testing.assert_close(
        engine.server.tree("model")["head.weight"].double(), expected, rtol=1e-5, atol=1e-6
    )
    assert not torch.allclose(heads[0], heads[1])
    down = method.download(engine.server, 0)
    method.personal(down, engine.store.get(0), ClientContext(place, 0, 2))
    assert torch.equal(place.tensors["head.weight"].double(), heads[0])


def test_the_frozen_head_and_the_prior_shift_the_prediction() -> None:
    method = FedDTR()
    place = worker(method)
    place.load()
    down, local = method.download(method.init(place), 0), ClientContext(place, 0, 1)
    x, _ = place.federation.samples(0, "test")
    seen = method.personal(down, Payload(), local)(x[:5])
    features = place.outputs(x[:5]).features
    with torch.no_grad():
        shift = prior(place.model.text(), local.counts)
        expected = place.model.head(features + shift) + place.model.head(
            features
        )  # both heads are the first one
    torch.testing.assert_close(seen, expected)


@pytest.mark.parametrize(("text", "texts"), [("hash", 8 * 8 + 8), ("embedding", 10 * 8)])
def test_upload_is_body_text_and_head(text: str, texts: int) -> None:
    method = FedDTR(scale=1.0, text=text)
    place = worker(method, model="mlp", hidden=(8,))
    place.load()
    update = method.client(
        method.download(method.init(place), 0), Payload(), ClientContext(place, 0, 1)
    )
    count = sum(t.numel() for t in update.upload.tree("model").values())
    assert count == (3072 * 8 + 8) + texts + (8 * 10 + 10)


def test_free_vectors_have_no_layers() -> None:
    with pytest.raises(FedloomError, match=r"text_depth and text_layers need text=hash"):
        worker(FedDTR(text_depth=2))


def test_free_vectors_in_training_do_not_move_the_received_anchors() -> None:
    """With steps this large the two losses part after the first one."""
    method = FedDTR()
    place = worker(method)
    place.load()
    local = ClientContext(place, 0, 1)
    method.client(method.download(method.init(place), 0), Payload(), local)
    losses = local.losses()
    assert losses["text"] < losses["image"]


def test_the_official_preset() -> None:
    config = configure({"method": "feddtr", "preset": "official"}, {"scale": 50})
    assert (
        config.hyper["text"] == "embedding"
        and config.training.drop_last
        and config.hyper["scale"] == 50
    )
    with pytest.raises(
        FedloomError, match=r"unknown preset of feddtr 'oficial'; did you mean 'official'?"
    ):
        configure({"method": "feddtr", "preset": "oficial"})


@pytest.mark.parametrize(
    "settings",
    [
        {"text": "none"},
        {"prior": "frozen"},
        {"text": "hash", "text_depth": 3, "frozen_head": "first"},
        {"text": "hash", "text_layers": "transformer", "frozen_text": False, "frozen_head": "none"},
    ],
)
def test_every_ablation_runs(settings: dict[str, object]) -> None:
    run = fedloom.run(
        "feddtr",
        partition="pathological",
        clients=5,
        rounds=2,
        model="mlp",
        hidden=[8],
        steps=2,
        **settings,
    )
    assert run.summary["personal"]["accuracy_mean"]["last"] > 0.1


def test_texts_and_pixels_have_anchors_too(tmp_path: Path) -> None:
    """Bags of words (fastText) and feature maps (a U-Net) are pulled to class texts like images."""
    words = {"sport": "ball goal match", "money": "bank share price"}
    rows = [f"{label},{text} {n}" for label, text in words.items() for n in range(40)]
    (tmp_path / "news.csv").write_text("\n".join(["label,text", *rows]))
    given = {"partition": "iid", "clients": 2, "rounds": 3, "lr": 0.1}
    news = fedloom.run(
        "feddtr",
        data=str(tmp_path / "news.csv"),
        model="fasttext",
        length=4,
        **given | {"epochs": 10},
    )
    assert news.summary["personal"]["accuracy_mean"]["last"] > 0.9, "texts"

    rng = np.random.default_rng(0)
    masks = rng.integers(0, 2, (24, 4, 4)).repeat(4, axis=1).repeat(4, axis=2).astype(np.uint8)
    x = np.clip(60 + 120 * masks[..., None] + rng.normal(0, 10, (24, 16, 16, 3)), 0, 255).astype(
        np.uint8
    )
    np.savez(
        tmp_path / "s.npz",
        x_train=x[:16],
        mask_train=masks[:16],
        x_test=x[16:],
        mask_test=masks[16:],
    )
    seg = fedloom.run(
        "feddtr",
        data=str(tmp_path / "s.npz"),
        model="unet",
        width=8,
        depth=2,
        batch=4,
        epochs=3,
        **given | {"rounds": 8},
    )
    assert (
        seg.summary["personal"]["accuracy_mean"]["last"] > 0.9
        and seg.metrics[-1]["personal"]["dice"] > 0.8
    ), "pixels"


def test_alone_without_text_is_local() -> None:
    """The paper's last ablation has no text and shares nothing.

    With text it is another model, and still nothing travels.
    """
    given = {
        "partition": "pathological",
        "clients": 5,
        "rounds": 2,
        "model": "mlp",
        "hidden": [8],
        "steps": 3,
    }
    plain = fedloom.run("local", **given, lr=0.005, batch=10)
    bare = fedloom.run("feddtr", federated=False, text="none", **given)
    texts = fedloom.run("feddtr", federated=False, **given)
    after = [m["clients"]["after"] for m in plain.metrics]
    assert [m["clients"]["after"] for m in bare.metrics] == after
    assert (
        texts.metrics[-1]["loss"].keys() == {"ce", "image", "text"}
        and "image" not in bare.metrics[-1]["loss"]
    )
    assert texts.metrics[-1]["bytes_total"]["up"] == bare.metrics[-1]["bytes_total"]["up"]
