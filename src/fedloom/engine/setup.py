"""From a config, or from the folder of a run, to everything that a run works with.

This is the only place that puts data, network, method and worker together. Training, resuming,
exported models, views of features, both sides of a Flower federation and the FLOP count all start
here, so they all see the same federation and the same first weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..client.context import ClientContext
from ..client.memory import without_memory
from ..client.scaling import without_scale
from ..client.worker import ClientWorker
from ..core.device import find as find_devices
from ..core.errors import FedloomError
from ..core.local import Predictor
from ..core.lookup import make
from ..core.method import Method
from ..core.payload import Payload
from ..core.rng import key
from ..core.user_files import refuse_untrusted
from ..data.catalogue import Progress, Source
from ..data.catalogue import load as load_data
from ..data.dataset import Dataset
from ..data.described import listed
from ..data.federation import Federation, federate
from ..data.readers.fitting import Cut
from ..executors import make as make_executor
from ..executors.base import Executor
from . import networks
from .building import networks_of
from .checkpoint import Checkpoint, Store
from .config import Config
from .folder import Run
from .standardising import whose


@dataclass
class Setup:
    """What a config describes, ready to work."""

    config: Config
    method: Method
    images: Federation  # samples as they are dealt out
    federation: Federation  # samples as the network takes them: features if there is an encoder
    worker: ClientWorker

    @staticmethod
    def from_config(
        config: Config,
        *,
        images: Federation | None = None,
        federation: Federation | None = None,
        method: Method | None = None,
        model: nn.Module | Sequence[nn.Module | None] | None = None,
        progress: Progress | None = None,
        device: str | None = None,
    ) -> Setup:
        """Make everything that the config describes; what is given is used instead.

        `images` still go through the config's encoder, a `federation` is used as it stands.
        `progress` hears how far the encoder has got.
        """
        if device is not None:
            config = config.on(device)
        devices = find_devices(config.execution.device)  # refuse one that is not there at once
        named = config.model_dump(include={"encoder", "model", "network", "networks"})
        refuse_untrusted(named, "the config")
        if config.partition == "given" and images is None and federation is None:
            raise _made_in_python("federation")
        if networks.GIVEN in config.model.split(",") and model is None:
            raise _made_in_python("model")
        if federation is None:
            images = images or deal(config)
            federation = encoded(config, images, progress)
        if method is None:
            refuse_untrusted({"method": config.method}, "the config")
            method = make(config.method, config.hyper)
        worker = ClientWorker(
            method,
            federation,
            networks_of(config, federation, model),
            config.training,
            config.seed,
            devices=devices,
            standardise=whose(config.standardise, method, federation.data),
        )
        return Setup(config, method, images or federation, federation, worker)

    def described(self) -> dict[str, Any]:
        """What the clients have, as plain values; their networks too, where these differ."""
        facts = self.federation.describe()
        inside = len(self.federation) - len(listed(facts))  # too many are not listed
        for k, member in enumerate([*listed(facts), *facts.get("outside", [])], inside):
            named = self.worker.of(k).named
            if named is not None:
                member["network"] = named.model
        return facts

    def executor(self) -> Executor:
        """Start the executor that the config names."""
        execution = self.config.execution
        return make_executor(execution.executor, self.worker, execution.workers)


@dataclass
class Trained:
    """A run opened again: its set-up, what the server knows and what clients remember.

    Nothing in the run's folder is changed.
    """

    run: Run
    setup: Setup
    server: Payload
    round: int
    store: Store

    @staticmethod
    def from_folder(
        folder: str | Path | Run,
        *,
        images: Federation | None = None,
        federation: Federation | None = None,
        progress: Progress | None = None,
        trust: bool = False,
        device: str = "cpu",
    ) -> Trained:
        """Open the run in a folder at its last checkpoint; the rest is as in `from_config`.

        `trust` allows a method file that the folder names to be executed. The `device` may be
        another than the one that the run was computed on.
        """
        run = folder if isinstance(folder, Run) else Run.load(folder, trust)
        if run.federation.get("at_sites") and federation is None and images is None:
            raise FedloomError(
                f"{run.folder} is a federation's run: samples and what clients remember are at the "
                "sites, so nobody can look into its models here; its common model can be exported."
            )
        setup = Setup.from_config(
            run.config, images=images, federation=federation, progress=progress, device=device
        )
        checkpoint, store = last_checkpoint(run)
        assert checkpoint.server is not None
        setup.worker.load()
        setup.worker.adopt(0, setup.worker.arrived(checkpoint.server))
        return Trained(run, setup, checkpoint.server, checkpoint.round, store)

    def state(self, client: int) -> Payload:
        """What a client remembers, on the worker's device, as its method knows it."""
        state = self.setup.worker.arrived(self.store.get(client))
        return without_memory(without_scale(state))

    def personal(self, client: int) -> Predictor:
        """A client's own model, which becomes the resident one."""
        method, worker = self.setup.method, self.setup.worker.of(client)
        local = ClientContext(worker, client, self.round)
        worker.adopt(client, worker.arrived(self.server))
        down = worker.arrived(method.download(self.server, client))
        # A method may train before it predicts; the keys are those of an evaluation.
        with worker.device.seeded(key(worker.seed, self.round, client, "before")):
            predict = method.personal(down, self.state(client), local)
            local.settle_statistics()
        return predict

    def common(self) -> Predictor | None:
        """The one model for all, if the method has one; it becomes the resident one."""
        worker = self.setup.worker
        return self.setup.method.common(worker.arrived(self.server), worker)


def last_checkpoint(run: Run) -> tuple[Checkpoint, Store]:
    """A run's last checkpoint and the store that has its clients' states; an error without one."""
    if run.folder is None:
        raise FedloomError("this run has no folder, so it has no checkpoint.")
    store = Store(run.folder / "checkpoint")
    checkpoint = store.load()
    if checkpoint.server is None:
        raise FedloomError(f"{run.folder} has no checkpoint.")
    return checkpoint, store


def widened(server: Payload, method: Method, clients: int, more: int = 1) -> Payload:
    """The server with room for so many clients more."""
    wider = {}
    for name in ("known", "last_rounds", "last_losses", *(method.traits.by_client or ())):
        if name not in server:
            continue
        rows = server.tensor(name)
        if len(rows) != clients:
            raise FedloomError(
                f"{method.name}: the server's {name!r} has {len(rows)} entries "
                f"for {clients} clients."
            )
        wider[name] = torch.cat([rows, rows.new_zeros(more, *rows.shape[1:])])
    return server.replace(**wider)


def source_of(config: Config) -> Source:
    """How the samples are read: images of several sizes as the config's encoders cut them."""
    if not config.encoder:
        return config.source

    def cut() -> Cut:
        from ..encoders import images as image_encoders

        return image_encoders(config.encoder or "").cut

    return config.source.cut_by(cut)


def cut_of(config: Config, shape: tuple[int, ...]) -> dict[str, Any] | None:
    """How the encoders cut images of several sizes that now have this shape; None if uncut."""
    cut = source_of(config).fit
    if not callable(cut) or shape[2:] != (cut().side, cut().side):
        return None
    return asdict(cut())


def deal(config: Config, progress: Progress | None = None) -> Federation:
    """Load the data set that a config names and deal its samples out to clients."""
    data = load_data(
        config.data,
        source_of(config),
        root=config.execution.data_root,
        seed=config.seed,
        progress=progress,
    )
    if data.kind != "segmentation" and len(data.classes) == 1:
        warnings.warn(
            f"all samples of {data.name} are of one class, {data.classes[0]!r}: there is nothing "
            "to learn.",
            stacklevel=2,
        )
    return deal_out(data, config)


def deal_out(data: Dataset, config: Config) -> Federation:
    """The data among the clients, as the config says."""
    return federate(
        data,
        config.partition,
        clients=config.clients,
        seed=config.seed,
        validation=config.validation,
        split=config.split,
        merged_share=config.merged_share,
        hold_out=config.hold_out,
        new_clients=config.new_clients,
        **config.partitioning,
    )


def encoded(config: Config, images: Federation, progress: Progress | None = None) -> Federation:
    """The federation with features in place of images, if the config names an encoder."""
    if config.encoder:
        from ..encoders import images as image_encoder  # most runs have none: do not load them

        return images.encode(
            image_encoder(config.encoder),
            views=config.views,
            augment=config.training.augment,
            pixels=config.pixels,
            progress=progress,
            device=find_devices(config.execution.device)[0],
        )
    if config.views > 1 or config.pixels:
        raise FedloomError("views and pixels need a frozen encoder: name one with --encoder.")
    return images


def _made_in_python(what: str) -> FedloomError:
    return FedloomError(
        f"this run was made with its own {what}, which only the Python script that started it has: "
        "continue or open it from there."
    )
