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
from ...metrics.registry import Answers, Metric, Sheet
from ...metrics.registry import plain as plain_number

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


def majority(
    federations: Callable[[int], Federation], seeds: Sequence[int], metric: Metric
) -> Accuracies:
    """By seed, each client's value of a metric without a model.

    Its most frequent training class is always named; where a metric looks at probabilities, they
    are the shares of the classes among its training samples.
    """
    values = {}
    for seed in seeds:
        federation = federations(seed)
        rows = [_without_a_model(federation, k, metric) for k in range(len(federation))]
        values[seed] = rows
    return values


def _without_a_model(federation: Federation, k: int, metric: Metric) -> float | None:
    index = federation.clients[k].test
    if not len(index):
        return None
    counts = federation.counts(k).numpy()
    # A class that the client has not seen may come all the same, so none has probability 0.
    scores = np.log((counts + 1) / (counts + 1).sum())
    answers = Answers(
        predicted=np.full(len(index), counts.argmax()),
        labels=federation.data.labels.numpy()[index],
        owner=np.zeros(len(index), dtype=np.int64),
        clients=1,
        classes=len(counts),
        scores=np.tile(scores, (len(index), 1)),
    )
    rows = Sheet((metric.tally,), answers.classes).rows(answers)
    value: float | None = plain_number(metric.values(rows)[0])
    return value
