"""CLIP from the files of OpenAI and open_clip, without either's package."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.device import on_device
from ..core.errors import FedloomError
from .base import Preprocess, fitted, remembered
from .bpe import Tokeniser, merges_file
from .duals import Normalised, Tower
from .nets.clip import Clip
from .weights import read_weights

CONFIG = "open_clip_config.json"
IN_FOLDER = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
ACTIVATIONS = {"quickgelu": True, "gelu": False}
# OpenAI's files hold these numbers too, which no network needs, and open_clip's the mask.
BESIDE = ("input_resolution", "context_length", "vocab_size", "attn_mask")
NEEDED = ("text_projection", "token_embedding.weight", "visual.conv1.weight", "logit_scale")
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


def is_file(name: str) -> bool:
    """Whether what follows `clip:` is a file of weights or open_clip's folder."""
    path = Path(_parted(name)[1])
    return path.is_file() or (path / CONFIG).is_file()


def _parted(name: str) -> tuple[str | None, str]:
    """The activation that stands in front of a path, if one does, and the path."""
    first, _, rest = name.partition(":")
    if first in ACTIVATIONS and rest:
        return first, rest
    return None, name


class Facts(NamedTuple):
    """What the tensors of a CLIP say about it."""

    joint: int  # the width of the common space
    width: int  # of the vectors that stand for words
    size: int  # the side of images
    scale: float
    openai: bool  # whether the file is one of OpenAI's own


@remembered
def _facts(file: Path) -> Facts:
    tensors = _tensors(file)
    return Facts(
        joint=tensors["text_projection"].shape[1],
        width=tensors["token_embedding.weight"].shape[1],
        size=_weightless(tensors, True, file).visual.size,
        scale=float(tensors["logit_scale"].float().exp()),
        openai="input_resolution" in tensors,  # others do not have it
    )


def _tensors(file: Path) -> dict[str, Tensor]:
    tensors = read_weights(file)
    for name in NEEDED:
        if name not in tensors:
            raise FedloomError(f"{file} holds no CLIP of OpenAI or open_clip: it has no {name}.")
    return tensors


class FileClip:
    """A CLIP in a file: its sizes are those of its tensors."""

    settings = "joint space"

    def __init__(self, name: str) -> None:
        self.activation, path = _parted(name)
        self.path = Path(path)
        self.config: dict[str, Any] = {}
        described = self.path if self.path.is_dir() else self.path.parent
        if (described / CONFIG).is_file():
            self.config = _read_config(described / CONFIG)
        if self.path.is_dir():
            self.path = _weights_in(self.path)
        self.folder = self.path.parent
        facts = _facts(self.path)
        self.quick = self._is_quick(facts)
        if self.quick:
            self.settings += ", QuickGELU"
        self.files: tuple[Path, ...] = (self.path,)
        self.dim = facts.joint
        self.context: int | None = facts.width
        self._scale = facts.scale
        self.preprocess = self._preprocess(facts.size)

    @property
    def text_files(self) -> tuple[Path, ...]:
        """What texts are read with: the weights, and the list of merges if it is there."""
        try:
            return (*self.files, merges_file(self.folder))
        except FedloomError:  # said again when a text is to be read; images need no list
            return self.files

    def _is_quick(self, facts: Facts) -> bool:
        """Whether the network was trained with OpenAI's approximation of GELU."""
        if self.activation is not None:
            return ACTIVATIONS[self.activation]
        if facts.openai:
            return True
        if self.config:
            return bool(self.config["model_cfg"].get("quick_gelu", False))
        raise FedloomError(
            f"{self.path} does not say which activation its CLIP has: put its {CONFIG} beside it, "
            f"or say clip:quickgelu:{self.path} (all of OpenAI's) or clip:gelu:{self.path}."
        )

    def _preprocess(self, size: int) -> Preprocess:
        told = self.config.get("preprocess_cfg", {})
        mean, std = tuple(told.get("mean", MEAN)), tuple(told.get("std", STD))
        if len(mean) != 3 or len(std) != 3:
            raise FedloomError(f"{self.folder / CONFIG} names no mean of three channels.")
        return Preprocess(size, mean, std, "bicubic", size)

    @cached_property
    def model(self) -> Clip:
        """The whole network, frozen."""
        tensors = _tensors(self.path)
        for name in BESIDE:
            tensors.pop(name, None)
        network = _weightless(tensors, self.quick, self.path)
        fitted(network, tensors, str(self.path)).eval().requires_grad_(False)
        return network

    @cached_property
    def tokeniser(self) -> Tokeniser:
        """What turns texts into the network's tokens."""
        words = self.model.token_embedding.num_embeddings
        return Tokeniser(merges_file(self.folder), words)

    def image_tower(self) -> nn.Module:
        """From pixels to unit vectors in the common space."""
        return Normalised(self.model.visual)

    def scale(self) -> float:
        """The logit scale."""
        return self._scale

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors of texts in the common space."""
        vectors: Tensor = self.model(self.tokeniser(texts, len(self.model.positional_embedding)))
        return vectors

    def tower(self, texts: Sequence[str]) -> nn.Module:
        """The text side as a network that can be trained, for these texts."""
        side: Any = copy.deepcopy(self.model)
        side.visual = nn.Identity()
        del side.logit_scale
        return Tower(side, ids=self.tokeniser(texts, len(self.model.positional_embedding)))

    def prompted(self, classes: Sequence[str], context: Tensor) -> Tensor:
        """Vectors of class names behind trained context vectors, as in CoOp."""
        longest = len(self.model.positional_embedding)
        names = [f"{name.replace('_', ' ')}." for name in classes]
        ids = self.tokeniser(names, longest).to(context.device)
        if ids.shape[1] + len(context) > longest:
            raise FedloomError(
                f"{len(context)} context vectors and the class names are too long for {self.path}."
            )
        vectors: Tensor = on_device(self.model, context.device)(ids, context)
        return vectors


def _weightless(tensors: Mapping[str, Tensor], quick: bool, path: Path) -> Clip:
    """The network that tensors are of, without numbers: a file may lie about sizes."""
    try:
        with torch.device("meta"):
            return Clip(tensors, quick)
    except (KeyError, ValueError, RuntimeError) as error:
        raise FedloomError(
            f"the tensors in {path} are those of no CLIP that is known ({error})."
        ) from None


def _weights_in(folder: Path) -> Path:
    """The file of weights in a folder of open_clip's."""
    for name in IN_FOLDER:
        if (folder / name).is_file():
            return folder / name
    raise FedloomError(f"{folder} holds no weights ({' or '.join(IN_FOLDER)}).")


def _read_config(file: Path) -> dict[str, Any]:
    """What open_clip says about a model."""
    try:
        config = json.loads(file.read_bytes())
        if isinstance(config["model_cfg"], dict):
            return dict(config)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise FedloomError(f"{file} cannot be read.")
