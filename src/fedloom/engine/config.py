"""The settings of a run: strict, complete, the same in a TOML file, as flags and as keywords."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import date, time
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..adapters import options as adapter_options
from ..client.training import Training
from ..core.errors import FedloomError, explain, unknown
from ..core.lookup import find, make
from ..core.method import Method as _Method
from ..core.settings import Count, Share, setting
from ..core.user_files import allow, trusted
from ..data import partitions
from ..data.catalogue import Source
from ..models import options as model_options
from . import networks
from .choices import settle
from .clock import Clock
from .execution import Execution
from .later import forget_later
from .owners import nowhere
from .schedule import Schedule
from .standardising import decide

FORMAT = 1  # of run folders; raised when folders of earlier versions can no longer be read


class Config(BaseModel):
    """Everything that says what a run is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str = setting(
        "fedavg", "The method: a name (`fedloom methods` lists them) or a Python file."
    )
    preset: str = setting(
        "paper",
        "The origin of the method's defaults: `paper`, or `official` for its authors' code.",
    )
    data: str = setting(
        "digits4",
        "The data set: a name (`fedloom data list` lists them) or a path.",
        affects="data",
    )
    partition: str = setting(
        "auto",
        "How samples are dealt out to clients; `auto` keeps the clients of a PFLlib folder and "
        "deals everything else out by domains.",
        affects="data",
    )
    encoder: str | None = setting(
        None,
        "Frozen encoders, separated by commas; clients then have features in place of images.",
        affects="data",
    )
    views: Count = setting(
        1,
        "The number of cached views per image, made by the augmentations of [training]; it needs "
        "an encoder.",
        affects="data",
    )
    pixels: bool = setting(
        False, "Whether the encoder's input is kept in front of its features.", affects="data"
    )
    standardise: bool | Literal["auto"] = setting(
        "auto",
        "Whether every feature gets mean 0 and the same deviation, from sums that clients report "
        "once; `auto` does so behind a frozen encoder, unless the method wants features as they "
        "are or promises privacy.",
    )
    model: str = setting(
        "auto",
        "The network; `auto` takes what fits the data (cnn, mlp, fasttext or unet; linear on "
        "features).",
    )
    networks: list[dict[str, Any]] | dict[str, dict[str, Any]] | None = setting(
        None,
        "Networks of clients that do not all have the same one, in place of `model`: a list, dealt "
        "out in turn, or a table with one for each domain; for methods that send no weights.",
    )
    adapter: str | None = setting(
        None,
        "What is trained of a network that stays as it is otherwise: lora, bitfit, prompt or head; "
        "by default all of it, or lora for methods that work on its factors.",
    )
    clients: Count | None = setting(
        None, "The number of clients; without it, the partition decides.", affects="data"
    )
    seed: int = setting(0, "The number that everything random depends on.", affects="data")
    validation: Share = setting(
        0.1,
        "The share of each client's training samples that is held out to choose rounds.",
        affects="data",
    )
    split: Literal["official", "merged"] = setting(
        "official",
        "Whether the data set's own test part is kept, or both parts are merged and cut anew.",
        affects="data",
    )
    merged_share: Annotated[float, Field(gt=0, lt=1)] = setting(
        0.75,
        "The share of each client's samples that it trains on, if train and test are merged.",
        affects="data",
    )
    hold_out: str | None = setting(
        None,
        "A domain that nobody trains on; it is one client that is only scored, under its name.",
        affects="data",
    )
    new_clients: Annotated[int, Field(ge=0)] = setting(
        0,
        "How many of the clients, drawn at random, never train and are only scored, as those who "
        "come later.",
        affects="data",
    )
    format: int = setting(
        FORMAT, "The format of the run folder, set by fedloom.", affects="nothing"
    )
    source: Source = setting(Source(), "How the samples are read.", affects="data")
    schedule: Schedule = setting(Schedule(), "Rounds, who takes part, when it is evaluated.")
    clock: Clock = setting(Clock(), "Simulated time: how quick devices are, who is waited for.")
    training: Training = setting(Training(), "How a client trains in a round.")
    hyper: dict[str, Any] = setting({}, "The settings of the method itself.")
    partitioning: dict[str, Any] = setting({}, "The options of the partition.", affects="data")
    network: dict[str, Any] = setting({}, "The options of the model.")
    adapting: dict[str, Any] = setting({}, "The options of the adapter.")
    execution: Execution = setting(
        Execution(), "Where and how fast the run is computed.", affects="nothing"
    )

    def on(self, device: str) -> Config:
        """The same config, computed on another device."""
        execution = self.execution.model_copy(update={"device": device})
        return self.model_copy(update={"execution": execution})

    def what(self) -> dict[str, Any]:
        """The settings that can change a result, as plain values."""
        return self._without(affecting("nothing"))

    def hash(self) -> str:
        """Names what is computed: equal for runs whose results must be equal."""
        body = self.what()
        forget_later(body, Config().what())
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]

    def data_key(self) -> str:
        """Names the samples that clients have: equal for configs with the same federation."""
        body = self._without(affecting("nothing", "result"))
        if self.encoder:
            body["augment"] = list(self.training.augment)
        return json.dumps(body, sort_keys=True)

    def toml(self) -> str:
        """The config as a file that `fedloom run FILE` runs again."""
        body: dict[str, Any] = {}
        for key, value in json.loads(self.model_dump_json()).items():
            if isinstance(value, dict):  # TOML has no null: what is not set is left out
                value = {name: inner for name, inner in value.items() if inner is not None}
            if value is not None and value != {}:
                body[key] = value
        return tomli_w.dumps(body)

    def _without(self, names: Iterable[str]) -> dict[str, Any]:
        """All settings but these, which are given as `key`, `section` or `section.key`."""
        body = cast(dict[str, Any], json.loads(self.model_dump_json()))
        for name in names:
            section, dot, key = name.partition(".")
            if dot:
                del body[section][key]
            else:
                del body[section]
        return body


SECTIONS = (
    "source",
    "schedule",
    "clock",
    "training",
    "hyper",
    "partitioning",
    "network",
    "adapting",
    "execution",
)


def affecting(*what: str) -> set[str]:
    """The settings that affect one of these ("data", "result", "nothing").

    Each is given as `key`, `section` or `section.key`. What a section affects holds for all of its
    settings, unless that is "result": then each setting says it for itself.
    """
    names: set[str] = set()
    for name, field in Config.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        if inner and _affects(field) == "result":
            affected = {_affects(setting) for setting in inner.values()}
            if affected <= set(what):
                names.add(name)
            else:
                names |= {
                    f"{name}.{k}" for k, setting in inner.items() if _affects(setting) in what
                }
        elif _affects(field) in what:
            names.add(name)
    return names


def _affects(field: Any) -> str:
    return str((field.json_schema_extra or {}).get("affects", "result"))


def build(
    given: Mapping[str, Any], changes: Mapping[str, Any] | None = None, *, encoded: bool = False
) -> Config:
    """A complete config from a nested mapping and flat changes.

    Changes look like `{"mu": 0.1, "training.lr": 0.01}`. A key without a section belongs to the
    section that has it; if several have it, the section must be named. `encoded` says that the
    samples are features of a frozen encoder already.
    """
    body = _tables(given)
    changes = dict(changes or {})
    named_now = "networks" in changes
    settle(body, changes, _usual())
    cls = find(body["method"])
    keys = _keys(cls, body)
    _apply_preset(body, cls, keys)
    stronger: list[str] = []  # than what a file says of its networks
    for key, value in changes.items():
        section, name = _place(key, keys)
        if section == "network" and not named_now:
            stronger.append(name)
        if section == "":
            body[name] = value
        else:
            body.setdefault(section, {})[name] = value
    for section in SECTIONS:
        for name in body.get(section, {}):
            if name not in keys[section]:
                raise unknown(f"key in [{section}]", name, keys[section])
    body["training"] = {**cls.traits.training, **body.get("training", {})}
    _complete(body, "partitioning", "partition", partitions.options)
    if body["networks"]:
        networks.settle(body, cls.traits.networks, stronger)
    else:
        _complete(body, "network", "model", model_options)
    _complete(body, "adapting", "adapter", adapter_options)
    method = make(body["method"], body.get("hyper", {}))
    allow(body)
    body["hyper"] = method.params()
    features = encoded or bool(body.get("encoder") and not body.get("pixels"))
    body["standardise"] = decide(body.get("standardise", "auto"), method, features)
    return _validated(body)


def _usual() -> dict[str, Any]:
    """The run's own settings as they are where nobody sets them."""
    return {name: field.default for name, field in Config.model_fields.items()}


def _validated(body: Mapping[str, Any]) -> Config:
    try:
        return Config.model_validate(body)
    except ValidationError as error:
        raise FedloomError(f"config: {explain(error)}") from None


def stored(given: Mapping[str, Any], trust: bool = False) -> Config:
    """The config that a file of a run holds, whoever wrote it.

    A file of code that it names is not executed without `trust`, unless somebody has allowed it.
    """
    if trust or trusted(given):
        return build(given)
    # The config of a run is complete, so it can be read without the method.
    return _validated(_tables(given))


def _tables(given: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a nested mapping, refused if a key is unknown or a section is no table."""
    body: dict[str, Any] = {}
    for key, value in given.items():
        if key not in Config.model_fields:
            raise unknown("key", key, Config.model_fields)
        if key in SECTIONS and not isinstance(value, Mapping):
            raise FedloomError(f"[{key}] is a table of settings, not {value!r}.")
        body[key] = dict(value) if isinstance(value, Mapping) else value
    if "format" in body:  # the config of a run; one from before this setting did without
        body.setdefault("standardise", False)
    return body


def _apply_preset(body: dict[str, Any], cls: type[_Method], keys: Mapping[str, set[str]]) -> None:
    """Put in the settings of the preset that nobody has set."""
    presets = cls.traits.presets
    if body["preset"] not in ("paper", *presets):
        raise unknown(f"preset of {body['method']}", body["preset"], ("paper", *presets))
    for key, value in presets.get(body["preset"], {}).items():
        section, name = _place(key, keys)
        body.setdefault(section, {}).setdefault(name, value)


def _complete(body: dict[str, Any], section: str, choice: str, options: Any) -> None:
    """Put in the defaults of the partition or the model, as a file would give them back."""
    complete = {}
    if body[choice] not in (None, "given"):
        complete = dict(options(body[choice]))
    complete |= body.get(section, {})
    complete = {key: value for key, value in complete.items() if value is not None}
    body[section] = json.loads(json.dumps(complete))  # a tuple becomes a list


def read(path: Path) -> dict[str, Any]:
    """Read a TOML file as a mapping."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        raise FedloomError(f"there is no file {path}.") from None
    except OSError as error:
        raise FedloomError(f"{path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise FedloomError(f"{path} is not valid TOML: it is not UTF-8.") from None
    except RecursionError:
        raise FedloomError(f"{path} is not valid TOML: it is nested too deep.") from None
    except tomllib.TOMLDecodeError as error:
        raise FedloomError(f"{path} is not valid TOML: {error}") from None


def parse_set(items: Iterable[str]) -> dict[str, Any]:
    """Read `["mu=0.1", "hidden=[64, 32]"]` as a mapping; a value that is not TOML is a text."""
    changes: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise FedloomError(f"--set wants key=value, got {item!r}.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError):
            value = text.strip()
        if isinstance(value, date | time):  # datetime is a date; no setting is any of them
            value = text.strip()
        changes[key.strip()] = value
    return changes


def _keys(cls: type[_Method], body: Mapping[str, Any]) -> dict[str, set[str]]:
    """The keys of every section, for this method, partition and model."""
    keys = {
        "": set(Config.model_fields) - set(SECTIONS),
        "source": set(Source.model_fields),
        "schedule": set(Schedule.model_fields),
        "clock": set(Clock.model_fields),
        "training": set(Training.model_fields),
        "hyper": {field.name for field in fields(cls)},  # type: ignore[arg-type]
        "partitioning": set(),
        "network": set(),
        "adapting": set(),
        "execution": set(Execution.model_fields),
    }
    if body["partition"] != "given":
        keys["partitioning"] = set(partitions.options(body["partition"]))
    if body["networks"]:
        keys["network"] = networks.keys(body["networks"])
    elif body["model"] != "given":
        keys["network"] = set(model_options(body["model"]))
    if body["adapter"] is not None:
        keys["adapting"] = set(adapter_options(body["adapter"]))
    return keys


def _place(key: str, keys: Mapping[str, set[str]]) -> tuple[str, str]:
    """The section and the name of a flat key."""
    section, dot, name = key.rpartition(".")
    if dot:
        if section not in keys:
            raise unknown("section", section, SECTIONS)
        if name not in keys[section]:
            raise unknown(f"key in [{section}]", name, keys[section])
        return section, name
    sections = [section for section, names in keys.items() if key in names]
    if not sections:
        raise nowhere(key, keys)
    if len(sections) > 1:
        places = [f"{section}.{key}" if section else f"the run's own {key}" for section in sections]
        raise FedloomError(f"{key!r} could be any of {', '.join(places)}: say which.")
    return sections[0], key


def places(key: str, given: Mapping[str, Any], changes: Mapping[str, Any]) -> list[str]:
    """Where a run that `build` would make of these has a flat key, as `section.key`; none if not.

    The run's own settings have no section in front.
    """
    body = _tables(given)
    settle(body, dict(changes), _usual())
    keys = _keys(find(body["method"]), body)
    section, dot, name = key.rpartition(".")
    sections: Iterable[str] = keys
    if dot:
        sections = [section]
    found = []
    for section in sections:
        if name in keys.get(section, ()):
            found.append(f"{section}.{name}".removeprefix("."))
    return found
