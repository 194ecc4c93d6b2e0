"""What is asked about: a federation for every seed, and the config of a run on it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...core.errors import FedloomError
from ...core.files import sha256
from ...core.method import Trouble
from ...data.federation import Federation
from ...engine.config import Config, build
from ...engine.setup import encoded
from ...models import options as model_options
from ..plan import Dealer, Given, described
from .rehearsal import rehearsal

WORTHWHILE = 20  # steps of a client in a round
MOST_EPOCHS = 5


@dataclass
class World:
    """Data and settings of every run.

    `given` and `changes` are what a config is built from (see `engine.config.build`). Without a
    `federation` of the user's own, every seed deals the data out anew.
    """

    given: Mapping[str, Any]
    changes: dict[str, Any] = field(default_factory=dict)
    federation: Federation | None = None
    chosen: list[str] = field(default_factory=list)  # settings that `adapt` has added: `epochs=5`
    _dealer: Dealer = field(default_factory=Dealer)

    @staticmethod
    def of(federation: Federation, given: Mapping[str, Any], changes: dict[str, Any]) -> World:
        """The world of a federation that was made in Python."""
        return World(described(federation, given), changes, federation)

    def copy(self) -> World:
        """The same data with settings that can be changed apart."""
        return replace(self, changes=dict(self.changes), chosen=list(self.chosen))

    def config(self, method: str, seed: int, rounds: int = 1, step: int = 1) -> Config:
        """The config of a run with test data. How long it is, is not for the user to say."""
        length = {"schedule.rounds": rounds, "schedule.eval_every": step, "schedule.patience": None}
        return build({**self.given, "method": method, "seed": seed}, {**self.changes, **length})

    def real(self, seed: int) -> Federation:
        """The federation with its test samples."""
        if self.federation is not None:
            return self.federation
        return self._dealer(self.config("fedavg", seed))

    def rehearsal_config(self, method: str, seed: int, rounds: int, step: int) -> Config:
        """The config of a run without test data, which only `rehearsal` can be used with."""
        config = self.config(method, seed, rounds, step)
        clients = len(self.real(seed))
        given = {"partition": "given", "partitioning": {}, "clients": clients}
        return config.model_copy(update=given)

    def rehearsal(self, seed: int) -> Federation:
        """The federation without its test samples."""
        real = self.real(seed)
        return rehearsal(real, self.config("fedavg", seed).validation, seed)

    def encoded(self, seed: int) -> Federation:
        """The federation as the network sees it: with features if there is an encoder."""
        return encoded(self.config("fedavg", seed), self.real(seed))

    def dealer(self) -> Dealer:
        """What gives runs with test data their federation."""
        if self.federation is None:
            return self._dealer
        return Given(self.real)

    def refuse_unsuitable(self, seed: int) -> None:
        """Refuse data about which there is nothing to decide here."""
        real = self.real(seed)
        if real.data.kind == "segmentation":
            raise FedloomError(
                f"advise is for data with a class per sample, and {real.data.name} has maps; "
                "use `fedloom compare` for these."
            )
        if len(real) < 2:
            raise FedloomError(
                f"{real.data.name} has a single client, and one alone cannot federate: say "
                "--clients, or have a folder for each site."
            )
        if not any(len(client.test) for client in real.clients):
            raise FedloomError(
                f"{real.data.name} has no test samples to measure a verdict on; --set split=merged "
                "takes some of the others."
            )

    def adapt(self, troubles: Sequence[Trouble], seed: int) -> list[str]:
        """Choose settings that the user has left open to suit the data, and say which and why."""
        config = self.config("fedavg", seed)
        reasons = []
        if "domains" in troubles and self._lacks_batchnorm(config):
            self._choose("network", "norm", True)
            reasons.append(
                "Domains look different, so the network has BatchNorm (--set norm=true), which "
                "methods for domains build on."
            )
        epochs = self._epochs(config, seed)
        if epochs > 1 and self._open("training", "epochs") and self._open("training", "steps"):
            self._choose("training", "epochs", epochs)
            reasons.append(
                f"Clients have few batches, so each goes through its samples {epochs} times in a "
                f"round (--set epochs={epochs})."
            )
        return reasons

    def _lacks_batchnorm(self, config: Config) -> bool:
        """Whether the network could have BatchNorm, and nobody has said whether it should."""
        if config.model == "given":
            return False
        off_by_default = model_options(config.model).get("norm") is False
        return off_by_default and self._open("network", "norm")

    def _epochs(self, config: Config, seed: int) -> int:
        """How many epochs give a client of median size a round that is worth its traffic."""
        sizes = [len(client.train) for client in self.real(seed).clients]
        steps = max(1, config.training.per_epoch(int(np.median(sizes))))
        return min(MOST_EPOCHS, math.ceil(WORTHWHILE / steps))

    def _open(self, section: str, name: str) -> bool:
        """Whether the user has said nothing about a setting."""
        said = {name, f"{section}.{name}"} & set(self.changes)
        return not said and name not in self.given.get(section, {})

    def _choose(self, section: str, name: str, value: bool | int) -> None:
        self.changes[f"{section}.{name}"] = value
        self.chosen.append(f"{name}={json.dumps(value)}")

    def fingerprint(self, seed: int) -> str:
        """What names the samples and settings: equal for questions with the same answer."""
        config = self.config("fedavg", seed)
        real = self.real(seed)
        about = [config.hash(), json.dumps(real.describe(), sort_keys=True)]
        return sha256("".join(about).encode() + real.data.y.numpy().tobytes())[:16]
