"""Federations without test data: some of each client's training samples take their place.

A race on them cannot look at test data, because there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...core.rng import numpy_rng
from ...core.settings import part_of
from ...data.dataset import Dataset
from ...data.federation import Client, Federation, Sides
from ...data.grouped import cut_by_group
from ...metrics.gains import Accuracies

HELD_OUT = 0.25  # of a client's training samples


def rehearsal(federation: Federation, validation: float, seed: int) -> Federation:
    """The same clients, each with a quarter of its training samples in place of its test samples.

    `validation` is the share of the rest that chooses rounds, as in a run with test data. Samples
    of one group (patient) stay together.
    """
    everything = []
    for client in federation.clients:
        everything.append(np.concatenate([client.train, client.validation]))
    held = _cut(federation.data, everything, HELD_OUT, seed, "rehearsal", least=1)
    rest = [kept for kept, _ in held]
    chosen = _cut(federation.data, rest, validation, seed, "rehearsal validation")
    clients = []
    for k, client in enumerate(federation.clients):
        train, validating = chosen[k]
        clients.append(Client(train, validating, held[k][1], client.domain))
    return replace(federation, clients=tuple(clients))


def _cut(
    data: Dataset,
    rows: Sequence[np.ndarray],
    share: float,
    seed: int,
    purpose: str,
    least: int = 0,
) -> Sides:
    """Each client's rows, those that it keeps and those that are held out.

    Of a client with several rows at least `least` are held out; a single one is kept.
    """
    if data.group is not None:
        return cut_by_group(data.group.numpy(), rows, share, numpy_rng(seed, purpose))
    sides = []
    for k, own in enumerate(rows):
        order = numpy_rng(seed, purpose, k).permutation(own)
        held = part_of(len(order), share)
        if len(order) > 1:
            held = max(least, held)
        sides.append((np.sort(order[held:]), np.sort(order[:held])))
    return sides


def majority(federations: Callable[[int], Federation], seeds: Sequence[int]) -> Accuracies:
    """By seed, each client's accuracy if its most frequent training class is always named."""
    accuracies = {}
    for seed in seeds:
        federation = federations(seed)
        labels = federation.data.labels.numpy()
        rows: list[float | None] = []
        for k, client in enumerate(federation.clients):
            accuracy = None
            if len(client.test):
                named = int(federation.counts(k).argmax())
                accuracy = float((labels[client.test] == named).mean())
            rows.append(accuracy)
        accuracies[seed] = rows
    return accuracies
