"""The one network that a site needs of a run whose clients have different ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...client.networks import refuse_one_network
from ...core.errors import unknown
from ...core.lookup import find
from ...core.user_files import allow
from ...engine import networks
from ...engine.config import Config, parse_set


def with_network(config: Config, k: int | None, domain: str | None, own: str) -> Config:
    """The config of a site with its network alone: its `own`, or what the run says of client `k`.

    Without either, as in a simulation, the config stays as it is.
    """
    if own:
        return _named_by_site(config, own)
    if k is None or config.networks is None:
        return config
    if not isinstance(config.networks, Mapping):
        return _with(config, config.networks[k % len(config.networks)])
    if domain not in config.networks:
        raise unknown("domain among networks", str(domain), config.networks)
    return _with(config, config.networks[domain])


def _named_by_site(config: Config, own: str) -> Config:
    """The network is the site's choice, so the files that it names are executed."""
    refuse_one_network(config.method, find(config.method).traits.networks)
    spelled = networks.spelled([parse_set([f"network={own}"])["network"]])
    config = _with(config, networks.entries(networks.complete(spelled or [], {}, ()))[0])
    allow(config.model_dump(include={"model", "network"}))
    return config


def _with(config: Config, entry: networks.Entry) -> Config:
    options: dict[str, Any] = {key: value for key, value in entry.items() if key != "model"}
    change = {"model": entry["model"], "network": options, "networks": None}
    return config.model_copy(update=change)
