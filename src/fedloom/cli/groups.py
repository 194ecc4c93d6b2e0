"""Options that several commands share, in groups.

A command marked with `grouped` takes a group as one parameter, and users see its options one by
one, where the group stands among the command's parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Any, get_type_hints

from .options import (
    AdapterOption,
    AsJson,
    BadFile,
    Clients,
    Data,
    DeviceOption,
    EncoderOption,
    Executor,
    Model,
    Partition,
    Precision,
    Quiet,
    Root,
    Rounds,
    Set,
    Workers,
    execution,
    given,
)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Turn a command that takes groups into one that takes their options."""
    parameters = signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {}
    options = []
    for name, parameter in parameters.items():
        if is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            options += _options_of(parameter.annotation)
        else:
            options.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def ungrouped(**values: Any) -> None:
        arguments = dict(values)
        for name, group in groups.items():
            members = {}
            for field in fields(group):
                members[field.name] = arguments.pop(field.name)
            arguments[name] = group(**members)
        command(**arguments)

    plain = signature(command).replace(parameters=options)
    ungrouped.__signature__ = plain  # type: ignore[attr-defined]
    return ungrouped


def _options_of(group: Any) -> list[Parameter]:
    """The fields of a group as parameters of a command."""
    types = get_type_hints(group, include_extras=True)
    options = []
    for field in fields(group):
        option = Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
        )
        options.append(option)
    return options


@dataclass(frozen=True)
class World:
    """What is learnt from: the data, who has which of them, the network, and for how long."""

    data: Data = None
    partition: Partition = None
    model: Model = None
    adapter: AdapterOption = None
    encoder: EncoderOption = None
    clients: Clients = None
    rounds: Rounds = None

    def start(self, **others: Any) -> dict[str, Any]:
        """What a config starts from: the options that the user has set."""
        return given(
            data=self.data,
            partition=self.partition,
            model=self.model,
            adapter=self.adapter,
            encoder=self.encoder,
            clients=self.clients,
            **others,
        )


@dataclass(frozen=True)
class Machine:
    """How runs are executed, and where their data lie."""

    precision: Precision = None
    executor: Executor = None
    workers: Workers = None
    device: DeviceOption = None
    data_root: Root = None

    def execution(self, otherwise: str | None = None) -> dict[str, Any]:
        """The settings of the executor, which is `otherwise` unless the user names one."""
        return execution(self.executor or otherwise, self.workers, self.device)

    def changes(self, settings: dict[str, Any], **others: Any) -> dict[str, Any]:
        """The settings given with `--set`, with these options and others on top."""
        return {
            **settings,
            **self.execution(settings.get("executor")),
            **given(precision=self.precision, data_root=self.data_root, **others),
        }


@dataclass(frozen=True)
class Reading:
    """How the files of a data set are read."""

    set_: Set = None
    data_root: Root = None
    on_bad_file: BadFile = None

    def changes(self) -> dict[str, Any]:
        """The settings given with `--set`, with the other options on top."""
        from ..engine.config import parse_set

        changes = parse_set(self.set_ or [])
        return changes | given(data_root=self.data_root, on_bad_file=self.on_bad_file)


@dataclass(frozen=True)
class Printing:
    """What a command prints."""

    quiet: Quiet = False
    as_json: AsJson = False

    @property
    def silent(self) -> bool:
        """Whether nothing is printed while the work goes on."""
        return self.quiet or self.as_json
