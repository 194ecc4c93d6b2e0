"""Side figures: what a result is better with, but must never be lost for."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")


def side_figure(what: str, make: Callable[[], T], instead: Any) -> T:
    """What `make` returns; if it fails, a warning with the cause, and `instead`.

    The rounds are computed by the time a picture is drawn or a test is made. Whatever goes wrong
    there, the user gets everything else.
    """
    try:
        return make()
    except Exception as error:  # a section or a method may be the user's own and raise anything
        warnings.warn(f"{what} could not be made ({cause(error)}).", stacklevel=2)
        return cast(T, instead)


def cause(error: Exception) -> str:
    """What went wrong, in a few words."""
    return f"{type(error).__name__}: {error}".rstrip(".: ")
