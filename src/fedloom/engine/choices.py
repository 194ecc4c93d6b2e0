"""Settings that decide what other settings there are: method, partition, model, adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..adapters import ADAPTERS
from ..core.lookup import find
from ..data import partitions
from ..data.catalogue import MODEL_FOR, has_clients, kind_of
from ..models import spelling as model_spelling
from . import networks


def settle(body: dict[str, Any], changes: dict[str, Any], usual: Mapping[str, Any]) -> None:
    """Settle method, preset, partition, networks and adapter, on which all others depend."""
    several = changes.pop("networks", body.get("networks"))
    for key in ("method", "preset", "partition", "model"):
        default = body.get(key, usual[key])
        body[key] = str(changes.pop(key, default))
    root = changes.get("data_root", body.get("execution", {}).get("data_root"))
    data = str(changes.get("data", body.get("data", usual["data"])))
    if body["partition"] == "auto":
        body["partition"] = "natural" if has_clients(data, root) else "domains"
    if body["partition"] != "given":
        body["partition"] = partitions.PARTITIONS.spelling(body["partition"])
    body["networks"] = networks.spelled(several)
    if body["networks"]:
        networks.name(body)
    elif body["model"] == "auto":
        body["model"] = _fitting_model(body, changes, data, root)
    elif body["model"] != networks.GIVEN:
        body["model"] = model_spelling(body["model"])
    body["adapter"] = _adapter(changes.pop("adapter", body.get("adapter")), body)


def _adapter(name: str | None, body: Mapping[str, Any]) -> str | None:
    """The adapter as it was registered; where none is named, that of the method, if it has one.

    A network of the user's own may have its factors already.
    """
    if name not in (None, "none"):
        return ADAPTERS.spelling(str(name))
    if networks.GIVEN in body["model"].split(","):
        return None
    return find(body["method"]).traits.adapter


def _fitting_model(
    body: Mapping[str, Any], changes: Mapping[str, Any], data: str, root: str | None
) -> str:
    """The model that fits the data, where the user names none."""
    if changes.get("encoder", body.get("encoder")):
        return "linear"
    flat = body.get("source", {}).get("flatten")
    for key in ("source.flatten", "flatten"):
        flat = changes.get(key, flat)
    return MODEL_FOR["vector" if flat else kind_of(data, root)]
