"""Class names as unit vectors: the sentences about a class, and the encoder that reads them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from hashlib import sha256
from itertools import chain
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
    elif source == "hash":
        reader = text(f"hash:{worker.width}")
    else:
        reader = text(source)
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
    """The sentences about each class.

    `prompts` is "auto" (the data set's template, or the encoder's), "ensemble" (that and seven
    general ones), one or several templates with `{}` for the class name, or a JSON file that maps
    class names to lists of sentences, which are then used beside the data set's template. A folder
    has such a file for every data set.
    """
    name = Path(data).name
    template = TEMPLATES.get(name, default)
    if not isinstance(prompts, str):
        return filled(classes, list(prompts))
    folder = prompt_folder(prompts)
    if folder is not None:
        prompts = str(_file_about(name, folder))
    if prompts.endswith(".json"):
        described = _descriptions(Path(prompts), classes)
        by_class = filled(classes, [template])
        for name, lines in zip(classes, by_class, strict=True):
            lines += described[name]
        return by_class
    if prompts == "auto":
        return filled(classes, [template])
    if prompts == "ensemble":
        return filled(classes, list(dict.fromkeys([template, *ENSEMBLE])))
    if "{}" in prompts:
        return filled(classes, [prompts])
    raise FedloomError(
        f"prompts must be auto, ensemble, a template with {{}}, a .json file or a folder of such "
        f"files (here or under FEDLOOM_DATA), not {prompts!r}."
    )


def prompt_folder(prompts: str) -> Path | None:
    """The folder of that name, here or under FEDLOOM_DATA, if there is one."""
    if prompts in ("", "auto", "ensemble") or prompts.endswith(".json") or "{}" in prompts:
        return None
    root = os.environ.get("FEDLOOM_DATA")
    for folder in (Path(prompts), Path(root or ".") / prompts):
        if folder.is_dir():
            return folder
    return None


def _file_about(data: str, folder: Path) -> Path:
    """The file of a folder that is about a data set: `dtd.json`, `CuPL_prompts_dtd.json` ..."""
    files = {_bare(path.stem): path for path in sorted(folder.glob("*.json"))}
    if _bare(data) in files:
        return files[_bare(data)]
    there = ", ".join(path.name for path in files.values()) or "none"
    raise FedloomError(
        f"{folder} has no class descriptions of {data} ({data}.json); its files are: {there}."
    )


def _bare(name: str) -> str:
    """A file's or a data set's name, without what such files are called."""
    words = re.findall(r"[a-z]+|[0-9]+", name.lower())
    return "".join(word for word in words if word not in ("cupl", "gpt", "prompt", "prompts"))


def embedded(reader: TextEncoder, by_class: Sequence[Sequence[str]]) -> Tensor:
    """One unit row per class: the normalised mean of its sentences' normalised vectors.

    Vectors are kept on disk, as image features are, so that a run whose encoder has read its
    prompts once does not load it again.
    """
    different = list(dict.fromkeys(chain.from_iterable(by_class)))

    def read(start: int, stop: int) -> Tensor:
        return F.normalize(reader.embed(different[start:stop]), dim=1)

    if reader.files or reader.settings:
        key = sha256(json.dumps([reader.hash, different]).encode()).hexdigest()[:32]
        about = {"encoder": reader.name, "data": "prompts", "view": ""}
        vectors = Cache().features(key, (len(different), reader.dim), read, about)
    else:
        vectors = read(0, len(different))
    place = {sentence: i for i, sentence in enumerate(different)}
    rows = []
    for lines in by_class:
        rows.append(vectors[[place[sentence] for sentence in lines]].mean(0))
    return F.normalize(torch.stack(rows), dim=1)


def _descriptions(path: Path, classes: Sequence[str]) -> Mapping[str, list[str]]:
    """Class -> sentences, from a file; names may have spaces or underscores."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FedloomError(f"there is no file of class descriptions {path}.") from None
    except ValueError as error:
        raise FedloomError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise FedloomError(f"{path} should map class names to lists of sentences.")
    described = {simplified(str(name)): lines for name, lines in content.items()}
    by_name = {}
    for name in classes:
        simple = simplified(name)
        if simple not in described:
            hint = "."
            near = get_close_matches(simple, described, n=1)
            if near:
                hint = f"; did you mean {near[0]!r}?"
            raise FedloomError(f"{path} says nothing about {name!r}{hint}")
        if not _are_sentences(described[simple]):
            raise FedloomError(f"{path}: class {name!r} needs a list of at least one sentence.")
        by_name[name] = described[simple]
    return by_name


def simplified(name: str) -> str:
    """A class name with spaces for underscores, in lower case."""
    return name.replace("_", " ").strip().lower()


def _are_sentences(lines: object) -> bool:
    """Whether this is a list of at least one sentence, none of them empty."""
    if not isinstance(lines, list) or not lines:
        return False
    return all(isinstance(line, str) and line.strip() for line in lines)
