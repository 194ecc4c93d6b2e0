"""Dual encoders: images and class names as unit vectors in one space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.errors import FedloomError
from .base import Encoder, Registry
from .huggingface import load_model, load_tokenizer, preprocess, read_config, weight_files
from .texts import TextEncoder

DUAL = Registry("dual encoder")


@dataclass(frozen=True)
class Context:
    """How a text encoder takes trained vectors in place of a template's words: `read(classes, context)`, with gradients
    to `context` (any number of rows, `width` numbers each)."""

    width: int
    read: Callable[[Sequence[str], Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Dual:
    """An image and a text encoder with one space; `scale` turns cosines into logits and belongs to the pair."""

    name: str
    image: Encoder
    text: TextEncoder
    scale_of: Callable[[], float]
    context: Context | None = (
        None  # for prompt learning; None: its text side takes no trained vectors
    )

    @property
    def dim(self) -> int:
        """The width of the common space."""
        return self.image.dim

    @property
    def scale(self) -> float:
        """The logit scale."""
        return self.scale_of()

    def head(self, classes: Sequence[str], templates: str | Sequence[str] | None = None) -> Tensor:
        """The zero-shot classifier: one unit vector per class name."""
        return self.text.encode(classes, templates)

    def logits(self, features: Tensor, head: Tensor) -> Tensor:
        """Logits of image features for the classes of a head: scaled cosines."""
        return self.scale * F.normalize(features, dim=1) @ F.normalize(head, dim=1).T


class Normalised(nn.Module):
    """A module whose output rows are scaled to length one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.inner(x), dim=1)


class _ImageTower(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        found: Tensor = self.model.get_image_features(pixel_values=pixels).pooler_output
        return found


@DUAL.register("clip:")
def clip(path: str) -> Dual:
    """A CLIP or SigLIP in a Hugging Face folder: `clip:PATH`."""
    folder = Path(path)
    config = read_config(folder)
    kind = config["model_type"]
    if kind not in ("clip", "siglip"):
        raise FedloomError(
            f"{folder} holds a {kind} model; a dual encoder needs a clip or siglip one."
        )
    size, files = preprocess(folder), weight_files(folder)
    # SigLIP's towers have the common space's width themselves; the other numbers are CLIP's and SigLIP's own defaults.
    dim = (
        config.get("projection_dim", 512)
        if kind == "clip"
        else config["vision_config"].get("hidden_size", 768)
    )

    @cache
    def model() -> Any:
        return load_model(folder)

    @cache
    def tokenizer() -> Any:
        return load_tokenizer(folder)

    @torch.no_grad()
    def embed(texts: Sequence[str]) -> Tensor:
        # SigLIP was trained on texts filled up to full length; CLIP does not see the padding.
        length = config.get("text_config", {}).get(
            "max_position_embeddings", 77 if kind == "clip" else 64
        )
        inputs = tokenizer()(
            list(texts),
            padding=True if kind == "clip" else "max_length",
            truncation=True,
            max_length=length,
            return_tensors="pt",
        )
        wanted = ("input_ids", "attention_mask") if kind == "clip" else ("input_ids",)
        found: Tensor = model().get_text_features(**{k: inputs[k] for k in wanted}).pooler_output
        return found

    def prompted(classes: Sequence[str], context: Tensor) -> Tensor:
        # As CoOp: start token, context, class name, end. Fillers take the context's places among the tokens and a hook
        # puts the vectors there, so that masks, positions and pooling are the model's own.
        plain = tokenizer()(
            [f"{c.replace('_', ' ')}." for c in classes], padding=True, return_tensors="pt"
        )
        n, ids = len(context), plain["input_ids"]
        if ids.shape[1] + n > config.get("text_config", {}).get("max_position_embeddings", 77):
            raise FedloomError(
                f"{n} context vectors and the class names are too long for {folder}."
            )
        told = {"input_ids": torch.cat([ids[:, :1], ids[:, :1].expand(-1, n), ids[:, 1:]], dim=1)}
        mask = plain["attention_mask"]
        told["attention_mask"] = torch.cat([mask[:, :1].expand(-1, n), mask], dim=1)

        def put(_module: nn.Module, _inputs: Any, vectors: Tensor) -> Tensor:
            return torch.cat(
                [vectors[:, :1], context.expand(len(ids), -1, -1), vectors[:, n + 1 :]], dim=1
            )

        handle = model().text_model.embeddings.token_embedding.register_forward_hook(put)
        try:
            found: Tensor = model().get_text_features(**told).pooler_output
        finally:
            handle.remove()
        return found

    width = config.get("text_config", {}).get("hidden_size", 512)
    name = f"clip:{folder}"
    return Dual(
        name=name,
        image=Encoder(
            name, dim, size, lambda: Normalised(_ImageTower(model())), files, "joint space"
        ),
        text=TextEncoder(name, dim, embed, files=files, settings="joint space"),
        scale_of=lambda: float(model().logit_scale.exp()),
        context=Context(width, prompted) if kind == "clip" else None,
    )
