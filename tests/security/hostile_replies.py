"""Lies that a site can tell in a reply. Each is a function that spoils the content of one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

Lie = Callable[[RecordDict, random.Random], None]
LIES: dict[str, Lie] = {}


def lie(words: str) -> Callable[[Lie], Lie]:
    def note(function: Lie) -> Lie:
        LIES[words] = function
        return function

    return note


def arrays(content: RecordDict) -> dict[str, Array]:
    return dict(content.array_records.get("payload") or {})


def put(content: RecordDict, changed: dict[str, Array]) -> None:
    content["payload"] = ArrayRecord(changed)


def spoil(kind: str, change: Callable[[np.ndarray], np.ndarray]) -> Lie:
    """Change one of the tensors of a kind; if there is none, send one that nobody asked for."""

    def apply(content: RecordDict, rng: random.Random) -> None:
        there = arrays(content)
        fitting = sorted(n for n, a in there.items() if kind in a.dtype and 0 not in a.shape)
        if fitting:
            name = rng.choice(fitting)
            there[name] = Array(change(there[name].numpy()))
        else:
            there["model/extra"] = Array(np.full(3, 3e38, dtype=np.float32))
        put(content, there)

    return apply


def somewhere(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        spoiled = array.copy()
        spoiled.flat[spoiled.size // 2] = value
        return spoiled

    return change


for number in (float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e30):
    LIES[f"{number:g} in a tensor"] = spoil("float", somewhere(number))
for number in (-1, 2**62, -(2**63)):
    LIES[f"{number:.3g} in a count"] = spoil("int", somewhere(number))
LIES["3e38 everywhere"] = spoil("float", lambda a: np.full_like(a, 3e38))
LIES["a longer tensor"] = spoil(
    "float", lambda a: np.concatenate([a.reshape(-1), [1, 2]]).astype(a.dtype)
)
LIES["one dimension more"] = spoil("float", lambda a: a[None])
LIES["no numbers"] = spoil("float", lambda a: a[..., :0] if a.ndim else np.zeros(0, a.dtype))
LIES["another type"] = spoil("float", lambda a: a.astype(np.float64))
LIES["whole numbers for fractions"] = spoil("float", lambda a: a.astype(np.int64))


def raw(make: Callable[[Array], Array]) -> Lie:
    """Replace a tensor by something that claims to be one."""

    def apply(content: RecordDict, rng: random.Random) -> None:
        there = arrays(content) or {"model/extra": Array(np.zeros(4, dtype=np.float32))}
        name = rng.choice(sorted(there))
        there[name] = make(there[name])
        put(content, there)

    return apply


def with_data(data: Callable[[bytes], bytes]) -> Lie:
    return raw(lambda a: Array(a.dtype, tuple(a.shape), a.stype, data(a.data)))


LIES["a zip"] = with_data(lambda d: b"PK\x03\x04" + d[4:])
LIES["a pickle"] = with_data(lambda d: b"\x80\x05cos\nsystem\n" + d[12:])
LIES["half an array"] = with_data(lambda d: d[: len(d) // 2])
LIES["nothing in an array"] = with_data(lambda d: b"")
LIES["nested brackets in a header"] = with_data(lambda d: d[:10] + b"[" * 100 + d[110:])
LIES["a huge shape"] = raw(lambda a: Array(a.dtype, (2**62,), a.stype, a.data))
LIES["a negative shape"] = raw(lambda a: Array(a.dtype, (-1,), a.stype, a.data))
LIES["a type of objects"] = raw(lambda a: Array("object", tuple(a.shape), a.stype, a.data))
LIES["another serialisation"] = raw(lambda a: Array(a.dtype, tuple(a.shape), "pickle", a.data))


@lie("a tensor nobody asked for")
def _extra(content: RecordDict, rng: random.Random) -> None:
    put(content, {**arrays(content), "model/extra": Array(np.zeros(4, dtype=np.float32))})


@lie("a client's number beyond all")
def _beyond(content: RecordDict, rng: random.Random) -> None:
    put(content, {**arrays(content), "protos/99999": Array(np.zeros(4, dtype=np.float32))})


def renumbered(write: Callable[[str], str]) -> Lie:
    """Send what is numbered once more, under the same number, written otherwise."""

    def apply(content: RecordDict, rng: random.Random) -> None:
        there = arrays(content)
        numbered = [n for n in sorted(there) if n.rpartition("/")[2].isdigit()]
        name = numbered[0] if numbered else "protos/1"
        group, _, number = name.rpartition("/")
        again = there.get(name, Array(np.zeros(4, dtype=np.float32)))
        put(content, {**there, f"{group}/{write(number)}": again})

    return apply


LIES["a number with a zero before it"] = renumbered(lambda number: f"0{number}")
LIES["a number in another script"] = renumbered(
    lambda number: "".join(chr(0x660 + int(digit)) for digit in number)
)


@lie("ten thousand tensors")
def _many(content: RecordDict, rng: random.Random) -> None:
    put(content, {f"model/{i}": Array(np.zeros(1, dtype=np.float32)) for i in range(10_000)})


@lie("the file format's own name")
def _metadata(content: RecordDict, rng: random.Random) -> None:
    put(content, {**arrays(content), "__metadata__": Array(np.zeros(1, dtype=np.float32))})


def scalar(name: str, value: Any) -> Lie:
    def apply(content: RecordDict, rng: random.Random) -> None:
        there = dict(content.config_records.get("scalars") or {})
        content["scalars"] = ConfigRecord({**there, name: value})

    return apply


LIES["a size after training"] = scalar("size", 5)
LIES["a scalar nobody asked for"] = scalar("other", 1.0)
LIES["a list as a scalar"] = scalar("loss", [1.0, 2.0])
LIES["bytes as a scalar"] = scalar("loss", b"\xff\xfe")
LIES["a text as a scalar"] = scalar("loss", "x" * 1000)
LIES["a loss that is no number"] = scalar("loss", float("nan"))
LIES["a negative loss"] = scalar("loss", -1e30)
LIES["a huge loss"] = scalar("loss", 1e308)
LIES["a name of a megabyte"] = scalar("x" * 10**6, 1)


def metric(name: str, value: Any) -> Lie:
    def apply(content: RecordDict, rng: random.Random) -> None:
        there = dict(content.metric_records.get("metrics") or {})
        content["metrics"] = MetricRecord({**there, name: value})

    return apply


LIES["a part of the loss that is no number"] = metric("loss/ce", float("nan"))
LIES["a part of the loss of 1e308"] = metric("loss/ce", 1e308)
LIES["a whole number as a loss"] = metric("loss/ce", 2**62)
LIES["scores nobody asked for"] = metric("score/train", [1.0, 1.0])
LIES["a metric nobody asked for"] = metric("other", 1.0)


@lie("another client's receipt")
def _receipt(content: RecordDict, rng: random.Random) -> None:
    content["receipt"] = ConfigRecord({**dict(content["receipt"]), "client": 0})


@lie("half a client's receipt")
def _half(content: RecordDict, rng: random.Random) -> None:
    content["receipt"] = ConfigRecord({**dict(content["receipt"]), "client": 0.5})


@lie("no content")
def _nothing(content: RecordDict, rng: random.Random) -> None:
    for name in list(content):
        del content[name]


@lie("a megabyte of refusal")
def _refusal(content: RecordDict, rng: random.Random) -> None:
    content["refusal"] = ConfigRecord({"why": "no \x1b[2J\n" * 150_000})


@lie("a refusal that is a list")
def _odd_refusal(content: RecordDict, rng: random.Random) -> None:
    content["refusal"] = ConfigRecord({"why": [1, 2, 3]})


@lie("a record nobody asked for")
def _record(content: RecordDict, rng: random.Random) -> None:
    content["more"] = ConfigRecord({"x": "y" * 1000})


@lie("records of the wrong kind")
def _kinds(content: RecordDict, rng: random.Random) -> None:
    content["payload"] = ConfigRecord({"x": 1})
    content["metrics"] = ConfigRecord({"loss/ce": 1.0})


@lie("more than the limit")
def _long(content: RecordDict, rng: random.Random) -> None:
    content["receipt"] = ConfigRecord({**dict(content["receipt"]), "x": "y" * 6_000_000})


# What can be said instead of a size. Methods whose clients send none get it all the same.
SIZES = (-1, 0, 2**63 - 1, 10**12, 1, 2.5, float("nan"), 1e308, True, "24", b"24", [24])
HELLOS: dict[str, Lie] = {f"size {str(size)[:20]}": scalar("size", size) for size in SIZES}
ALSO = [
    "3e+38 in a tensor", "3e38 everywhere", "nan in a tensor", "-1 in a count",
    "4.61e+18 in a count", "a zip", "a longer tensor", "a huge shape", "no content",
    "a tensor nobody asked for", "another client's receipt", "a megabyte of refusal",
]  # fmt: skip
HELLOS |= {f"hello: {words}": LIES[words] for words in ALSO}


# What can be said in place of scores. A row of them begins with how many samples are right and how
# many there are; further tallies follow.
def scores(change: Callable[[list[float]], Any], split: str = "test") -> Lie:
    """Change the scores on one split."""

    def apply(content: RecordDict, rng: random.Random) -> None:
        there = dict(content.metric_records.get("metrics") or {})
        there[f"score/{split}"] = change(list(there.get(f"score/{split}", [1.0, 1.0])))
        content["metrics"] = MetricRecord(there)

    return apply


def placed(place: int, value: float) -> Callable[[list[float]], list[float]]:
    def change(row: list[float]) -> list[float]:
        row = [float(number) for number in row]
        row[place] = value
        return row

    return change


SCORES: dict[str, Lie] = {}
for number in (float("nan"), float("inf"), -float("inf"), 1e308, -1.0, 0.5, 1e11):
    SCORES[f"{number:g} right"] = scores(placed(0, number))
    SCORES[f"{number:g} in all"] = scores(placed(1, number))
    SCORES[f"{number:g} as the last score"] = scores(placed(-1, number))
for number in (-1.0, 1e6, 1e11):
    SCORES[f"{number:g} of a class right"] = scores(placed(5, number))
    SCORES[f"{number:g} right on validation"] = scores(placed(0, number), "validation")
SCORES["no scores"] = scores(lambda row: [])
SCORES["one score"] = scores(lambda row: row[:1])
SCORES["one score more"] = scores(lambda row: [*row, 0.0])
SCORES["a million scores"] = scores(lambda row: [0.0] * 10**6)
SCORES["a number for scores"] = scores(lambda row: 1.0)
SCORES["whole numbers beyond all"] = scores(lambda row: [2**62] * len(row))
SCORES["scores of training samples"] = scores(lambda row: row, "train")
SCORES["scores of a split that is none"] = scores(lambda row: row, "x" * 1000)


def without(split: str) -> Lie:
    def apply(content: RecordDict, rng: random.Random) -> None:
        there = dict(content["metrics"])
        del there[f"score/{split}"]
        content["metrics"] = MetricRecord(there)

    return apply


SCORES["no scores on test samples"] = without("test")
SCORES["no scores on validation samples"] = without("validation")
# What nobody may send after it has only scored a model.
SCORED: dict[str, Lie] = dict(SCORES)
SCORED["a loss, though nothing was trained"] = metric("loss/ce", 1.0)
SCORED["a size, though nobody asked"] = scalar("size", 24)
ALSO = [
    "a tensor nobody asked for", "ten thousand tensors", "a zip", "a huge shape", "no content",
    "a metric nobody asked for", "another client's receipt", "half a client's receipt",
    "a megabyte of refusal", "a refusal that is a list", "records of the wrong kind",
    "a record nobody asked for", "more than the limit", "a name of a megabyte",
]  # fmt: skip
SCORED |= {f"scored: {words}": LIES[words] for words in ALSO}
