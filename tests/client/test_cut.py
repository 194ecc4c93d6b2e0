"""Networks whose frozen layers come first but do not follow each other: they are cut by trying."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedloom
from fedloom.client.cut import Before, Behind
from fedloom.client.cutting import find
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.device import CPU
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.core.roles import frozen_in
from fedloom.executors.base import Task, execute
from fedloom.executors.pool import Pool
from fedloom.models import Split, build
from fedloom.models import Task as Wanted
from fedloom.testing.small_world import place, same, trace
from tests.client.test_frozen import images

torch.set_num_threads(1)


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        inner = F.dropout(self.norm(self.conv(x)), self.dropout, self.training)
        return F.relu(x + inner)


class Net(nn.Module):
    """Blocks behind a stem, with functions and a parameter of its own between them."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 5, stride=3)
        self.shift = nn.Parameter(torch.randn(6, 1, 1))
        self.early = nn.ModuleList([Block(6), Block(6)])
        self.late = Block(6, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x)) + self.shift
        for block in self.early:
            x = block(x)
        return self.late(x).mean((2, 3))


def model(body: nn.Module, trained: str = "late") -> Split:
    """The network under a head, frozen but for what `trained` begins."""
    for name, parameter in body.named_parameters():
        parameter.requires_grad_(name.startswith(trained))
    return Split(body, nn.Linear(6, 10), 6)


def cut_of(split: Split, x: Tensor | None = None) -> str | None:
    if x is None:
        x = torch.randn(2, 1, 22, 29)
    cut = find(split, set(frozen_in(split)), x, CPU)
    return cut.at if cut else None


def net(**options: Any) -> Net:
    torch.manual_seed(0)
    return Net(**options)


@pytest.mark.parametrize(
    ("trained", "at"),
    [
        ("late", "late"),
        ("late.norm", "late"),  # its block needs what is before the convolution as well
        ("early.1", "early.1"),
        ("early.0.norm", "early.0"),
        ("shift", None),  # what enters the first block changes with it
        ("stem", None),
    ],
)
def test_where_a_network_is_cut(trained: str, at: str | None) -> None:
    split, x = model(net(), trained), torch.randn(2, 1, 22, 29)
    before = {name: t.clone() for name, t in split.state_dict().items()}
    state = torch.get_rng_state()
    assert cut_of(split, x) == at
    assert all(torch.equal(t, before[name]) for name, t in split.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not [m for m in split.modules() if "forward" in vars(m)]


class Beside(Net):
    """Something that is trained sees an early activation too, and gives zeros as yet."""

    def __init__(self) -> None:
        super().__init__()
        self.late_gate = nn.Parameter(torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        first = self.early[0](F.relu(self.stem(x)))
        return self.late(self.early[1](first)).mean((2, 3)) + self.late_gate * first.mean((2, 3))


class Asked(Net):
    """Which way is taken depends on what a frozen layer gave."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.early[0](F.relu(self.stem(x)))
        features = self.late(x).mean((2, 3))
        return features if x.mean() > -100 else -features


class Noisy(Net):
    """Draws numbers in front of its frozen blocks."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.stem(x), 0.5, self.training)
        return self.late(self.early[1](self.early[0](x))).mean((2, 3))


class Again(Net):
    """A frozen block is used once more behind the one that is trained."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.early[0](self.stem(x))
        return self.early[0](self.late(x)).mean((2, 3))


class Modes(Net):
    """Frozen layers are used in another way in training."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.early[0](self.stem(x))
        return self.late(2 * x if self.training else x).mean((2, 3))


class Counting(Net):
    """Notes something about samples on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.early[0](self.stem(x))
        self.seen.add_(x.mean())  # type: ignore[operator]
        return self.late(x).mean((2, 3))


@pytest.mark.parametrize("kind", [Beside, Asked, Noisy, Modes, Counting])
def test_what_is_not_cut(kind: type[Net]) -> None:
    torch.manual_seed(0)
    assert cut_of(model(kind())) is None


def test_a_frozen_block_that_is_used_twice_computes() -> None:
    torch.manual_seed(0)
    split = model(Again())
    cut = find(split, set(frozen_in(split)), torch.randn(2, 1, 22, 29), CPU)
    assert cut is not None and (cut.at, cut.skipped) == ("late", ("stem",))


def test_too_little_is_not_kept() -> None:
    body = nn.ModuleDict({"first": nn.Conv2d(1, 6, 1), "late": Block(6)})

    class Thin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = body

        def forward(self, x: Tensor) -> Tensor:
            return self.parts["late"](self.parts["first"](x)).mean((2, 3))

    assert cut_of(model(Thin(), "parts.late")) is None, "a fiftieth of all operations"


def counted(split: Split) -> list[int]:
    """How many samples pass the frozen block, and blocks of copies of the network."""
    seen: list[int] = []

    class Counted(Block):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return super().forward(x)

    split.body.early[1].__class__ = Counted  # type: ignore[operator, union-attr]
    return seen


def test_a_frozen_part_sees_each_sample_once() -> None:
    passes = {}
    for once in (True, False):
        split = model(net())
        seen = counted(split)
        fedloom.run("fedavg", images(), model=split, rounds=3, batch=4, frozen_once=once)
        passes[once] = sum(seen)
    tried = 50  # to find the cut, and for the shape of what is skipped
    assert 36 <= passes[True] <= 36 + tried < passes[False]


@pytest.mark.parametrize("name", ["fedavg", "ditto", "moon", "fedbn", "fedproto"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_numbers_are_those_of_computing_each_time(name: str, dropout: float) -> None:
    """Up to rounding, with what is drawn behind the cut; training and evaluation."""
    results = []
    for once in (True, False):
        training = Training(batch=4, frozen_once=once, epochs=2)
        method = make(name)
        worker = ClientWorker(method, images(), model(net(dropout=dropout)), training, seed=7)
        server = method.join(method.init(worker), {k: Payload(size=8) for k in range(3)})
        down = method.download(server, 1)
        results.append(execute(worker, Task("client", 1, (1,), down, splits=("test",))))
        assert (worker.remembered.cut is not None) == once
    mine, theirs = results
    compared = 0
    for payload, other in ((mine.upload, theirs.upload), (mine.state, theirs.state)):
        assert set(payload) == set(other)
        for key, value in payload.items():
            if isinstance(value, Tensor):
                torch.testing.assert_close(value, other[key], atol=1e-6, rtol=1e-5)
                compared += 1
    assert compared


def test_worker_processes_use_what_was_found() -> None:
    split = model(net())
    split.head = nn.Linear(6, 4)
    worker = place(make("ditto"), model=split)
    known = worker.remembered.known()
    assert known.cut is not None and known.outputs is not None
    plain = trace(make("ditto"), model=split)
    same(plain, trace(make("ditto"), model=split, wrap=lambda w: Pool(w, 2)), "ditto in a pool")


def test_a_sample_that_depends_on_its_batch_is_computed() -> None:
    """Behind a BatchNorm without statistics of its own."""
    for body in (net(), nn.Sequential(nn.Conv2d(1, 6, 5, stride=3), nn.BatchNorm2d(6))):
        split = model(body, "none")
        norms = [m for m in body.modules() if isinstance(m, nn.BatchNorm2d)]
        norms[0].running_mean = norms[0].running_var = None
        norms[0].track_running_stats = False
        if isinstance(body, Net):
            body.late.requires_grad_(True)
        worker = ClientWorker(make("fedavg"), images(), split, Training(batch=4), seed=0)
        assert worker.remembered.outputs is None and not worker.remembered.any


def test_a_frozen_vit_with_a_trainable_end(tiny_vit: Callable[..., Path]) -> None:
    split: Any = build("pretrained", Wanted((3, 32, 32), 4), weights=f"hf:{tiny_vit()}")
    for name, parameter in split.body.named_parameters():
        parameter.requires_grad_("layers.1." in name)
    assert cut_of(split, torch.randn(2, 3, 32, 32)) == "network.model.layers.1"


class Texts(nn.Module):
    """A frozen encoder of texts, whose batches are as long as the longest text, and a pooler."""

    def __init__(self) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        config = transformers.DistilBertConfig(
            vocab_size=30, dim=16, n_layers=2, n_heads=2, hidden_dim=24, num_labels=6
        )
        self.network = transformers.DistilBertForSequenceClassification(config)
        self.network.classifier = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, : int((x > 0).sum(1).max())]
        logits: Tensor = self.network(input_ids=x, attention_mask=(x > 0).long()).logits
        return logits


def test_a_frozen_encoder_of_texts_under_a_trainable_layer() -> None:
    """Only the layer's own input has one length for all texts."""
    torch.manual_seed(0)
    split = model(Texts(), "network.pre_classifier")
    x = torch.randint(1, 30, (4, 8))
    x[1:, 6:] = 0
    x[2:, 3:] = 0
    cut = find(split, set(frozen_in(split)), x[:2], CPU)
    assert cut is not None and cut.at == "network.pre_classifier"
    split.train()
    split.body.network.distilbert.eval()  # type: ignore[operator, union-attr]
    for some in (x, x[1:], x[2:]):
        kept = Before(split.body, cut)(some)
        torch.manual_seed(1)
        expected = split.body(some)
        torch.manual_seed(1)
        torch.testing.assert_close(Behind(split.body, cut, kept)(some), expected)
