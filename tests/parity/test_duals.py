"""Methods on frozen vision-language models beside their authors' code."""

from __future__ import annotations

import pytest
import torch.nn.functional as F

from fedloom.core.tree import Tree
from fedloom.parts.propagation import similarity, spread
from tests.parity.duals import start_on_features
from tests.parity.golden import golden
from tests.parity.inputs import CLASSES, INPUTS, tensor
from tests.parity.ours import EVERYBODY, clients, flat, predictions


@pytest.mark.parametrize("method", ["zeroshot", "tip-adapter"])
def test_nothing_is_trained(method: str) -> None:
    theirs = golden(method)
    theirs.agrees(predictions(start_on_features(theirs)))


def test_tip_adapter_f() -> None:
    theirs = golden("tip-adapter-f")
    ours = start_on_features(theirs).play()
    keys = {f"keys {k}": ours.states[k].tensor("keys") for k in EVERYBODY}
    theirs.agrees(keys | predictions(ours))


def test_ecalp() -> None:
    """Links of the graph; a negative similarity is none of ours."""
    theirs = golden("ecalp")
    ours = start_on_features(theirs)
    text = F.normalize(tensor(theirs.seed + 2, CLASSES, INPUTS), dim=1)
    for k in EVERYBODY:
        given = [ours.worker.federation.samples(k, part)[0] for part in ("train", "test")]
        shots, tests = (F.normalize(x, dim=1) for x in given)
        most = len(shots)
        to_shots = similarity(tests, shots, most, 1.0, 1 / spread(shots))
        between = similarity(tests, tests, most, 1.0, spread(text))
        for name, links in ((f"to shots {k}", to_shots), (f"between {k}", between)):
            off = (links.double() - theirs[name].clamp(min=0)).abs().max()
            assert off < 1e-6, name


def test_fedclip() -> None:
    theirs = golden("fedclip")
    ours = start_on_features(theirs, stretch=3.0)
    head, first = ours.server.tree("head"), {}
    names = sorted(head)
    sizes = [head[name].numel() for name in names]
    values = tensor(theirs.seed + 4, sum(sizes), low=-0.5, high=0.5).split(sizes)
    for name, value in zip(names, values, strict=True):
        first[name] = value.reshape(head[name].shape)
    ours.server = ours.server.replace(head=Tree(first))
    ours.play(2)
    theirs.agrees(clients(ours.uploads, "head") | {"server": flat(ours.server.tree("head"))})
