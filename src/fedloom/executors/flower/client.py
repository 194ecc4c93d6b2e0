"""The `ClientApp`: a site does one task per message, with its own data and its own memory."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from ...client.worker import ClientWorker
from ...core.errors import FedloomError, unknown
from ...core.memory import keep_freed_memory
from ...data.catalogue import load
from ...data.federation import Client, Dataset, Federation, federate
from ...engine.config import Config
from ...engine.setup import Setup
from ..base import execute
from . import store
from .settings import Settings, parse
from .sites import NONE, alone, describe
from .store import Versions
from .wire import DESCRIBE, TYPES, read_order, read_task, write_refusal, write_result


@dataclass
class Home:
    """What a client has at its place."""

    client: int
    site: ClientWorker  # with its own data; the others' are empty
    memory: Path  # the folder where it keeps states


def answer(message: Message, home: Home) -> RecordDict:
    """Do what a message asks for. What it changes, it changes at the end, in one step, or not at all."""
    if message.metadata.message_type == DESCRIBE:
        return RecordDict(
            {"site": ConfigRecord({"about": describe(home.site.federation, home.client).encode()})}
        )
    order = read_order(message.content)
    if order.client != home.client:
        raise FedloomError(f"this is site {home.client}, the message is for site {order.client}.")
    versions = Versions(home.memory, order.experiment, home.client)
    trains = order.kind == "client"
    if trains:
        versions.check(order.version)
    task = read_task(message.content, order, versions.get(order.since))
    result = execute(home.site, task)
    reply = write_result(order, result)
    if trains:
        versions.put(order.version, order.since, result.state)
    return reply


def client_app(
    home: Callable[[Context], Home] | None = None, mods: Sequence[Any] = ()
) -> ClientApp:
    """A `ClientApp` for any method. `mods` are Flower's, applied to training messages."""
    find = home or from_config
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        torch.set_num_threads(
            1
        )  # as every executor: numbers must not depend on how many cores a site has
        keep_freed_memory()
        try:
            content = answer(message, find(context))
        except FedloomError as error:
            content = write_refusal(str(error))
        return Message(content, reply_to=message)

    app.train(mods=list(mods))(handle)
    app.evaluate()(handle)
    for kind in (TYPES["hello"], DESCRIBE):
        app.query(kind.partition(".")[2])(handle)
    return app


def from_config(context: Context) -> Home:
    """The place that run config and node config describe.

    A node config with `data` (a file or folder) names the site's own samples; without, the site takes its share of the
    run's data set. `partition-id` says which client it is; `domain` its domain; `state` where it keeps its memory.
    """
    node = dict(context.node_config)
    if "partition-id" not in node:
        raise FedloomError(
            'this site does not know its number: start it with --node-config "partition-id=0 ...".'
        )
    client = int(node["partition-id"])
    run = json.dumps(dict(context.run_config), sort_keys=True)
    own = str(node.get("data", ""))
    config, settings, site, federation = _workplace(
        run, own, str(node.get("domain", "")), str(node.get("data-root", ""))
    )
    if own:
        federation = _among(federation, client, config)
    if not 0 <= client < len(federation):
        raise FedloomError(
            f"there is no client {client}: the federation has {len(federation)}, counted from 0."
        )
    site.federation = alone(federation, client)
    return Home(
        client, site, Path(str(node.get("state") or settings.state or store.root())).expanduser()
    )


@lru_cache(maxsize=1)
def _workplace(
    run: str, own: str, domain: str, root: str
) -> tuple[Config, Settings, ClientWorker, Federation]:
    """Model and data, made once per process; a simulation's worker plays one client after another."""
    config, settings = parse(json.loads(run))
    if root:
        config = config.model_copy(
            update={"execution": config.execution.model_copy(update={"data_root": root})}
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the server's log is no place for a site's notes
        images = _own(config, settings, own, domain) if own else None
        setup = Setup.from_config(config, images=images)
    return config, settings, setup.worker, setup.federation


def _own(config: Config, settings: Settings, path: str, domain: str) -> Federation:
    """A site's own samples, as a federation of one."""
    data = load(path, config.source, root=config.execution.data_root, seed=config.seed)
    if data.kind == "text" and not config.source.hashed:
        raise FedloomError(
            "sites with texts of their own need source.hashed = true: they share no list of words."
        )
    if settings.classes:
        data = with_classes(data, tuple(c.strip() for c in settings.classes.split(",")))
    if domain:
        data = replace(data, domain=torch.zeros_like(data.domain), domains=(domain,))
    made = federate(
        data,
        "iid",
        clients=1,
        seed=config.seed,
        validation=config.validation,
        split=config.split,
        merged_share=config.merged_share,
    )
    only = data.domains[0] if len(data.domains) == 1 else None
    return replace(made, clients=(replace(made.clients[0], domain=only),))


def _among(federation: Federation, client: int, config: Config) -> Federation:
    """A federation of one as client `client` of many."""
    if config.clients is None:
        raise FedloomError("sites with data of their own must know how many they are: set clients.")
    empty = Client(NONE, NONE, NONE)
    own = federation.clients[0]
    return replace(
        federation, clients=tuple(own if k == client else empty for k in range(config.clients))
    )


def with_classes(data: Dataset, names: tuple[str, ...]) -> Dataset:
    """The same samples with their classes numbered as in `names`, which may hold more of them."""
    for name in data.classes:
        if name not in names:
            raise unknown("class among those agreed", name, names)
    number = torch.tensor([names.index(name) for name in data.classes])
    return replace(data, y=number[data.y], classes=names)


app = client_app()
