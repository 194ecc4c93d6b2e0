"""Samples that belong together: those of one patient, say, lie on one side of every split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from ..core.errors import FedloomError
from ..core.settings import part_of


class Grouped(Protocol):
    """A data set whose samples may belong to groups."""

    @property
    def name(self) -> str: ...
    @property
    def group(self) -> Tensor | None: ...


class Member(Protocol):
    """A client, as far as this module looks at it."""

    @property
    def train(self) -> np.ndarray: ...
    @property
    def validation(self) -> np.ndarray: ...
    @property
    def test(self) -> np.ndarray: ...


def cut_by_group(
    group: np.ndarray, shares: Sequence[np.ndarray], held_share: float, rng: np.random.Generator
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each client's rows cut in two: those it keeps, and about `held_share` of them held out.

    Groups stay whole, and one that several clients have is held out by all of them or by none.
    """
    rank = rng.permutation(int(group.max(initial=-1)) + 1)
    held: dict[int, bool] = {}  # group -> whether it is held out
    for rows in shares:
        _decide(held, group[rows], held_share, rank)
    marked = np.array([held.get(number, False) for number in range(len(rank))], dtype=bool)
    sides = []
    for rows in shares:
        out = marked[group[rows]]
        sides.append((rows[~out], rows[out]))
    return sides


def _decide(held: dict[int, bool], groups: np.ndarray, held_share: float, rank: np.ndarray) -> None:
    """Decide on those of a client's groups on which nobody has decided yet.

    In random order, a group is held out if that brings the client closer to its share. If none of
    its groups is kept elsewhere, the last one is.
    """
    numbers, counts = np.unique(groups, return_counts=True)
    sizes = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    missing = part_of(len(groups), held_share)
    open_ = []
    keeps = False
    for number, size in sizes.items():
        if number not in held:
            open_.append(number)
        elif held[number]:
            missing -= size
        else:
            keeps = True
    open_.sort(key=lambda number: int(rank[number]))
    for number in open_:
        must_stay = number == open_[-1] and not keeps
        held[number] = 2 * missing >= sizes[number] and not must_stay
        if held[number]:
            missing -= sizes[number]
        else:
            keeps = True


def refuse_shared_groups(data: Grouped, members: Sequence[Member]) -> None:
    """Refuse a federation in which a group is on two sides of a split, at whichever clients."""
    if data.group is None:
        return
    group = data.group.numpy()
    seen: dict[str, set[int]] = {}
    for split in ("train", "validation", "test"):
        rows = [getattr(member, split) for member in members]
        seen[split] = set(np.unique(group[np.concatenate(rows)]).tolist()) if rows else set()
    for one, other in (("train", "test"), ("validation", "test"), ("train", "validation")):
        shared = seen[one] & seen[other]
        if shared:
            raise FedloomError(
                f"{data.name}: {len(shared)} groups (patients, say) are in {one} and in {other}, "
                f"number {min(shared)} for one; --set split=merged cuts anew, by groups."
            )
