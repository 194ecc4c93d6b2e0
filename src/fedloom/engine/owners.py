"""Who has a setting: the answer for a user who gives a key that his run does not have."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from ..adapters import ADAPTERS
from ..adapters import options as adapter_options
from ..core.errors import FedloomError, unknown
from ..core.lookup import METHODS, PLUGINS
from ..core.settings import described
from ..data import partitions
from ..models import MODELS
from ..models import options as model_options


def owners(key: str) -> list[str]:
    """The methods, plug-ins, partitions, models and adapters that have a setting of that name."""
    owners = []
    for name, method in METHODS.items():
        if key in described(method):
            owners.append(f"the method {name}")
    for name, plugin in PLUGINS.items():
        if key in described(plugin):
            owners.append(f"the plug-in {name}")
    for name in partitions.PARTITIONS.names():
        if key in partitions.options(name):
            owners.append(f"the partition {name}")
    for name in MODELS.names():
        if key in model_options(name):
            owners.append(f"the model {name}")
    for name in ADAPTERS.names():
        if key in adapter_options(name):
            owners.append(f"the adapter {name}")
    return owners


def nowhere(key: str, known: Mapping[str, set[str]]) -> FedloomError:
    """The error for a key that this run does not have; it names who has it, or what is near."""
    others = owners(key)
    if others:
        return FedloomError(
            f"{key!r} is no setting of this run; it belongs to {', '.join(others)}."
        )
    names = set().union(*known.values())
    if get_close_matches(key, names, n=1, cutoff=0.5):
        return unknown("key", key, names)
    chosen = known["hyper"] | known["partitioning"] | known["network"] | known["adapting"]
    return FedloomError(
        f"unknown key {key!r}; method, partition and model have: "
        f"{', '.join(sorted(chosen)) or 'none'}; `fedloom settings` lists all others."
    )
