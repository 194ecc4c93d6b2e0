"""What attacks have in common: damage, a clock, a bound on memory, and a table."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from watchdog import Watchdog

from fedloom.core.errors import FedloomError
from fedloom.core.files import sha256
from fedloom.metrics.cost import peak_memory_mb

FULL = os.environ.get("FEDLOOM_ATTACKS") == "full"
FIRST = int(os.environ.get("FEDLOOM_FIRST", "0"))  # the number of the first case
CASES = int(os.environ.get("FEDLOOM_CASES", "0"))  # how many to try, in place of the usual number
SLOW = 5.0  # seconds of processor time for one case
HUNG = 120.0  # seconds for it, whoever else wants the processor
ROOM = 500 << 10  # kilobytes by which all cases together may raise the peak of memory

# A run that takes a moment.
SMALL: dict[str, Any] = {
    "clients": 4, "rounds": 2, "width": 4, "features": 8, "limit_train": 3, "limit_test": 2
}  # fmt: skip

# Prepares a case in an empty folder, and says what it has done.
Prepare = Callable[[random.Random, Path], str]
# Uses what was prepared as its victim would; fails if it was wrongly accepted.
Use = Callable[[Path, str], Any]


def peak() -> int:
    """The most memory this process has had, in kilobytes."""
    try:
        import resource
    except ImportError:
        return round(peak_memory_mb() * 1024)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def damaged(chance: random.Random, data: bytes) -> bytes:
    """These bytes with something wrong in them."""
    if not data:
        return chance.randbytes(9)
    changed = bytearray(data)
    place = chance.randrange(len(changed))
    length = chance.choice([1, 2, 4, 8, 64, 1000])
    kind = chance.randrange(8)
    if kind <= 2:
        for _ in range(chance.choice([1, 1, 1, 3, 20])):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    elif kind == 3:
        del changed[place:]
    elif kind == 4:
        del changed[place : place + length]
    elif kind == 5:
        changed[place:place] = chance.randbytes(length)
    elif kind == 6:
        wrong = chance.choice([b"\x00", b"\xff", b"\x7f", b"\x80", b"[", b"9", b'"'])
        changed[place : place + length] = wrong * length
    else:
        other = chance.randrange(len(changed))
        changed[place : place + length] = data[other : other + length]
    return bytes(changed)


ODD: list[Any] = [
    None, -1, 0, 2**31, 2**63, 10**30, 1.5, 1e308, float("nan"), float("inf"), "", "../x",
    "x" * 9999, [], {}, True, "9" * 5000, [[[]]], {"0": {}}, [2**40], "\x00", "hf:/etc", "x.py",
]  # fmt: skip


def spoilt(chance: random.Random, body: Any) -> Any:
    """A JSON value with something else somewhere inside."""
    if isinstance(body, list) and body and chance.random() < 0.8:
        place = chance.randrange(len(body))
        return [*body[:place], spoilt(chance, body[place]), *body[place + 1 :]]
    if not isinstance(body, dict) or not body or chance.random() < 0.1:
        return chance.choice(ODD)
    name = chance.choice(sorted(body))
    changed = dict(body)
    if chance.random() < 0.15:
        del changed[name]
    elif chance.random() < 0.15:
        changed[chance.choice(["-1", "x", "1.5", "9" * 30])] = changed[name]
    else:
        changed[name] = spoilt(chance, body[name])
    return changed


def signed(body: dict[str, Any]) -> str:
    """A manifest with the checksum that belongs to it: a stranger can compute it too."""
    unsigned = {name: value for name, value in body.items() if name != "sha256"}
    return json.dumps({**unsigned, "sha256": sha256(json.dumps(unsigned, sort_keys=True).encode())})


def attack(what: str, full: int, few: int, folder: Path, prepare: Prepare, use: Use) -> None:
    """Try many cases, and print how they ended.

    Each must be refused with a sentence or stand the check of `use`. Anything else is a failure.
    """
    outcomes: Counter[str] = Counter()
    number = CASES or (full if FULL else few)
    before, slowest = peak(), 0.0
    for case in range(FIRST, FIRST + number):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        chance = random.Random(f"{what} {case}")
        words = prepare(chance, folder)
        start = time.process_time()
        try:
            with Watchdog(HUNG), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                use(folder, words)
            outcomes["accepted"] += 1
        except FedloomError as error:
            assert "\n" not in str(error).strip(), (case, words, str(error))
            unforeseen = "the reader " in str(error) and " failed at " in str(error)
            outcomes["refused, unforeseen" if unforeseen else "refused"] += 1
        except BaseException as error:
            raise AssertionError(f"{what}, case {case} ({words}): {error!r}") from error
        slowest = max(slowest, time.process_time() - start)
        assert slowest < SLOW, (case, words)
        assert peak() - before < ROOM, (case, words)
    counts = ", ".join(f"{count} {words}" for words, count in sorted(outcomes.items()))
    more = (peak() - before) >> 10
    print(f"\n| {what} | {number} | {counts} | {slowest:.2f} s | {more} MB |")
    refused = outcomes["refused"] + outcomes["refused, unforeseen"]
    assert refused > number / 10, outcomes
