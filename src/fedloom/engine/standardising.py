"""Whether features are standardised, and with whose statistics; client/standard.py does it."""

from __future__ import annotations

from typing import Any

from ..client.standard import Standardise
from ..core.errors import FedloomError
from ..core.method import Method, PromisesPrivacy
from ..data.dataset import Dataset
from ..data.views import WithPixels


def decide(setting: Any, method: Method, features: bool) -> Any:
    """The setting `standardise`, decided where it says `auto`.

    `features` says whether samples are features of a frozen encoder and nothing else.
    """
    as_they_are = method.traits.features == "raw"
    if setting is True and as_they_are:
        raise FedloomError(
            f"{method.name} wants features as they are: leave standardise at auto or false."
        )
    if setting != "auto":
        return setting
    if not features or as_they_are:
        return False
    promises = isinstance(method, PromisesPrivacy) and method.promise() is not None
    return not promises  # the sums would be no part of the promise


def whose(setting: Any, method: Method, data: Dataset) -> Standardise:
    """Whose statistics standardise these samples."""
    if setting is not True:
        return "raw"
    has_pixels = isinstance(data.x, WithPixels)
    if data.kind != "vector" or not data.x.dtype.is_floating_point or has_pixels:
        kind = f"{data.kind} samples"
        if has_pixels:
            kind = "pixels beside its features"
        raise FedloomError(
            f"standardise is for features and other vectors; {data.name} has {kind}."
        )
    return method.traits.features
