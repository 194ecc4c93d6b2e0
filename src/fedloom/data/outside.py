"""Who stays outside a federation: a domain that nobody trains on, and clients that come later."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..core.errors import FedloomError, unknown
from ..core.rng import numpy_rng
from .partitions import Pool, Share


@dataclass(frozen=True)
class Kept:
    """The samples that are dealt out: their pool, and their numbers in the whole one."""

    pool: Pool
    rows: np.ndarray
    domains: np.ndarray

    def back(self, share: Share) -> Share:
        """A share of the pool, in numbers of the whole one."""
        domain = share.domain
        if domain >= 0:
            domain = int(self.domains[domain])
        return Share(self.rows[share.train], self.rows[share.test], domain)


def set_apart(pool: Pool, domain: str | None) -> tuple[Kept, list[Share]]:
    """The samples of all other domains, and those of this one as the share of one client."""
    every, domains = np.arange(len(pool.y)), np.arange(len(pool.domains))
    if domain is None:
        return Kept(pool, every, domains), []
    if domain not in pool.domains:
        raise unknown("domain", domain, pool.domains)
    if len(pool.domains) == 1:
        raise FedloomError(f"hold_out={domain}: there is no other domain to train on.")
    number = pool.domains.index(domain)
    rows, others = every[pool.domain != number], domains[domains != number]
    owner = None
    if pool.owner is not None:
        _, owner = np.unique(pool.owner[rows], return_inverse=True)
    rest = replace(
        pool,
        y=pool.y[rows],
        domain=np.searchsorted(others, pool.domain[rows]),
        test=pool.test[rows],
        domains=tuple(pool.domains[d] for d in others),
        owner=owner,
    )
    inside = pool.domain == number
    share = Share(every[inside & ~pool.test], every[inside & pool.test], number)
    return Kept(rest, rows, others), [share]


def drawn(clients: int, new: int, seed: int) -> tuple[list[int], list[int]]:
    """The numbers of the clients that take part, and of those that never do."""
    if not 0 <= new < clients:
        raise FedloomError(
            f"new_clients={new}: of {clients} clients, at least one has to take part."
        )
    order = numpy_rng(seed, "new clients").permutation(clients).tolist()
    return sorted(order[new:]), sorted(order[:new])
