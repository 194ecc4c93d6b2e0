"""PromptFL, FedPGP and FedTPG beside their authors' code, on a tiny CLIP with stated tensors."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedloom.core.tree import Tree
from fedloom.encoders.bpe import PACKED
from fedloom.models import Split
from fedloom.parts.heads import WrittenPromptHead
from fedloom.testing.weights import MERGES, WIDTH, clip_tensors
from tests.parity.golden import Golden, golden
from tests.parity.inputs import CLASSES, INPUTS, tensor, world
from tests.parity.ours import EVERYBODY, Ours, clients, predictions, start

TOKENS, RANK = 4, 2


def test_promptfl(tmp_path: Path) -> None:
    theirs = golden("promptfl")
    ours = start_on_clip(theirs, tmp_path, {"context": (TOKENS, WIDTH)}).play(1)
    theirs.agrees(clients(ours.uploads, "head") | predictions(ours, "after"))


def test_fedpgp(tmp_path: Path) -> None:
    theirs = golden("fedpgp")
    shapes = {"context": (TOKENS, WIDTH), "u": (TOKENS, RANK), "v": (RANK, WIDTH)}
    ours = start_on_clip(theirs, tmp_path, shapes).play(2)
    sent = clients(ours.uploads, "head", "context") | clients(ours.states, "head", "factors")
    server = {"server": ours.server.tree("head")["context"].flatten()}
    theirs.agrees(sent | server | predictions(ours, "after"))


def test_fedtpg(tmp_path: Path) -> None:
    theirs = golden("fedtpg")
    head = WrittenPromptHead(*torch.zeros(2, TOKENS, WIDTH), "", None, 1.0, heads=4)
    shapes = {name: tensor.shape for name, tensor in sorted(head.named_parameters())}
    for name in ("norm_names.weight", "norm_names.bias"):
        shapes[name] = torch.Size((INPUTS,))
    for name in ("key.weight", "value.weight"):
        shapes[name] = torch.Size((WIDTH, INPUTS))
    ours = start_on_clip(theirs, tmp_path, shapes).play(2)
    compared = {"server": ours.server.tree("head")["context"].flatten()}
    for part in ("context", "query.bias", "value.bias", "norm_names.weight", "narrow.bias"):
        for k in EVERYBODY:
            compared[f"{part} {k}"] = ours.uploads[k].tree("head")[part].flatten()
    theirs.agrees(compared | predictions(ours))


def start_on_clip(theirs: Golden, folder: Path, shapes: Mapping[str, Sequence[int]]) -> Ours:
    """Our method on the tiny CLIP; the head's tensors are of the seeds from `seed` + 2 on."""
    given = world(theirs.seed)
    name = f"clip:quickgelu:{_saved(theirs.seed, folder)}"
    federation = replace(given, data=replace(given.data, encoder=name))
    model = Split(nn.Identity(), nn.Linear(INPUTS, CLASSES), INPUTS)
    ours = start(theirs, model, federation)
    head = {}
    for i, (part, shape) in enumerate(shapes.items()):
        head[part] = tensor(theirs.seed + 2 + i, *shape, low=-0.5, high=0.5)
    ours.server = ours.server.replace(head=Tree(head))
    return ours


def _saved(seed: int, folder: Path) -> Path:
    """A CLIP whose text side is the stated one."""
    drawn = clip_tensors("vit-b-32")
    drawn["visual.proj"] = torch.zeros(len(drawn["visual.proj"]), INPUTS)
    drawn["logit_scale"] = torch.tensor(2.0)
    shapes = {name: drawn[name].shape for name in _text_side(drawn)}
    shapes["text_projection"] = torch.Size((WIDTH, INPUTS))
    for part, shape in (("c_fc.weight", (4 * WIDTH, WIDTH)), ("c_fc.bias", (4 * WIDTH,))):
        shapes[f"transformer.resblocks.0.mlp.{part}"] = torch.Size(shape)
    shapes["transformer.resblocks.0.mlp.c_proj.weight"] = torch.Size((WIDTH, 4 * WIDTH))
    for i, (name, shape) in enumerate(shapes.items()):
        drawn[name] = tensor(seed + 100 + i, *shape, low=-0.5, high=0.5)
    save_file(drawn, folder / "clip.safetensors")
    (folder / PACKED).write_bytes(gzip.compress("\n".join(["#version", *MERGES]).encode()))
    return folder / "clip.safetensors"


def _text_side(drawn: dict[str, Tensor]) -> list[str]:
    others = {"logit_scale"} | {name for name in drawn if name.startswith("visual.")}
    return sorted(set(drawn) - others)
