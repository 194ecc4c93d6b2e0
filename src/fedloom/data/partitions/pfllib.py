"""The extended Dirichlet partition of PFLlib, which FedDTR uses."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from .base import PartitionError, Pool, Share, register
from .tools import (
    by_key,
    check_classes_per_client,
    check_concentration,
    deal,
    draw,
    shares_with_tests,
)

_TRIES = 50


@register("exdir")
def exdir(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    classes_per_client: Annotated[int, "Number of classes that each client has."] = 2,
    alpha: Annotated[float, "Concentration of the Dirichlet draw among a class's owners."] = 100.0,
) -> list[Share]:
    """PFLlib's extended Dirichlet: clients get some classes, and the owners of a class share it.

    Classes are dealt at random; where a class has fewer than half its fair number of owners (and at
    least one), clients of the most popular classes change over to it. A class is then cut in
    Dirichlet(alpha) proportions over its owners, passing over those who already hold an equal share
    of all samples, as in `dirichlet`. A draw that leaves a client without samples is repeated up to
    50 times. Only classes with training samples count.
    """
    groups = list(by_key(pool.train, pool.y[pool.train]).values())
    classes = len(groups)
    check_concentration(alpha=alpha)
    check_classes_per_client(classes_per_client, classes)
    if clients * classes_per_client < classes:
        raise PartitionError(
            f"{clients} clients with classes_per_client={classes_per_client} cannot own {classes} "
            f"classes; the smallest that works is classes_per_client={-(-classes // clients)}."
        )
    sizes = list(map(len, groups))
    for _ in range(_TRIES):
        owns = _deal_classes(classes, clients, int(classes_per_client), rng)
        counts = draw(sizes, clients, alpha, rng, owns.T)
        if counts.sum(axis=0).min() > 0:
            break
    return shares_with_tests(pool, deal(groups, counts, rng), rng)


def _deal_classes(classes: int, clients: int, each: int, rng: np.random.Generator) -> np.ndarray:
    """Which classes (columns) every client (row) owns: `each` of them, and no class too rare."""
    owns = np.zeros((clients, classes), bool)
    for row in owns:
        row[rng.choice(classes, each, replace=False)] = True
    owners = owns.sum(axis=0)
    need = max(1, clients * each // classes // 2)
    for rare in range(classes):
        # The mean is at least `need`, so another class has more owners than this one.
        while owners[rare] < need:
            popular = int(owners.argmax())
            client = rng.choice(np.flatnonzero(owns[:, popular] & ~owns[:, rare]))
            owns[client, popular] = False
            owns[client, rare] = True
            owners[popular] -= 1
            owners[rare] += 1
    return owns
