"""Golden numbers: what the authors' code gives on the inputs of `inputs.py`.

A file `golden/METHOD.json` holds

    repository, commit, date    whose code was run, and the date on which it was
    recipe                      what of it was run, and how, in words
    seed                        of the inputs
    settings                    ours, where they are not the defaults: `preset`, which a method that
                                has the preset "official" must name, and on top of it `method`,
                                `training` and `norm`; `no_preset` and `instead` (by setting) say
                                why a preset, or what it chooses, was not what was run
    numbers                     tensors by name, as nested lists; a model is one row, its tensors
                                in the alphabetical order of their names in our network

No number in such a file was ever made by fedloom.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.core.lookup import find
from fedloom.core.method import Method

FOLDER = Path(__file__).parent / "golden"
CLOSE = 1e-5


@dataclass(frozen=True)
class Golden:
    """The contents of one file."""

    method: str
    repository: str
    commit: str
    date: str
    recipe: str
    seed: int
    settings: Mapping[str, Any]
    numbers: Mapping[str, Any]

    def __getitem__(self, name: str) -> Tensor:
        return torch.tensor(self.numbers[name], dtype=torch.float64)

    @property
    def method_class(self) -> type[Method]:
        """The method."""
        return find(self.method)

    @property
    def preset(self) -> Mapping[str, Any]:
        """What the method's preset of that name sets."""
        if "preset" not in self.settings:
            return {}
        return self.method_class.traits.presets[self.settings["preset"]]

    def chosen(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Our settings of the method and of training: the preset's, then those of the file."""
        own = {field.name for field in fields(self.method_class)}
        method, training = {}, {}
        for key, value in self.preset.items():
            if key in own:
                method[key] = value
            else:
                training[key.removeprefix("training.")] = value
        method |= self.settings.get("method", {})
        return method, training | self.settings.get("training", {})

    def part(self, prefix: str, **method: Any) -> Golden:
        """The numbers whose names begin so, with further settings of the method."""
        numbers = {}
        for name, value in self.numbers.items():
            if name.startswith(f"{prefix} "):
                numbers[name.removeprefix(f"{prefix} ")] = value
        settings = {**self.settings, "method": {**self.settings.get("method", {}), **method}}
        return replace(self, numbers=numbers, settings=settings)

    def agrees(self, ours: Mapping[str, Tensor]) -> None:
        """Fail unless every number of the file is among ours, and no other, and all are close.

        With `-s` pytest shows the largest difference, for the method's page.
        """
        assert sorted(ours) == sorted(self.numbers), f"{self.method}: not the numbers of the file"
        largest, where = 0.0, ""
        for name, tensor in ours.items():
            theirs = self[name]
            assert tensor.shape == theirs.shape, f"{self.method}: {name} has another shape"
            off = float((tensor.double() - theirs).abs().max())
            assert off <= CLOSE, f"{self.method}: {name} is off by {off:.3g}"
            if off > largest:
                largest, where = off, name
        print(f"{self.method}: largest difference {largest:.1e} ({where or 'nowhere'})")


def golden(method: str, name: str | None = None) -> Golden:
    """The golden numbers of a method; `name` is that of the file, if there are several."""
    text = (FOLDER / f"{name or method}.json").read_text("utf-8")
    return Golden(method=method, **json.loads(text))
