"""Who has a setting: the answer for a user who gives a key that his run does not have."""

from __future__ import annotations

from ..core.lookup import METHODS, PLUGINS
from ..core.settings import described
from ..data import partitions
from ..models import MODELS
from ..models import options as model_options


def owners(key: str) -> list[str]:
    """The methods, plug-ins, partitions and models that have a setting of that name."""
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
    return owners
