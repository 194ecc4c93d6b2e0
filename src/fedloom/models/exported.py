"""Exported models from a stranger: what their files say is checked before it is built."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator
from torch import Tensor, nn

from ..core.errors import FedloomError, explain
from ..core.files import parse_object, read_regular
from ..core.payload import tensors_in

FORMAT = 2  # of exported folders
# A network that is described may have some more numbers than its file: a head that another one has
# replaced, say. A description that asks for far more is a lie.
FACTOR, BESIDE = 10, 10_000_000
VALUES = 2**26  # numbers in one sample
LARGEST = 1_000_000  # what a whole number among the settings may be, if the file is small

Shape = Annotated[list[Annotated[int, Field(ge=1, le=2**26, strict=True)]], Field(max_length=6)]
PerChannel = Annotated[list[FiniteFloat], Field(max_length=1024)]


class Input(BaseModel):
    """What a model takes."""

    model_config = ConfigDict(strict=True)

    kind: Literal["image", "vector", "text", "segmentation"]
    shape: Shape
    dtype: Literal["uint8", "int16", "int32", "int64", "float16", "float32", "float64", "bfloat16"]
    mean: PerChannel
    std: PerChannel
    vocabulary: Annotated[int, Field(ge=1, le=2**31)] | None
    words: list[str] | None = None
    hashed: bool
    encoder: str | None
    pixels: bool
    standardised: bool = False
    features: Shape
    features_of: str | None

    @model_validator(mode="after")
    def _possible(self) -> Input:
        if max(math.prod(self.shape), math.prod(self.features)) > VALUES:
            raise ValueError(f"a sample of shape {self.shape} is too large")
        return self


class Description(BaseModel):
    """What stands in an export's config.json, or among the metadata of an ONNX file."""

    model_config = ConfigDict(strict=True)

    format: int
    method: str
    hyper: dict[str, Any]
    classes: Annotated[list[str], Field(min_length=1)]
    input: Input
    model: str
    network: dict[str, Any]
    pieces: dict[Literal["head", "inputs", "rule"], dict[str, Any] | None]


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the tensors in an exported folder."""
    description = described(_content(folder, "config.json"), folder / "config.json")
    try:
        return description, tensors_in(_content(folder, "model.safetensors"))
    except ValueError as error:
        raise FedloomError(f"{folder / 'model.safetensors'} is damaged: {error}.") from None


def described(data: bytes, where: Path) -> dict[str, Any]:
    """The description in these bytes, if it is one."""
    description = parse_object(data, where)
    if description.get("format") != FORMAT:
        shown = str(description.get("format"))[:20]
        raise FedloomError(f"{where} has format {shown}, this version reads format {FORMAT}.")
    try:
        Description.model_validate(description)
    except ValidationError as error:
        raise FedloomError(f"{where} describes no model: {explain(error)[:500]}") from None
    return description


def _content(folder: Path, name: str) -> bytes:
    try:
        return read_regular(folder / name)
    except FileNotFoundError:
        raise FedloomError(f"{folder} is no exported model: it has no {name}.") from None
    except OSError as error:
        why = error.strerror or error
        raise FedloomError(f"{folder / name} cannot be read: {why}.") from None


def refuse_oversized(
    folder: Path,
    description: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    build: Callable[[], nn.Module],
) -> None:
    """Refuse a network that would be far larger than what its file holds.

    `build` makes it; here that is tried without allocating anything.
    """
    numbers = sum(tensor.numel() for tensor in tensors.values())
    for section in ("hyper", "network"):
        for value in _whole_numbers(description[section]):
            if value > max(numbers, LARGEST):
                raise FedloomError(f"{folder}: {value} in its {section} does not fit its tensors.")
    try:
        with torch.device("meta"):
            network = build()
    except Exception:
        # It reads weights of its own (a frozen ViT), or it is wrong, which building it will tell.
        return
    wanted = sum(tensor.numel() for tensor in network.state_dict().values())
    if wanted > FACTOR * numbers + BESIDE:
        raise FedloomError(
            f"{folder} describes a network of {wanted} numbers, but holds {numbers} of them."
        )


@torch.no_grad()
def refuse_misfit(folder: Path, description: Mapping[str, Any], model: nn.Module) -> None:
    """Refuse a model that cannot take one sample, or that has scores for other classes."""
    about = description["input"]
    sample = torch.zeros(1, *about["shape"], dtype=getattr(torch, about["dtype"]))
    scores = model(sample)
    classes = len(description["classes"])
    if scores.shape[:2] != (1, classes):
        raise FedloomError(
            f"the model in {folder} has scores of shape {tuple(scores.shape)}, which do not fit "
            f"{classes} classes."
        )


def _whole_numbers(value: Any) -> Iterator[int]:
    """The whole numbers in a JSON value."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _whole_numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _whole_numbers(inner)
