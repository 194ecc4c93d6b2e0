"""Settings: a setting is one field with a whole sentence of description.

Help texts, `docs/settings.md` and the hash of a run are all made from these fields, so a setting is
described in one place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BeforeValidator, Field

from .errors import FedloomError

# What changes when the setting does: which samples clients have, the numbers that come out, or
# nothing but where and how fast they are computed.
Affects = Literal["data", "result", "nothing"]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
BelowHalf = Annotated[float, Field(ge=0, lt=0.5)]
Ratio = Annotated[float, Field(gt=0, le=1)]


def setting(
    default: Any, description: str, *, symbol: str = "", affects: Affects = "result", **checks: Any
) -> Any:
    """A field of a method, a plug-in or a section of the config.

    `description` is a whole sentence. `symbol` is the paper's letter for it. pydantic gets the
    `checks` (`ge=0`, `le=1`).
    """
    extra: dict[str, Any] = {"symbol": symbol, "affects": affects}
    return Field(default, description=description, json_schema_extra=extra, **checks)


def described(cls: Any) -> dict[str, Any]:
    """The fields of a section, a method or a plug-in; each has a default and a description."""
    fields: dict[str, Any] = getattr(cls, "model_fields", None) or cls.__pydantic_fields__
    return fields


@dataclass(frozen=True)
class Option:
    """An option of a function, such as a partition or the builder of a model."""

    default: Any
    type: Any
    description: str


def keyword_options(function: Callable[..., Any]) -> dict[str, Option]:
    """The keyword-only parameters of a function; `Annotated[int, "A sentence."]` describes one."""
    options: dict[str, Option] = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        wanted, description = parameter.annotation, ""
        if get_origin(wanted) is Annotated:
            wanted, description = get_args(wanted)[:2]
        options[name] = Option(parameter.default, wanted, description)
    return options


def refuse_nameless(name: str, function: Callable[..., Any], leading: int = 1) -> None:
    """Refuse a builder whose options, behind `leading` others, cannot be set by their names."""
    for option in list(inspect.signature(function).parameters.values())[leading:]:
        missing = option.empty in (option.default, option.annotation)
        if option.kind is not option.KEYWORD_ONLY or missing:
            raise FedloomError(
                f"'{option.name}' of '{name}' must be keyword-only, annotated, with a default"
            )


def listed(value: Any) -> Any:
    """Several names, which may be given as one text with commas between them."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(","))
    return value


Listed = BeforeValidator(listed)
Names = Annotated[tuple[str, ...], Listed]


def part_of(n: int, share: float) -> int:
    """How many whole things a share of `n` is: 0.29 of 100 is 29, although 0.29 * 100 < 29."""
    return int(n * share + 1e-9)
