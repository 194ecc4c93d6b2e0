"""The settings of a run: strict, complete, the same as a TOML file, as flags and as keyword arguments."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .. import models
from ..client.training import Training
from ..core.errors import FedloomError, explain, unknown
from ..core.lookup import find, make
from ..core.method import Method as _Method
from ..core.settings import Count, Share, setting
from ..data import partitions
from ..data.catalogue import MODEL_FOR, Source, has_clients, kind_of
from ..metrics.registry import DEFAULT
from .schedule import Schedule

FORMAT = 1  # of run folders; raised when a folder written before can no longer be read


class Execution(BaseModel):
    """Where and how fast; no setting here changes a result."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    executor: str = setting(
        "inplace",
        "Inplace (one process), pool (workers), auto (the quicker), vmap (small heads) or debug.",
    )
    workers: Count = setting(2, "Processes of the pool.")
    data_root: str | None = setting(None, "Where known data sets lie; None: FEDLOOM_DATA.")


class Config(BaseModel):
    """Everything that says what a run is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str = setting("fedavg", "A name (`fedloom methods`) or a Python file.")
    preset: str = setting(
        "paper",
        "A method's settings as its paper has them, or `official`: as its authors' code has them.",
    )
    data: str = setting("digits4", "A name (`fedloom data list`) or a path.")
    partition: str = setting(
        "auto", "How samples are dealt out; auto: a PFLlib folder as it stands, else by domains."
    )
    encoder: str | None = setting(
        None, "Frozen encoders by name, with commas between them: clients get features, not images."
    )
    views: Count = setting(
        1, "Cached views per image, by the augmentations of [training], where there is an encoder."
    )
    pixels: bool = setting(False, "Keep the encoder's input in front of its features.")
    model: str = setting(
        "auto",
        "The network; auto: what fits the data (cnn, mlp, fasttext or unet; linear on features).",
    )
    clients: Count | None = setting(None, "How many; by default the partition's own number.")
    seed: int = setting(0, "Everything random comes from it.")
    validation: Share = setting(
        0.1, "Share of each client's training data held out to choose rounds."
    )
    split: Literal["official", "merged"] = setting(
        "official", "The data set's own test part, or train and test merged and cut."
    )
    merged_share: Annotated[float, Field(gt=0, lt=1)] = setting(
        0.75, "Of each client's data, where train and test are merged."
    )
    format: int = setting(FORMAT, "Of the run folder.")
    source: Source = Source()
    schedule: Schedule = Schedule()
    training: Training = Training()
    hyper: dict[str, Any] = setting({}, "The method's own settings.")
    partitioning: dict[str, Any] = {}
    network: dict[str, Any] = setting({}, "Options of the model.")
    execution: Execution = Execution()

    def what(self) -> dict[str, Any]:
        """The settings that decide results, as plain values: not where the run goes on, nor how often it is saved."""
        left_out: Any = {"execution": True, "format": True, "schedule": {"checkpoint_every"}}
        if self.schedule.metric == DEFAULT:  # so that runs made before the setting keep their hash
            left_out["schedule"].add("metric")
        body = self.model_dump(mode="json", exclude=left_out)
        return cast(dict[str, Any], json.loads(json.dumps(body, sort_keys=True)))

    def hash(self) -> str:
        """Names what is computed: equal for runs whose results must be equal."""
        return hashlib.sha256(json.dumps(self.what(), sort_keys=True).encode()).hexdigest()[:16]

    def toml(self) -> str:
        """The config as a file that `fedloom run FILE` runs again."""
        body = self.model_dump(mode="json", exclude_none=True)
        plain = {k: v for k, v in body.items() if not isinstance(v, dict)}
        tables = {k: v for k, v in body.items() if isinstance(v, dict) and v}
        lines = [f"{k} = {_toml(v)}" for k, v in plain.items()]
        for name, table in tables.items():
            lines += [
                "",
                f"[{name}]",
                *(f"{k} = {_toml(v)}" for k, v in table.items() if v is not None),
            ]
        return "\n".join(lines) + "\n"


SECTIONS = ("source", "schedule", "training", "hyper", "partitioning", "network", "execution")


def build(given: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Config:
    """A complete config from a (nested) mapping and flat changes such as `{"mu": 0.1, "training.lr": 0.01}`.

    A flat key without a section belongs to whichever section knows it; if several do, the section must be named.
    """
    body = {k: dict(v) if isinstance(v, Mapping) else v for k, v in given.items()}
    for key in body:
        if key not in Config.model_fields:
            raise unknown("key", key, Config.model_fields)
    for section in SECTIONS:
        if not isinstance(body.get(section, {}), dict):
            raise FedloomError(f"[{section}] is a table of settings, not {body[section]!r}.")
    changes = dict(changes or {})
    choices = ("method", "preset", "partition", "model")  # these decide which settings there are
    body |= {k: changes.pop(k) for k in choices if k in changes}
    named = {k: body.get(k, Config.model_fields[k].default) for k in choices}
    root = changes.get("data_root", body.get("execution", {}).get("data_root"))
    data = str(changes.get("data", body.get("data", Config.model_fields["data"].default)))
    if named["partition"] == "auto":
        body["partition"] = named["partition"] = "natural" if has_clients(data, root) else "domains"
    if named["model"] == "auto":
        flat = changes.get(
            "flatten", changes.get("source.flatten", body.get("source", {}).get("flatten"))
        )
        encoder = changes.get("encoder", body.get("encoder"))
        fitting = "linear" if encoder else MODEL_FOR["vector" if flat else kind_of(data, root)]
        body["model"] = named["model"] = fitting
    for key, registry in (("partition", partitions.PARTITIONS), ("model", models.MODELS)):
        if named[key] != "given":
            body[key] = named[key] = registry.spelling(str(named[key]))
    cls = find(str(named["method"]))
    known = _known(cls, named)
    if named["preset"] not in ("paper", *cls.traits.presets):
        raise unknown(
            f"preset of {named['method']}", named["preset"], ("paper", *cls.traits.presets)
        )
    for key, value in cls.traits.presets.get(named["preset"], {}).items():
        section, name = _place(key, known)
        body.setdefault(section, {}).setdefault(name, value)
    for key, value in changes.items():
        section, name = _place(key, known)
        if section == "":
            body[name] = value
        else:
            body.setdefault(section, {})[name] = value
    for section in SECTIONS:
        for name in body.get(section, {}):
            if name not in known[section]:
                raise unknown(f"key in [{section}]", name, known[section])
    body["training"] = {**cls.traits.training, **body.get("training", {})}
    for section, source in (("partitioning", partitions), ("network", models)):
        name = named["partition" if section == "partitioning" else "model"]
        defaults = {} if name == "given" else source.options(name)
        complete = {k: v for k, v in {**defaults, **body.get(section, {})}.items() if v is not None}
        body[section] = json.loads(
            json.dumps(complete)
        )  # as a file would give it: a tuple is a list
    body["hyper"] = make(str(named["method"]), body.get("hyper", {})).params()
    try:
        return Config.model_validate(body)
    except ValidationError as error:
        raise FedloomError(f"config: {explain(error)}") from None


def read(path: Path) -> dict[str, Any]:
    """A TOML file as a mapping."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise FedloomError(f"there is no file {path}.") from None
    except tomllib.TOMLDecodeError as error:
        raise FedloomError(f"{path} is not valid TOML: {error}") from None


def parse_set(items: Iterable[str]) -> dict[str, Any]:
    """`["mu=0.1", "hidden=[64, 32]"]` as a mapping; values are TOML, anything else is text."""
    changes: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise FedloomError(f"--set wants key=value, got {item!r}.")
        try:
            changes[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            changes[key.strip()] = text.strip()
    return changes


def _known(cls: type[_Method], named: Mapping[str, Any]) -> dict[str, set[str]]:
    """The keys of every section, for this method, partition and model."""
    return {
        "": {k for k in Config.model_fields if k not in SECTIONS},
        "source": set(Source.model_fields),
        "schedule": set(Schedule.model_fields),
        "training": set(Training.model_fields),
        "hyper": {f.name for f in fields(cls)},  # type: ignore[arg-type]
        "partitioning": set()
        if named["partition"] == "given"
        else set(partitions.options(named["partition"])),
        "network": set() if named["model"] == "given" else set(models.options(named["model"])),
        "execution": set(Execution.model_fields),
    }


def _place(key: str, known: Mapping[str, set[str]]) -> tuple[str, str]:
    section, dot, name = key.rpartition(".")
    if dot:
        if section not in known:
            raise unknown("section", section, SECTIONS)
        if name not in known[section]:
            raise unknown(f"key in [{section}]", name, known[section])
        return section, name
    homes = [s for s, names in known.items() if key in names]
    if not homes:
        raise _nowhere(key, known)
    if len(homes) > 1:
        said = ", ".join(f"{s}.{key}" if s else f"the run's own {key}" for s in homes)
        raise FedloomError(f"{key!r} could be any of {said}: say which.")
    return homes[0], key


def _nowhere(key: str, known: Mapping[str, set[str]]) -> FedloomError:
    """The error for a key that this run has not: who has it, or what is near."""
    from .settings import owners  # it reads all methods, which only this needs

    if found := owners(key):
        return FedloomError(f"{key!r} is no setting of this run; it belongs to {', '.join(found)}.")
    names = set().union(*known.values())
    if get_close_matches(key, names, n=1, cutoff=0.5):
        return unknown("key", key, names)
    own = ", ".join(sorted(known["hyper"] | known["partitioning"] | known["network"])) or "none"
    return FedloomError(
        f"unknown key {key!r}; method, partition and model have: {own}; `fedloom settings` lists all others."
    )


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(k))} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
