"""Oort: clients that teach much and take little time, and some that nobody knows yet.

Lai, Zhu, Madhyastha, Chowdhury, "Oort: efficient federated learning via guided participant
selection", OSDI 2021. The utility of a client is its size times its loss, plus what it gains by
not having been heard of for long, times (T / t)^2 if it takes t > T seconds; without a clock, speed
does not count. A share of 0.9 of the round, less by a factor of 0.98 in every round down to 0.2,
goes to clients that were never asked, the quickest first.
Deviations: the loss is the mean over the last local training in place of the root of the mean
square per sample; T is the median of all candidates' seconds and is not paced; there is no list of
clients that were asked too often.
"""

from __future__ import annotations

import numpy as np

from . import SELECTIONS, Candidates, drawn

EXPLORE, DECAY, LEAST = 0.9, 0.98, 0.2
SLOW = 2.0  # the power by which slow clients lose
CUT = 0.95  # clients with at least this part of the n-th utility are drawn from


@SELECTIONS.register("oort")
def oort(candidates: Candidates, n: int, rng: np.random.Generator) -> np.ndarray:
    """By utility and speed, with a share for clients that nobody knows (like Oort)."""
    new, old = candidates.who[candidates.unknown], candidates.who[~candidates.unknown]
    explored = max(LEAST, EXPLORE * DECAY ** (candidates.round - 1))
    unknown = min(len(new), max(round(explored * n), n - len(old)))
    known = min(len(old), n - unknown)
    quick = _quickness(candidates)
    first = drawn(new, quick[candidates.unknown], unknown, rng)
    utility = _utility(candidates) * quick**SLOW
    return np.concatenate([_best(old, utility[~candidates.unknown], known, rng), first])


def _utility(candidates: Candidates) -> np.ndarray:
    """What a client last taught, and what it may have learned since."""
    learned = candidates.sizes * np.maximum(candidates.losses, 0.0)
    largest = learned.max(initial=0.0) or 1.0
    waiting = 0.1 * np.log(max(candidates.round, 1)) / np.maximum(candidates.heard, 1)
    return np.asarray(learned / largest + np.sqrt(waiting))


def _quickness(candidates: Candidates) -> np.ndarray:
    """1 for clients that are quick enough, less for slow ones."""
    if candidates.seconds is None:
        return np.ones(len(candidates.who))
    enough = np.median(candidates.seconds)
    return np.asarray(np.minimum(1.0, enough / np.maximum(candidates.seconds, 1e-12)))


def _best(who: np.ndarray, utility: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """So many clients of high utility: those near the n-th best or above it are drawn from."""
    if n == 0:
        return who[:0]
    bar = CUT * np.sort(utility)[-n]
    near = utility >= bar
    return drawn(who[near], utility[near], n, rng)
