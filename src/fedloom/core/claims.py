"""What is true of everything that a client uploads, and the one place where it is checked.

Names, types and shapes are known from what the server has or expects. A `Claim` adds what they
cannot say: what an entry means and which values it can have. A method states its claims as a class
attribute, by name or by a pattern of names, and inherits those of its bases and plug-ins:

    claims = Claims({"loss": LOSS, "counts": COUNTS})

An entry without a claim may be any finite number. A *stranger* is a client that may lie, such as a
site of a real federation. For it, numbers without a range of their own must also be of a likely
size: see `Sizes`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from .payload import Payload, Value

Claims = MappingProxyType  # claims by name or by pattern of names; they never change
Limit = float | Literal["samples", "labels", "classes"]
JUMP = 10.0  # times the length before, or that of as many ones
LARGE = 1000.0  # what the root mean square of numbers may be if nothing like them was there before


@dataclass(frozen=True)
class Claim:
    """The meaning and the range of an entry.

    `low` and `high` are the smallest and the largest possible value. A word stands for a number
    that the server knows of the client, see `About`.
    """

    meaning: str
    low: Limit = -math.inf
    high: Limit = math.inf
    whole: bool = False
    distinct: bool = False  # no value occurs twice

    @property
    def ranged(self) -> bool:
        """Whether it says more than that values are finite."""
        return self.whole or self.distinct or (self.low, self.high) != (-math.inf, math.inf)


SIZE = Claim("the number of the client's training samples", "samples", "samples", whole=True)
COUNTS = Claim("numbers of training samples", 0, "labels", whole=True)
CLASSES = Claim("numbers of classes", 0, "classes", whole=True, distinct=True)
LOSS = Claim("a mean loss", 0, 1e9)
RATE = Claim("a learning rate", 1e-12, 1e6)
SHARES = Claim("shares", 0, 1)
WEIGHTS = Claim("weights of a model")
CHANGES = Claim("changes of weights")
PACKED = Claim("changes of weights in a short form")
MEAN = Claim("running means of features", -1e6, 1e6)
VARIANCE = Claim("running variances of features", 0, 1e12)
STEPS = Claim("a number of batches", 0, 1e12, whole=True)
VECTORS = Claim("features, or means of features")
SUMS = Claim("sums of features", -1e15, 1e15)
SQUARES = Claim("sums of squared features", 0, 1e30)

# What every method says: the size with which a client introduces itself, and a model.
COMMON: Mapping[str, Claim] = {
    "size": SIZE,
    "standard/count": SIZE,
    "standard/sums": SUMS,
    "standard/squares": SQUARES,
    "model/*": WEIGHTS,
    **{f"{group}/*running_mean": MEAN for group in ("model", "buffers")},
    **{f"{group}/*running_var": VARIANCE for group in ("model", "buffers")},
    **{f"{group}/*num_batches_tracked": STEPS for group in ("model", "buffers")},
}


@cache
def claims_of(method: type) -> Mapping[str, Claim]:
    """The claims of a method's class and of all it inherits from."""
    claims = dict(COMMON)
    for cls in reversed(method.__mro__):
        claims |= cls.__dict__.get("claims", {})
    return claims


@lru_cache(maxsize=65536)
def claim_of(method: type, name: str) -> Claim | None:
    """The claim of an entry: of the patterns that fit its name, the longest one counts."""
    fitting = [pattern for pattern in claims_of(method) if fnmatchcase(name, pattern)]
    if not fitting:
        return None
    return claims_of(method)[max(fitting, key=len)]


@dataclass(frozen=True)
class About:
    """What the server knows of a client whose upload is judged."""

    samples: int  # for training
    labels: int  # as many, or the pixels of all samples where labels are maps
    classes: int


def flaw(method: type, upload: Payload, about: About) -> str | None:
    """What is wrong with an upload, in words; None if every entry is what it claims to be."""
    for name, value in upload.items():
        if isinstance(value, str):
            continue
        if not _finite(value):
            if isinstance(value, Tensor):
                return f"a NaN or infinity in {name!r}"
            return f"{name} = {value}"
        claim = claim_of(method, name)
        if claim is not None and claim.ranged:
            wrong = _outside(value, claim, about)
            if wrong:
                return f"{name!r} with {wrong}; it holds {claim.meaning}"
    return None


def _finite(value: Value) -> bool:
    if not isinstance(value, Tensor):
        return not isinstance(value, float) or math.isfinite(value)
    if not value.is_floating_point():
        return True
    # A sum is quick to compute, and not finite if anything that went into it is not.
    return math.isfinite(value.sum()) or bool(torch.isfinite(value).all())


def _outside(value: Value, claim: Claim, about: About) -> str | None:
    """Which value of an entry cannot be, in words."""
    numbers = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    if not numbers.numel():
        return None
    low, high = (float(end) for end in torch.aminmax(numbers))
    if low < _limit(claim.low, about):
        return f"the value {low:g}"
    # Classes are counted from 0, so their number is not one of them.
    if high > _limit(claim.high, about) - (claim.high == "classes"):
        return f"the value {high:g}"
    if claim.whole and numbers.is_floating_point() and bool((numbers != numbers.round()).any()):
        return "a fraction"
    if claim.distinct and len(numbers.unique()) < numbers.numel():
        return "a value twice"
    return None


def _limit(limit: Limit, about: About) -> float:
    if isinstance(limit, str):
        return float(getattr(about, limit))
    return limit


# -- how large numbers are -------------------------------------------------------------------
@dataclass(frozen=True)
class Sizes:
    """Which lengths are likely, for numbers that have no range of their own.

    The tensors under one first name (`model/...`) are taken together. Their length, or that of
    their change, may be `jump` times what it was, and `jump` times that of as many ones. Where
    nothing was before, or only zeros, the root mean square may be `LARGE`.
    """

    method: type
    jump: float = JUMP

    def flaw(self, before: Payload, after: Payload, change: bool = False) -> str | None:
        """Which group of `after` is too long beside that of `before`, in words.

        `change` measures the difference between the two, as far as both have the same names.
        """
        for group, names in _groups(self.method, after).items():
            new = [after[name] for name in names]
            old = [before.get(name) for name in names]
            length_before = _length([value for value in old if _is_float(value)])
            ones = math.sqrt(sum(_count(value) for value in new))
            allowed = LARGE * ones
            if length_before:
                allowed = self.jump * max(length_before, ones)
            measured, what = new, "of length"
            if change:
                measured = _changes(new, old)
            if change and length_before:
                what = "changed by"
            length = _length(measured)
            if not length <= allowed:
                return f"{group!r} {what} {length:.3g}, more than {allowed:.3g}"
        return None


def _groups(method: type, payload: Payload) -> dict[str, list[str]]:
    """The names of the numbers without a range of their own, by their first part."""
    groups: dict[str, list[str]] = {}
    for name, value in payload.items():
        claim = claim_of(method, name)
        if _is_float(value) and not (claim and claim.ranged):
            groups.setdefault(name.partition("/")[0], []).append(name)
    return groups


def _changes(new: list[Value], old: list[Value | None]) -> list[Value]:
    """The differences; a value with no former one of its shape stays as it is."""
    changes: list[Value] = []
    for value, former in zip(new, old, strict=True):
        if _is_float(former) and _shape(former) == _shape(value):
            value = value - former  # type: ignore[operator]
        changes.append(value)
    return changes


def _is_float(value: Value | None) -> bool:
    return value.is_floating_point() if isinstance(value, Tensor) else isinstance(value, float)


def _shape(value: Value | None) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def _count(value: Value) -> int:
    return value.numel() if isinstance(value, Tensor) else 1


def _length(values: Sequence[Value | None]) -> float:
    """The Euclidean length of all these numbers together."""
    lengths = []
    for value in values:
        if isinstance(value, Tensor):
            dtype = torch.promote_types(value.dtype, torch.float32)  # halves are soon too long
            lengths.append(float(torch.linalg.vector_norm(value, dtype=dtype)))
        elif isinstance(value, float):
            lengths.append(abs(value))
    return math.hypot(*lengths)


def not_finite(before: Payload, after: Payload) -> str | None:
    """Which number of the server has stopped being finite, in words; None if none has."""
    for name, value in after.items():
        former = before.get(name)
        if value is former or isinstance(value, str) or _finite(value):
            continue
        if former is None or isinstance(former, str) or _finite(former):
            return f"a NaN or infinity in {name!r}"
    return None
