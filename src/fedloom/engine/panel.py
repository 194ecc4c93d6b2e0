"""Which clients are scored in an evaluation where not all of them are."""

from __future__ import annotations

import numpy as np

from ..client.worker import ClientWorker
from ..core.rng import numpy_rng
from ..data.clients import domains, sizes


def panel(number: int, worker: ClientWorker) -> np.ndarray | None:
    """The numbers of so many clients, in order; None for all, if there are no more.

    Only clients with samples to be judged by are drawn, from each domain in proportion to how many
    it has. They are the same in every round: rounds are then compared by the same clients, which
    choosing a round and stopping early rely on.
    """
    clients = worker.federation.clients
    judged = np.flatnonzero(sizes(clients, "test") + sizes(clients, "validation"))
    if number >= len(judged):
        return None
    places, names = domains(clients)
    groups = places[judged]
    chosen = []
    there = np.bincount(groups + 1, minlength=len(names) + 1)
    for place, quota in enumerate(quotas(there, number)):
        members = judged[groups == place - 1]
        rng = numpy_rng(worker.seed, "evaluated", ("", *names)[place])
        chosen.append(rng.choice(members, size=quota, replace=False))
    return np.sort(np.concatenate(chosen))


def quotas(members: np.ndarray, number: int) -> list[int]:
    """How many of `number` each group gets: its share, rounded so that all are given out.

    Those that lose most by rounding down get one more.
    """
    shares = number * members / members.sum()
    given = np.floor(shares).astype(int)
    missing = number - int(given.sum())
    given[np.argsort(given - shares, kind="stable")[:missing]] += 1
    counts: list[int] = given.tolist()
    return counts
