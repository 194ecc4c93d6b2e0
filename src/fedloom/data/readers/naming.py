"""Names of domains and classes, and the numbers that stand for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ...core.errors import FedloomError

_NUMBER = re.compile(r"-?[0-9]+")


def plain_names(count: int) -> tuple[str, ...]:
    """The names of classes that have none: "0", "1" and so on."""
    return tuple(map(str, range(count)))


def class_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The classes that these labels name: in the order of numbers, if they are, else sorted."""
    names = set(labels)
    if all(map(_NUMBER.fullmatch, names)):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def numbered(values: Iterable[str], names: Sequence[str]) -> Tensor:
    """The place of each value in `names`, where each of them stands."""
    places = {name: place for place, name in enumerate(names)}
    return torch.tensor([places[value] for value in values])


def in_order_of_appearance(values: Iterable[str]) -> tuple[Tensor, tuple[str, ...]]:
    """A number for each value, and the names in the order in which they first appear."""
    values = list(values)
    names = tuple(dict.fromkeys(values))
    return numbered(values, names), names


def number_labels(
    labels: list[str], where: list[str], classes: tuple[str, ...] | None = None
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as class numbers, and the names of the classes.

    Numbers stay as they are and must cover 0..C-1, unless `classes` names the classes; names are
    sorted, or ordered as in `classes`. `where` says for each label where it stands.
    """
    if all(map(_NUMBER.fullmatch, labels)):
        return _checked_numbers(list(map(int, labels)), where, classes)
    names = classes or tuple(sorted(set(labels)))
    allowed = set(names)
    for label, place in zip(labels, where, strict=True):
        if label not in allowed:
            raise FedloomError(f"{place}: label {label!r} is not one of {', '.join(names)}.")
    return numbered(labels, names), names


def _checked_numbers(
    numbers: list[int], where: list[str], classes: tuple[str, ...] | None
) -> tuple[Tensor, tuple[str, ...]]:
    gaps: set[int] = set()
    if classes is None:
        present = set(numbers)
        gaps = set(range(len(present))) - present
        classes = plain_names(len(present))
    for number, place in zip(numbers, where, strict=True):
        if not 0 <= number < len(classes):
            why = ""
            if gaps and number >= 0:
                why = f", as no sample has the label {min(gaps)}"
            raise FedloomError(f"{place}: label {number} is not one of 0..{len(classes) - 1}{why}.")
    return torch.tensor(numbers), classes
