"""`fedloom verify`: a method beside PFLlib's version of it, in a checkout that the user brings.

Both run on the checkout's own data, dealt out as they are there, with PFLlib's four-layer network
and plain SGD. First weights and the order of samples differ, so the figures agree as those of two
seeds do; `tests/parity` compares single steps to the last digits.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import FedloomError, unknown
from ..core.lookup import make
from ..data.readers.pfllib import described, is_pfllib
from ..engine.run import run

ROUND = re.compile(r"Round number: (\d+)")
ACCURACY = re.compile(r"Averaged? Test Accuracy: ([0-9.]+)")


@dataclass(frozen=True)
class Counterpart:
    """How PFLlib calls a method."""

    algorithm: str
    # Our settings by name, and PFLlib's options that they become.
    options: Mapping[str, str] = field(default_factory=dict)
    # Settings with which ours does what PFLlib does.
    ours: Mapping[str, Any] = field(default_factory=dict)
    # When PFLlib tests its clients: before they train again, or as they were right after it.
    stage: str = "before"


COUNTERPARTS = {
    "local": Counterpart("Local"),
    "fedavg": Counterpart("FedAvg"),
    "fedprox": Counterpart("FedProx", {"mu": "--mu"}),
    "scaffold": Counterpart("SCAFFOLD", {"server_lr": "--server_learning_rate"}),
    "fedper": Counterpart("FedPer"),
    "fedrep": Counterpart("FedRep", {"head_epochs": "--plocal_epochs"}),
    "fedproto": Counterpart("FedProto", {"lam": "--lamda"}, {"average": "uniform"}),
    "fedala": Counterpart("FedALA", {"ala_lr": "--eta"}),
    "fedrod": Counterpart("FedROD"),
    "moon": Counterpart("MOON", {"mu": "--mu", "tau": "--tau"}, {"projection": 0}),
    "fedcp": Counterpart("FedCP", {"lam": "--lamda"}),
    "gpfl": Counterpart("GPFL", {"lam": "--lamda", "mu": "--mu"}),
    "feddbe": Counterpart("FedDBE", {"kappa": "--kl_weight", "mu": "--momentum"}),
    "fedas": Counterpart("FedAS", stage="after"),
}


@dataclass(frozen=True)
class Work:
    """What both sides do."""

    method: str
    checkout: Path
    data: str = "MNIST"
    rounds: int = 3
    lr: float = 0.005
    batch: int = 10
    seed: int = 0

    @property
    def counterpart(self) -> Counterpart:
        """PFLlib's version of the method."""
        if self.method not in COUNTERPARTS:
            raise unknown("method for PFLlib", self.method, COUNTERPARTS)
        return COUNTERPARTS[self.method]

    @property
    def folder(self) -> Path:
        """Where the checkout has the data."""
        return self.checkout / "dataset" / self.data


@dataclass(frozen=True)
class Row:
    """Accuracy after a round, of all clients' test samples together."""

    round: int
    theirs: float
    ours: float


def verify(work: Work, python: str = sys.executable) -> list[Row]:
    """Both sides' accuracies; `python` is an interpreter with what PFLlib needs."""
    counterpart = work.counterpart
    if not (work.checkout / "system" / "main.py").is_file():
        raise FedloomError(f"{work.checkout} is no checkout of PFLlib: it has no system/main.py.")
    if not is_pfllib(work.folder):
        raise FedloomError(
            f"{work.folder} has no data of clients; run dataset/generate_{work.data}.py of the "
            "checkout first."
        )
    theirs = run_theirs(work, counterpart, python)
    ours = run_ours(work, counterpart)
    return [Row(r, theirs[r], ours[r]) for r in sorted(theirs.keys() & ours.keys())]


def run_theirs(work: Work, counterpart: Counterpart, python: str) -> dict[int, float]:
    """PFLlib's accuracy after each round."""
    clients, classes = described(work.folder / "config.json")
    command = [python, "main.py", "--algorithm", counterpart.algorithm, "--model", "CNN"]
    given = {
        "--dataset": work.data,
        "--num_classes": classes,
        "--num_clients": clients,
        "--global_rounds": work.rounds,
        "--local_learning_rate": work.lr,
        "--batch_size": work.batch,
        "--device": "cpu",
        "--goal": "fedloom-verify",
    }
    method = make(work.method, counterpart.ours)
    for name, option in counterpart.options.items():
        given[option] = getattr(method, name)
    for option, value in given.items():
        command += [option, str(value)]
    done = subprocess.run(command, cwd=work.checkout / "system", capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise FedloomError(
            f"{work.checkout}/system/main.py failed: {last} (its packages may be missing here; "
            "--python names an interpreter that has them)."
        )
    accuracies = parsed(done.stdout)
    if not accuracies:
        raise FedloomError(f"{work.checkout}/system/main.py printed no accuracy after a round.")
    return accuracies


def parsed(printed: str) -> dict[int, float]:
    """The accuracies that PFLlib prints, by round; before round i, i rounds are over."""
    accuracies: dict[int, float] = {}
    number = 0
    for line in printed.splitlines():
        if found := ROUND.search(line):
            number = int(found[1])
        elif (found := ACCURACY.search(line)) and number:
            accuracies[number] = float(found[1])
    return accuracies


def run_ours(work: Work, counterpart: Counterpart) -> dict[int, float]:
    """Our accuracy after each round, of what clients hold when PFLlib tests them."""
    done = run(
        work.method,
        str(work.folder),
        model="cnn",
        seed=work.seed,
        rounds=work.rounds,
        lr=work.lr,
        batch=work.batch,
        drop_last=True,
        **counterpart.ours,
    )
    accuracies = {}
    for record in done.metrics:
        held = record.get(counterpart.stage, record["personal"])
        accuracies[record["round"]] = float(held["accuracy_weighted"])
    return accuracies
