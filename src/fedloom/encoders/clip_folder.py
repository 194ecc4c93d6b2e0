"""CLIP and SigLIP from Hugging Face folders."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.device import on_device
from ..core.errors import FedloomError
from .duals import Normalised, Tower
from .huggingface import ModelFolder, preprocess, read_config, weight_files


class _ImageTower(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.model.get_image_features(pixel_values=pixels).pooler_output
        return features


class _TextTower(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.text_model = copy.deepcopy(model.text_model)
        # SigLIP's texts have the width of the common space already.
        self.project = copy.deepcopy(getattr(model, "text_projection", nn.Identity()))

    def forward(self, **inputs: Tensor) -> Tensor:
        rows: Tensor = self.project(self.text_model(**inputs).pooler_output)
        return rows


class FolderClip(ModelFolder):
    """A CLIP or SigLIP in a Hugging Face folder."""

    settings = "joint space"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.config = read_config(folder)
        self.kind = self.config["model_type"]
        if self.kind not in ("clip", "siglip"):
            raise FedloomError(
                f"{folder} holds a {self.kind} model; a dual encoder needs a clip or siglip one."
            )
        self.text_config = self.config.get("text_config", {})
        self.files = weight_files(folder)
        self.text_files = self.files
        self.preprocess = preprocess(folder)

    @property
    def dim(self) -> int:
        """The width of the common space."""
        # SigLIP's towers have that width themselves. 512 and 768 are CLIP's and SigLIP's defaults.
        if self.kind == "clip":
            return int(self.config.get("projection_dim", 512))
        return int(self.config["vision_config"].get("hidden_size", 768))

    @property
    def context(self) -> int | None:
        """The width of trained vectors among the words; None if the texts take none."""
        if self.kind != "clip":
            return None
        return int(self.text_config.get("hidden_size", 512))

    def image_tower(self) -> nn.Module:
        """From pixels to unit vectors in the common space."""
        return Normalised(_ImageTower(self.model))

    def scale(self) -> float:
        """The logit scale."""
        return float(self.model.logit_scale.exp())

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors of texts in the common space."""
        vectors: Tensor = self.model.get_text_features(**self._inputs(texts)).pooler_output
        return vectors

    def _inputs(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """The tokens of texts as the model was trained on them."""
        if self.kind == "clip":
            told = self._tokens(texts, padding=True, length=77)
            return {"input_ids": told["input_ids"], "attention_mask": told["attention_mask"]}
        # SigLIP was trained on texts padded to full length, without a mask.
        told = self._tokens(texts, padding="max_length", length=64)
        return {"input_ids": told["input_ids"]}

    def _tokens(self, texts: Sequence[str], padding: bool | str, length: int) -> Any:
        return self.tokenizer(
            list(texts),
            padding=padding,
            truncation=True,
            max_length=self.text_config.get("max_position_embeddings", length),
            return_tensors="pt",
        )

    def tower(self, texts: Sequence[str]) -> nn.Module:
        """The text side as a network that can be trained, for these texts."""
        return Tower(_TextTower(self.model), **self._inputs(texts))

    def prompted(self, classes: Sequence[str], context: Tensor) -> Tensor:
        """Vectors of class names behind trained context vectors, as in CoOp.

        The tokens are: start, context, class name, end. Fillers take the context's places among the
        tokens and a hook replaces their embeddings, so that masks, positions and pooling are the
        model's own.
        """
        names = [f"{name.replace('_', ' ')}." for name in classes]
        plain = self.tokenizer(names, padding=True, return_tensors="pt").to(context.device)
        ids, mask, n = plain["input_ids"], plain["attention_mask"], len(context)
        if ids.shape[1] + n > self.text_config.get("max_position_embeddings", 77):
            raise FedloomError(
                f"{n} context vectors and the class names are too long for {self.folder}."
            )
        start = ids[:, :1]
        inputs = {
            "input_ids": torch.cat([start, start.expand(-1, n), ids[:, 1:]], dim=1),
            "attention_mask": torch.cat([mask[:, :1].expand(-1, n), mask], dim=1),
        }

        def put(_module: nn.Module, _inputs: Any, vectors: Tensor) -> Tensor:
            between = context.expand(len(ids), -1, -1)
            return torch.cat([vectors[:, :1], between, vectors[:, n + 1 :]], dim=1)

        model: Any = on_device(self.model, context.device)
        handle = model.text_model.embeddings.token_embedding.register_forward_hook(put)
        try:
            vectors: Tensor = model.get_text_features(**inputs).pooler_output
        finally:
            handle.remove()
        return vectors
