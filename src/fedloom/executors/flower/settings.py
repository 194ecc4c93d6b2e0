"""The settings of a federation, and how they and the run's config get into Flower's flat run config and out of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ...core.errors import FedloomError, explain
from ...core.settings import Count, NotNegative, Positive
from ...engine.config import SECTIONS, Config, affecting, build, parse_set

PREFIX = "federation."


class Settings(BaseModel):
    """How the server deals with sites that are slow, absent or wrong, and where things lie."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    out: str = "runs/flower"  # the run's folder at the server; a folder that holds the run already is gone on with
    state: str = (
        ""  # where sites keep what they remember; empty: FEDLOOM_STATE or the user's state folder
    )
    classes: str = ""  # names of all classes, commas between them, where sites with data of their own lack some
    wait: NotNegative = 300.0  # seconds to wait for sites to be there
    sites: int = 0  # how many must be there for the run to begin; 0: all
    timeout: Positive = 600.0  # seconds to wait for a reply
    replies: Count = 1  # uploads that a round needs; with fewer it is done again
    tries: Count = 3  # how often a round is done before the run is given up
    limit_mb: Positive = 500.0  # megabytes that an upload may have


def flat(config: Config, settings: Settings) -> dict[str, str | int | float | bool]:
    """Everything as Flower's run config wants it: flat keys, plain values, no key missing."""
    found: dict[str, Any] = {}
    body = config.model_dump(mode="json", exclude=affecting("nothing") & set(Config.model_fields))
    for name, value in body.items():
        found |= {f"{name}.{k}": v for k, v in value.items()} if name in SECTIONS else {name: value}
    found |= {f"{PREFIX}{k}": v for k, v in settings.model_dump(mode="json").items()}
    return {k: _plain(v) for k, v in found.items()}


def parse(run_config: Mapping[str, Any]) -> tuple[Config, Settings]:
    """The config and the settings in a run config."""
    given: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for key, value in run_config.items():
        if key.startswith(PREFIX):
            own[key.removeprefix(PREFIX)] = value
            continue
        if value == "":
            continue  # how `flat` writes that nothing is set
        section, dot, name = key.partition(".")
        read = (
            parse_set([f"x={value}"])["x"]
            if isinstance(value, str) and value[:1] in "[{"
            else value
        )
        if dot:
            given.setdefault(section, {})[name] = read
        else:
            given[section] = read
    try:
        settings = Settings.model_validate(own)
    except ValidationError as error:
        raise FedloomError(f"federation: {explain(error)}") from None
    config = build(given)
    if config.schedule.checkpoint_every != 1:
        raise FedloomError(
            "checkpoint_every must be 1 in a federation: sites rely on what the server has saved."
        )
    return config, settings


def _plain(value: Any) -> str | int | float | bool:
    if value is None:
        return ""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{json.dumps(str(k))} = {_plain(v)}" for k, v in value.items()) + "}"
        )
    return json.dumps(value)
