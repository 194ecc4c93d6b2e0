"""Class names as unit vectors: the sentences about a class, and the encoder that reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.errors import FedloomError
from ..core.local import Worker
from ..encoders import Cache, TextEncoder, dual, text
from ..encoders.texts import ENSEMBLE, TEMPLATES, filled


def text_head(worker: Worker, source: str, prompts: str | Sequence[str]) -> tuple[Tensor, float]:
    """The zero-shot classifier of a federation: one unit row per class, and its logit scale.

    `source` is "encoder", the text side of the dual encoder that made the features, or the name of
    a text encoder of the same width; "hash" is made as wide as it has to be. `prompts` is explained
    in `sentences`.
    """
    data, name = worker.data, worker.method_name
    if data.encoder is None:
        raise FedloomError(
            f"{name} compares images with class names and needs features of a dual encoder: "
            "say --encoder lite-clip, or --encoder clip:PATH."
        )
    scale = 100.0
    if source == "encoder":
        pair = dual(data.encoder)
        reader, scale = pair.text, pair.scale
    else:
        reader = text(f"hash:{worker.width}" if source == "hash" else source)
    if reader.dim != worker.width:
        raise FedloomError(
            f"text encoder {reader.name} gives {reader.dim} numbers, the image features of "
            f"{data.encoder} have {worker.width}: {name} compares the two; use the text side of a "
            "dual encoder (text=encoder)."
        )
    return embedded(reader, sentences(data.classes, prompts, data.name, reader.template)), scale


def sentences(
    classes: Sequence[str], prompts: str | Sequence[str], data: str, default: str
) -> list[list[str]]:
    """What is said about each class.

    `prompts` is "auto" (the data set's template, or the encoder's), "ensemble" (that and seven
    general ones), one or several templates with `{}` for the class name, or a JSON file that maps
    class names to lists of sentences, which then stand beside the data set's template.
    """
    own = TEMPLATES.get(Path(data).name, default)
    if isinstance(prompts, str) and prompts.endswith(".json"):
        told = _descriptions(Path(prompts), classes)
        return [[*one, *told[c]] for c, one in zip(classes, filled(classes, [own]), strict=True)]
    known = {"auto": [own], "ensemble": list(dict.fromkeys([own, *ENSEMBLE]))}
    if isinstance(prompts, str) and "{}" not in prompts and prompts not in known:
        raise FedloomError(
            "prompts must be auto, ensemble, a template with {} or a .json file, not "
            f"{prompts!r}."
        )
    templates = known.get(prompts, [prompts]) if isinstance(prompts, str) else list(prompts)
    return filled(classes, templates)


def embedded(reader: TextEncoder, said: Sequence[Sequence[str]]) -> Tensor:
    """One unit row per class: the normalised mean of its sentences' normalised vectors.

    Vectors are kept on disk, as image features are, so that a run whose encoder has read its
    prompts once does not load it again.
    """
    flat = list(dict.fromkeys(s for own in said for s in own))

    def read(start: int, stop: int) -> Tensor:
        return F.normalize(reader.embed(flat[start:stop]), dim=1)

    if reader.files or reader.settings:
        key = sha256(json.dumps([reader.hash, flat]).encode()).hexdigest()[:32]
        about = {"encoder": reader.name, "data": "prompts", "view": ""}
        vectors = Cache().features(key, (len(flat), reader.dim), read, about)
    else:
        vectors = read(0, len(flat))
    at = {s: i for i, s in enumerate(flat)}
    rows = [vectors[[at[s] for s in own]].mean(0) for own in said]
    return F.normalize(torch.stack(rows), dim=1)


def _descriptions(path: Path, classes: Sequence[str]) -> Mapping[str, list[str]]:
    """Class -> sentences, from a file; names may have spaces or underscores."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FedloomError(f"there is no file of class descriptions {path}.") from None
    except ValueError as error:
        raise FedloomError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(told, dict):
        raise FedloomError(f"{path} should map class names to lists of sentences.")
    plain = {str(name).replace("_", " ").strip().lower(): lines for name, lines in told.items()}
    found = {}
    for name in classes:
        key = name.replace("_", " ").strip().lower()
        if key not in plain:
            near = get_close_matches(key, plain, n=1)
            raise FedloomError(
                f"{path} says nothing about {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else ".")
            )
        lines = plain[key]
        if not (
            isinstance(lines, list)
            and lines
            and all(isinstance(s, str) and s.strip() for s in lines)
        ):
            raise FedloomError(f"{path}: class {name!r} needs a list of at least one sentence.")
        found[name] = lines
    return found
