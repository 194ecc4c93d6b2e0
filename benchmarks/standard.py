"""How long standardised features should be, chosen on validation data alone.

`client/standard.py` holds what came out of it. Clients keep a third of their training samples for
validation and have no test samples here, so nothing of this can depend on any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import fedloom
from fedloom.client import standard
from fedloom.data.catalogue import Progress, Source, load
from fedloom.data.federation import Client, Federation, federate
from fedloom.encoders import images

LENGTHS = (256.0, 64.0, 1024.0)
OFFSETS = (32.0, 0.0, 128.0)
OFFSET_SHARE = 1 / 8  # of the length, while the length is being chosen
METHODS = ("local", "fedavg")
SEEDS = (0, 1, 2)
ROUNDS = 20
HELD_OUT = 1 / 3
Say = Callable[[str], object]


class World(NamedTuple):
    """Clients with features to choose on."""

    data: str
    partition: str
    clients: int
    options: Mapping[str, Any] = {}
    limit: int | None = None

    @property
    def name(self) -> str:
        """The data and how they are dealt out."""
        return f"{self.data} {self.partition}"

    def deal(
        self, seed: int, encoder: str, root: str | None, progress: Progress | None
    ) -> Federation:
        """Its clients with features of their samples, and no test samples."""
        limits = Source(limit_train=self.limit, limit_test=self.limit)
        dealt = federate(
            load(self.data, limits, root=root),
            self.partition,
            clients=self.clients,
            seed=seed,
            validation=HELD_OUT,
            **self.options,
        )
        encoded = dealt.encode(images(encoder), progress=progress)
        none = np.arange(0)
        kept = [Client(c.train, c.validation, none, c.domain) for c in encoded.clients]
        return Federation(encoded.data, tuple(kept))


WORLDS = (
    World("digits4", "domains", 8),
    World("digits4", "dirichlet", 8, {"beta": 0.1}),
    World("pacs", "domains", 8, limit=60),
    World("office10", "domains", 6),
)


class Outcome(NamedTuple):
    """What a run reached on validation data, and its largest fall between two rounds."""

    last: float
    fall: float


Outcomes = dict[str, list[Outcome]]  # by world and method, one for each seed


def choose(
    encoder: str,
    root: str | None,
    say: Say,
    progress: Progress | None = None,
    worlds: Sequence[World] = WORLDS,
    seeds: Sequence[int] = SEEDS,
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """The length whose runs end highest on average, then the offset in the same way."""
    dealt = []
    for world in worlds:
        for seed in seeds:
            dealt.append((world.name, seed, world.deal(seed, encoder, root, progress)))

    def tried(length: float, offset: float, methods: Sequence[str]) -> Outcomes:
        found: Outcomes = {}
        for name, seed, clients in dealt:
            for method in methods:
                outcome = _run(clients, method, seed, rounds, length, offset)
                found.setdefault(f"{name} {method}", []).append(outcome)
        say(f"length {length:g}, offset {offset:g}: {_summary(found)}")
        return found

    by_length = {n: tried(n, n * OFFSET_SHARE, METHODS) for n in LENGTHS}
    length = max(by_length, key=lambda n: _mean(by_length[n]))
    by_offset = {n: tried(length, n, ["local"]) for n in OFFSETS}  # no other keeps its head
    offset = max(by_offset, key=lambda n: _mean(by_offset[n]))
    say(f"chosen: length {length:g}, offset {offset:g}")
    return {
        "length": length,
        "offset": offset,
        "by length": by_length,
        "by offset": by_offset,
    }


def _run(
    clients: Federation, method: str, seed: int, rounds: int, length: float, offset: float
) -> Outcome:
    """One run with these values in place of the defaults."""
    before = standard.LENGTH, standard.OFFSET
    standard.LENGTH, standard.OFFSET = length, offset
    try:
        run = fedloom.run(method, clients, model="linear", rounds=rounds, seed=seed)
    finally:
        standard.LENGTH, standard.OFFSET = before
    curve = [line["validation"]["personal"] for line in run.metrics]
    return Outcome(curve[-1], max(a - b for a, b in pairwise(curve)))


def _mean(found: Outcomes) -> float:
    """Over worlds, methods and seeds, each world and method the same."""
    return float(np.mean([outcome.last for runs in found.values() for outcome in runs]))


def _summary(found: Outcomes) -> str:
    """The mean of all runs, the largest fall of any, and the mean of each world and method."""
    fall = max(outcome.fall for runs in found.values() for outcome in runs)
    parts = []
    for name, runs in found.items():
        parts.append(f"{name} {100 * float(np.mean([outcome.last for outcome in runs])):.1f}")
    mean = 100 * _mean(found)
    return f"{mean:.2f} % on validation data, largest fall {100 * fall:.1f} ({', '.join(parts)})"
