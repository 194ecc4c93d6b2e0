"""FedPACT's few-shot partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from .base import PartitionError, Pool, Share, register
from .tools import by_class, by_client, check_concentration, check_positive, cut, join, shares_of


@register("fewshot", clients=10)
def fewshot(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    shots: Annotated[int, "Training samples of each class, over all clients."] = 8,
    rho: Annotated[float, "Concentration of the Dirichlet draw of class proportions."] = 0.1,
    scheme: Annotated[str, "Draw by client (mixture) or cut each class (per_class)."] = "mixture",
) -> list[Share]:
    """FedPACT: the first `shots` training samples of each class, in Dirichlet(rho) mixtures.

    "mixture": client k draws proportions of classes q_k and then, one client after the other, an
    equal number of samples (all there are, divided by clients and rounded down), each of a class
    drawn from q_k among the classes that are not used up; where q_k gives all of these no weight,
    they are equally likely. Its test samples are drawn in the same way, with the same q_k, from the
    whole test part. "per_class": each class's training and test samples are cut over clients in the
    same proportions; a client left without training samples then gets one of the client with most.
    Only classes with training samples count.
    """
    check_positive(shots=shots)
    check_concentration(rho=rho)
    if scheme not in ("mixture", "per_class"):
        raise PartitionError(f'scheme must be "mixture" or "per_class", not {scheme!r}.')
    train = {}
    for c, group in by_class(pool, ~pool.test).items():
        train[c] = rng.permutation(group[:shots])
    none = pool.train[:0]
    all_tests = by_class(pool, pool.test)
    test = {}
    for c in train:
        test[c] = rng.permutation(all_tests.get(c, none))
    stock = sum(map(len, train.values()))
    if clients > stock:
        raise PartitionError(
            f"{clients} clients cannot share {shots} shots of {len(train)} classes, which are "
            f"{stock} samples; use at most {stock} clients or shots of "
            f"{-(-clients // len(train))} or more."
        )
    if scheme == "mixture":
        mixtures = rng.dirichlet(np.full(len(train), rho), clients)
        trains = deal_mixtures(list(train.values()), mixtures, rng)
        tests = deal_mixtures(list(test.values()), mixtures, rng)
    else:
        weights = {c: rng.dirichlet(np.full(clients, rho)) for c in train}
        trains = _cut_classes(train, weights, clients)
        tests = _cut_classes(test, weights, clients)
        _fill_empty(trains)
    return shares_of(pool, trains, tests)


def _cut_classes(
    groups: dict[int, np.ndarray], weights: dict[int, np.ndarray], clients: int
) -> list[np.ndarray]:
    """Each class cut over clients in proportion to its weights."""
    owner = []
    for c, group in groups.items():
        owner.append(np.repeat(np.arange(clients), cut(weights[c], len(group))))
    return by_client(join(list(groups.values())), join(owner), clients)


def _fill_empty(parts: list[np.ndarray]) -> None:
    """Give a client without samples one of the client with most."""
    for k in range(len(parts)):
        if not len(parts[k]):
            most = max(range(len(parts)), key=lambda client: len(parts[client]))
            parts[k] = parts[most][-1:]
            parts[most] = parts[most][:-1]


def deal_mixtures(
    groups: Sequence[np.ndarray], mixtures: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Equally many samples for each row of `mixtures`, of classes drawn from it while they last."""
    stock = np.array(list(map(len, groups)))
    used = np.zeros_like(stock)
    budget = int(stock.sum()) // len(mixtures)
    result = []
    for mixture in mixtures:
        parts = [np.zeros(0, np.int64)]
        left = budget
        while left:  # at least one class is used up in every round but the last
            weights = np.where(used < stock, mixture, 0.0)
            if not weights.sum() > 0:
                weights = (used < stock).astype(float)
            # Drawing several at once and refusing what is gone by then is the same as drawing one
            # after the other.
            classes = rng.choice(len(stock), left, p=weights / weights.sum())
            drawn = np.bincount(classes, minlength=len(stock))
            taken = np.minimum(drawn, stock - used)
            for c in np.flatnonzero(taken).tolist():
                parts.append(groups[c][used[c] : used[c] + taken[c]])
            used += taken
            left -= int(taken.sum())
        result.append(np.concatenate(parts))
    return result
