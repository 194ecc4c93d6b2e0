"""Exported models from a stranger: what their files say is checked before it is built."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator
from torch import Tensor, nn

from ..core import private_torch
from ..core.errors import FedloomError, explain
from ..core.files import parse_object, read_regular
from ..core.payload import tensors_in

FORMAT = 2  # of exported folders
# A network that is described may have some more numbers than its file: a head that another one has
# replaced, say. A description that asks for far more is a lie.
FACTOR, BESIDE = 10, 10_000_000
VALUES = 2**26  # numbers in one sample
SIDE = 2**14  # pixels of an image along one side
ENCODERS = 16  # side by side
PASS = 2**27  # numbers in any one tensor while a sample goes through the network
LARGEST = 1_000_000  # what a whole number among the settings may be, if the file is small

Shape = Annotated[list[Annotated[int, Field(ge=1, le=2**26, strict=True)]], Field(max_length=6)]
PerChannel = Annotated[list[FiniteFloat], Field(max_length=1024)]


class Square(BaseModel):
    """How an encoder cuts images of any size; see `data.readers.fitting.Cut`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    side: Annotated[int, Field(ge=1, le=SIDE)]
    crop: bool
    resample: Literal["nearest", "bilinear", "bicubic"]


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
    cut: Square | None = None

    @model_validator(mode="after")
    def _possible(self) -> Input:
        if max(math.prod(self.shape), math.prod(self.features)) > VALUES:
            raise ValueError(f"a sample of shape {self.shape} is too large")
        # Scaling an image multiplies it by a matrix with a column for each pixel of a side.
        if len(self.shape) == 3 and max(self.shape) > SIDE:
            raise ValueError(f"an image of shape {self.shape} is longer than {SIDE} pixels")
        encoders = (self.encoder or "").count(",") + 1  # each is a network that is loaded
        if encoders > ENCODERS:
            raise ValueError(f"it names {encoders} encoders, which is more than {ENCODERS}")
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
    # Of what is beside the network's weights; low-rank factors are in them.
    adapter: str | None = None
    adapting: dict[str, Any] = {}
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
    *,
    own: bool = False,
) -> None:
    """Refuse a network that would be far larger than what its file holds.

    `build` makes it; here that is tried without allocating anything. The user's `own` code need not
    stand that.
    """
    numbers = sum(tensor.numel() for tensor in tensors.values())
    for section in ("hyper", "network", "adapting"):
        for value in _whole_numbers(description.get(section, {})):
            if value > max(numbers, LARGEST):
                raise FedloomError(f"{folder}: {value} in its {section} does not fit its tensors.")
    if own:
        return
    with torch.device("meta"):
        network = build()
    wanted = sum(tensor.numel() for tensor in [*network.parameters(), *network.buffers()])
    if wanted > FACTOR * numbers + BESIDE:
        raise FedloomError(
            f"{folder} describes a network of {wanted} numbers, but holds {numbers} of them."
        )


class _Bounded(private_torch.Mode):
    """Refuses to compute tensors of more than `PASS` numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in made if isinstance(made, (list, tuple)) else [made]:
            if isinstance(value, Tensor) and value.numel() > PASS:
                raise FedloomError(
                    f"one sample becomes a tensor of {value.numel()} numbers in the network."
                )
        return made


@torch.no_grad()
def refuse_misfit(
    folder: Path, description: Mapping[str, Any], model: nn.Module, *, own: bool = False
) -> None:
    """Refuse a model that cannot take one sample, or that has scores for other classes.

    The sample has a shape and no numbers, so however large a stranger says it is, it costs nothing;
    only the user's `own` code gets zeros.
    """
    about = description["input"]
    one = (1, *about["shape"])
    dtype = getattr(torch, about["dtype"])
    if own:
        scores = model(torch.zeros(one, dtype=dtype))
    else:
        with torch.device("meta"), _Bounded():
            scores = _weightless(model)(torch.zeros(one, dtype=dtype))
    classes = len(description["classes"])
    if scores.shape[:2] != (1, classes):
        raise FedloomError(
            f"the model in {folder} has scores of shape {tuple(scores.shape)}, which do not fit "
            f"{classes} classes."
        )


def _weightless(model: nn.Module) -> nn.Module:
    """A copy whose tensors have shapes and no numbers; what shares a tensor goes on sharing it."""
    copies: dict[int, Any] = {}
    for parameter in model.parameters():
        copies[id(parameter)] = nn.Parameter(parameter.to("meta"), requires_grad=False)
    for buffer in model.buffers():
        copies[id(buffer)] = buffer.to("meta")
    return copy.deepcopy(model, copies)


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
