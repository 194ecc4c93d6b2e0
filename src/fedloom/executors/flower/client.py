"""The `ClientApp`: a site does one task per message, with its own data and its own memory."""

from __future__ import annotations

import json
import logging
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
from ...core.errors import FedloomError
from ...core.memory import keep_freed_memory
from ...data.catalogue import load
from ...data.dataset import Dataset, with_classes
from ...data.federation import Client, Federation, federate
from ...engine.config import Config
from ...engine.setup import Setup, source_of
from ..base import execute
from . import store
from .own import with_network
from .settings import Settings, parse
from .sites import NONE, alone, describe, last_part
from .store import Versions
from .wire import DESCRIBE, TYPES, read_order, read_task, write_refusal, write_result
from .words import without_paths

log = logging.getLogger("flwr")


@dataclass
class Home:
    """What a client has at its site."""

    client: int
    worker: ClientWorker  # it holds this client's data; all other clients are empty
    memory: Path  # the folder in which it keeps states
    image: tuple[int, ...] | None = None  # the shape of its images, if an encoder reads them


def answer(message: Message, home: Home) -> RecordDict:
    """Do what a message asks for. All changes happen at the end, in one step, or not at all."""
    if message.metadata.message_type == DESCRIBE:
        about = describe(home.worker.federation, home.client, home.image).encode()
        return RecordDict({"site": ConfigRecord({"about": about})})
    order = read_order(message.content)
    if order.client != home.client:
        raise FedloomError(f"this is site {home.client}, the message is for site {order.client}.")
    versions = Versions(home.memory, order.experiment, home.client)
    trains = order.kind == "client"
    if trains:
        versions.check(order.version)
    task = read_task(message.content, order, versions.get(order.since))
    result = execute(home.worker, task)
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
        # As every executor: numbers must not depend on how many cores a site has.
        torch.set_num_threads(1)
        keep_freed_memory()
        try:
            content = answer(message, find(context))
        except Exception as error:
            log.warning("the message is refused", exc_info=True)  # the whole story stays here
            content = write_refusal(_reason(error, dict(context.node_config)))
        return Message(content, reply_to=message)

    app.train(mods=list(mods))(handle)
    app.evaluate()(handle)
    for kind in (TYPES["hello"], DESCRIBE):
        app.query(kind.partition(".")[2])(handle)
    return app


def _reason(error: Exception, node: dict[str, Any]) -> str:
    """What the server is told of an error: no traceback, and no path of this site."""
    text = str(error) if isinstance(error, FedloomError) else f"{type(error).__name__}: {error}"
    places = {str(Path.home()): "the home folder", str(Path.cwd()): "the working folder"}
    for name in ("data", "data-root", "state"):
        path = str(node.get(name, ""))
        places[path] = places[str(Path(path).expanduser().resolve())] = f"<{name}>"
    return without_paths(text, places)


def from_config(context: Context) -> Home:
    """The client that run config and node config describe.

    In the node config, `partition-id` says which client it is, `domain` its domain, `state` where
    it keeps its memory and `device` where it computes, if that is not where the run says. `data`
    names a file or folder with the site's own samples; without it, the site takes its share of the
    run's data set. `network` names the site's own network, where the method lets clients have
    different ones: a model's name, or a table with options. Where a site writes, and whether it
    runs code that is no part of fedloom, is never up to the run config.
    """
    node = dict(context.node_config)
    if "partition-id" not in node:
        raise FedloomError(
            'this site does not know its number: start it with --node-config "partition-id=0 ...".'
        )
    client = int(node["partition-id"])
    run = json.dumps(dict(context.run_config), sort_keys=True)
    path = str(node.get("data", ""))
    place = Place(
        path,
        str(node.get("domain", "")),
        str(node.get("data-root", "")),
        str(node.get("device", "")),
        node.get("method-files") is True,
        str(node.get("network", "")),
        client if path else None,
    )
    setup = _workplace(run, place)
    worker, federation = setup.worker, setup.federation
    if path:
        federation = _among(federation, client, setup.config)
    if not 0 <= client < len(federation):
        raise FedloomError(
            f"there is no client {client}: the federation has {len(federation)}, counted from 0."
        )
    worker.federation = alone(federation, client)
    memory = Path(str(node.get("state") or store.root())).expanduser()
    image = None
    if setup.config.encoder:
        image = tuple(setup.images.data.x.shape[1:])
    return Home(client, worker, memory, image)


@dataclass(frozen=True)
class Place:
    """What a site's node config says of its work."""

    path: str
    domain: str
    root: str
    device: str
    files: bool
    network: str
    client: int | None  # the number of a site with samples of its own


@lru_cache(maxsize=1)
def _workplace(run: str, place: Place) -> Setup:
    """Model and data, loaded once per process: a simulation plays one client after another."""
    config, settings = parse(json.loads(run), place.files)
    execution = config.execution.model_copy(update={"data_root": place.root or None})
    config = config.model_copy(update={"execution": execution})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they would end up in the server's log
        images, domain = None, None
        if place.path:
            images = _samples(config, settings, place.path, place.domain)
            domain = images.clients[0].domain
        config = with_network(config, place.client, domain, place.network)
        return Setup.from_config(config, images=images, device=place.device or settings.device)


def _samples(config: Config, settings: Settings, path: str, domain: str) -> Federation:
    """A site's own samples, as a federation of one."""
    data = load(path, source_of(config), root=config.execution.data_root, seed=config.seed)
    if data.kind == "text" and not config.source.hashed:
        raise FedloomError(
            "sites with their own texts need source.hashed = true: they share no list of words."
        )
    data = unplaced(data)
    if settings.classes:
        names = tuple(c.strip() for c in settings.classes.split(","))
        data = with_classes(data, names, "class among those agreed")
    if domain:
        data = replace(data, domain=torch.zeros_like(data.domain), domains=(domain,))
    federation = federate(
        data,
        "iid",
        clients=1,
        seed=config.seed,
        validation=config.validation,
        split=config.split,
        merged_share=config.merged_share,
    )
    only_domain = data.domains[0] if len(data.domains) == 1 else None
    client = replace(federation.clients[0], domain=only_domain)
    return replace(federation, clients=(client,))


def unplaced(data: Dataset) -> Dataset:
    """The same samples under names that do not tell where at this site they lie.

    Data without domains have one, which has the name of the data.
    """
    short = last_part(data.name)
    domains = []
    for name in data.domains:
        domains.append(short if name == data.name else name)
    return replace(data, name=short, domains=tuple(domains))


def _among(federation: Federation, client: int, config: Config) -> Federation:
    """A federation of one as client `client` of many."""
    if config.clients is None:
        raise FedloomError("sites with their own data must know how many they are: set clients.")
    clients = [Client(NONE, NONE, NONE)] * config.clients
    if 0 <= client < config.clients:
        clients[client] = federation.clients[0]
    return replace(federation, clients=tuple(clients))


app = client_app()
