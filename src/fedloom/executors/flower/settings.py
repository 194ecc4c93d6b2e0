"""The settings of a federation; they and the run's config as Flower's flat run config, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ...core.claims import JUMP
from ...core.errors import FedloomError, explain
from ...core.lookup import is_file
from ...core.settings import Count, NotNegative, Positive, setting
from ...core.user_files import code_in
from ...engine.config import SECTIONS, Config, affecting, build, parse_set

PREFIX = "federation."
NAMING = ("encoder", "model", "network", "networks")  # what may name a user's file
# What begins so in a run config is read as TOML: a list, a table, a text in quotes.
TOML = ("[", "{", '"')


class Settings(BaseModel):
    """What the server does about sites that are slow, absent or wrong, and where files lie."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    out: str = setting(
        "runs/flower",
        "The run's folder at the server; a run that is in it already continues.",
        affects="nothing",
    )
    classes: str = setting(
        "",
        "Names of all classes, separated by commas, for sites whose own data lack some of them.",
        affects="data",
    )
    wait: NotNegative = setting(
        300.0, "Seconds for which the server waits for the sites to connect.", affects="nothing"
    )
    sites: int = setting(
        0, "Number of sites that must be there for the run to begin; 0 stands for all."
    )
    timeout: Positive = setting(600.0, "Seconds for which the server waits for a reply.")
    replies: Count = setting(
        1, "Number of uploads that a round needs; a round with fewer is repeated."
    )
    tries: Count = setting(3, "Number of times that a round is tried before the run gives up.")
    limit_mb: Positive = setting(
        500.0, "Largest reply that the server accepts, texts and names included, in megabytes."
    )
    jump: Positive = setting(
        JUMP,
        "How many times as long as before (or as that of as many ones) a model may become in a "
        "round; an upload that makes it longer is refused.",
    )
    device: str = setting(
        "cpu",
        "Where clients compute whose node config names no device, as those of a simulation.",
        affects="nothing",
    )
    keys: bool = setting(
        True,
        "Whether a site's number stays with the node key that first used it; without registered "
        "keys, nodes make a new one at every start, so switch it off there.",
    )


def flat(config: Config, settings: Settings) -> dict[str, str | int | float | bool]:
    """Everything as Flower's run config wants it: flat keys, plain values, no key missing."""
    values: dict[str, Any] = {}
    unneeded = affecting("nothing") & set(Config.model_fields)
    for name, value in config.model_dump(mode="json", exclude=unneeded).items():
        if name in SECTIONS:
            values |= {f"{name}.{key}": entry for key, entry in value.items()}
        else:
            values[name] = value
    values |= {f"{PREFIX}{key}": value for key, value in settings.model_dump(mode="json").items()}
    return {key: _plain(value) for key, value in values.items()}


def parse(run_config: Mapping[str, Any], files: bool = True) -> tuple[Config, Settings]:
    """The config and the settings in a run config; without `files`, no method file is executed."""
    for_config: dict[str, Any] = {}
    for_settings: dict[str, Any] = {}
    for key, value in run_config.items():
        if key.startswith(PREFIX):
            for_settings[key.removeprefix(PREFIX)] = value
            continue
        if value == "":
            continue  # `flat` writes a setting without a value like this
        if isinstance(value, str) and value[:1] in TOML:
            value = parse_set([f"x={value}"])["x"]
        section, dot, name = key.partition(".")
        if dot:
            for_config.setdefault(section, {})[name] = value
        else:
            for_config[section] = value
    try:
        settings = Settings.model_validate(for_settings)
    except ValidationError as error:
        raise FedloomError(f"federation: {explain(error)}") from None
    if not files and is_file(str(for_config.get("method", ""))):
        raise FedloomError(
            "this site runs no method from a file; method-files=true in its node config allows it."
        )
    if not files and any(code_in([for_config.get(name) for name in NAMING])):
        raise FedloomError(
            "this site runs no encoder or network from a file; method-files=true in its node "
            "config allows it."
        )
    config = build(for_config)
    if config.schedule.checkpoint_every != 1:
        raise FedloomError(
            "checkpoint_every must be 1 in a federation: sites rely on what the server has saved."
        )
    return config, settings


def _plain(value: Any) -> str | int | float | bool:
    if value is None:
        return ""
    if isinstance(value, str) and value[:1] in TOML:
        return _within(value)  # a text that would be read as something else
    if isinstance(value, bool | int | float | str):
        return value
    return _within(value)


def _within(value: Any) -> str:
    """A value as TOML has it within a list or a table."""
    if isinstance(value, Mapping):
        entries = [f"{json.dumps(str(key))} = {_within(entry)}" for key, entry in value.items()]
        return "{" + ", ".join(entries) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_within, value)) + "]"
    return json.dumps(value)
