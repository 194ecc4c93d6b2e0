"""Hostile replies to every method's server: each is refused, and the others' run is as without it.

One client of four lies in every round after the first, in another way each time. What the server
ends with is compared with a run in which that client was lost in these rounds. A second run has it
lie whenever it introduces itself; there the measure is a run in which it never does. Two more have
it lie about the scores of models that it has trained or was sent.

By default three methods hear all lies, one of them some about scores. With FEDLOOM_ATTACKS=full,
all methods hear every third lie in turn, more than a thousand in all. `-s` shows the table.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from fuzz import FULL, HUNG, ROOM, SLOW, peak
from hostile_replies import HELLOS, LIES, SCORED, SCORES, Lie
from watchdog import Watchdog

from fedloom.core.lookup import make, names
from fedloom.executors.flower.settings import Settings
from fedloom.testing import small_world

LIAR = 1
CHOSEN = names() if FULL else ["fedpcl", "qffl", "scaffold"]
FEW = CHOSEN if FULL else CHOSEN[:1]  # for lies about scores, which cost an evaluation each
TABLE: dict[str, Counter[str]] = {}


def liar(lies: Mapping[int, tuple[str, Lie]], method: str) -> Any:
    """A mod that spoils the liar's replies: one lie per round."""

    def mod(message: Any, context: Any, call_next: Any) -> Any:
        reply = call_next(message, context)
        chosen = lies.get(int(message.metadata.group_id or 0))
        if chosen and context.node_config["partition-id"] == LIAR:
            chosen[1](reply.content, random.Random(f"{method} {chosen[0]}"))
        return reply

    return mod


def told(lies: Mapping[str, Lie], name: str, first: int) -> dict[int, tuple[str, Lie]]:
    """A third of the lies, by the round in which each is told; three methods are told them all."""
    chosen = list(lies.items())[CHOSEN.index(name) % 3 :: 3]
    return dict(enumerate(chosen, start=first))


def refusals(here: Any) -> dict[int, str]:
    """By round, why the liar's reply was refused."""
    return {e["round"]: e["refused"][LIAR] for e in here.book.answers if LIAR in e["refused"]}


def attacked(here: Any, rounds: int, eval_every: int | None = None) -> tuple[Any, float]:
    """Run, and the processor time between two notes of the book, at most."""
    times = [time.process_time()]
    note = here.book.note

    def timed(entry: dict[str, Any]) -> None:
        times.append(time.process_time())
        watchdog.feed()
        note(entry)

    here.book.note = timed
    with Watchdog(HUNG) as watchdog:
        seen = here.run(rounds=rounds, eval_every=eval_every or rounds)
    longest = max(b - a for a, b in pairwise(times))
    return seen, longest


def record(lies: Mapping[int, tuple[str, Lie]], said: Mapping[int, str]) -> list[str]:
    """Count what came of each lie; returns those that were believed."""
    believed = []
    for number, (words, _) in lies.items():
        outcome = "refused" if number in said else "believed"
        TABLE.setdefault(words, Counter())[outcome] += 1
        if number not in said:
            believed.append(words)
    return believed


SETTINGS = Settings(timeout=30, wait=0, limit_mb=5)


@pytest.mark.parametrize("name", CHOSEN)
def test_lies_after_training(name: str, world) -> None:
    method = make(name)
    lies = told(LIES, name, first=2)
    rounds = len(lies) + 2
    memory = peak()
    expected = small_world.trace(
        method, rounds=rounds, eval_every=rounds, dropouts={r: [LIAR] for r in lies}
    )
    here = world(method, mods=(liar(lies, name),), settings=SETTINGS)
    seen, longest = attacked(here, rounds)
    assert record(lies, refusals(here)) == []
    assert seen.server.equal(expected.server), "the server is not what it is without the liar"
    assert seen.metrics[-1]["lost"] == [], "an honest reply is believed again"
    assert all(len(why) <= 300 for why in refusals(here).values())
    assert longest < SLOW
    assert peak() - memory < ROOM


@pytest.mark.parametrize("name", CHOSEN)
def test_lies_when_it_introduces_itself(name: str, world) -> None:
    method = make(name)
    lies = told(HELLOS, name, first=1)
    rounds = len(lies)

    def lost(message: Any) -> str | None:
        hello = message.metadata.message_type == "query.hello"
        return "lost" if hello and message.metadata.dst_node_id == 100 + LIAR else None

    quick = SETTINGS.model_copy(update={"timeout": 0.01})
    expected = world(method, fault=lost, settings=quick).run(rounds=rounds, eval_every=rounds)
    here = world(method, settings=SETTINGS)
    spoiling(here, lies, name, "query.hello")
    seen, longest = attacked(here, rounds)
    assert record(lies, refusals(here)) == []
    assert seen.server.equal(expected.server), "the server is not what it is without the liar"
    assert longest < SLOW


def spoiling(here: Any, lies: Mapping[int, tuple[str, Lie]], name: str, kind: str) -> None:
    """Let the liar spoil its replies to messages of one kind."""
    whole, spoil = here.app, liar(lies, name)

    def app(message: Any, context: Any) -> Any:
        if message.metadata.message_type != kind:
            return whole(message, context)
        return spoil(message, context, whole)

    here.grid.app = app


@pytest.mark.parametrize("name", FEW)
def test_lies_about_scores_after_training(name: str, world) -> None:
    """The whole reply is refused: who lies about scores may lie about the rest."""
    method = make(name)
    lies = told(SCORES, name, first=2)
    rounds = len(lies) + 1
    expected = small_world.trace(method, rounds=rounds, dropouts={r: [LIAR] for r in lies})
    here = world(method, settings=SETTINGS)
    spoiling(here, lies, name, "train")
    seen, longest = attacked(here, rounds, eval_every=1)
    assert record(lies, refusals(here)) == []
    assert seen.server.equal(expected.server), "the server is not what it is without the liar"
    for ours, theirs in zip(seen.metrics, expected.metrics, strict=True):
        assert ours["lost"] == theirs["lost"] and ours["after"] == theirs["after"]
    assert longest < SLOW


@pytest.mark.parametrize("name", FEW)
def test_lies_about_the_scores_of_a_received_model(name: str, world) -> None:
    """The liar's scores are missing, nobody else's are; the server learns as if all were well."""
    method = make(name)
    lies = told(SCORED, name, first=1)
    rounds = len(lies)
    honest = small_world.trace(method, rounds=rounds, eval_every=rounds)
    here = world(method, settings=SETTINGS)
    spoiling(here, lies, name, "evaluate")
    seen, longest = attacked(here, rounds, eval_every=1)
    assert record(lies, refusals(here)) == []
    assert seen.server.equal(honest.server), "evaluation changes nothing"
    for line in seen.metrics:
        scores = line["clients"]["before"]
        assert [k for k, score in enumerate(scores) if score is None] == [LIAR]
        json.dumps(line, allow_nan=False)
    assert longest < SLOW


def teardown_module() -> None:
    """Print the table."""
    total = sum(sum(counts.values()) for counts in TABLE.values())
    print(f"\n{total} hostile replies to {len(CHOSEN)} methods\n")
    print(f"{'lie':42} {'told':>5} {'refused':>8} {'believed':>9}")
    for words, counts in TABLE.items():
        told = sum(counts.values())
        print(f"{words:42} {told:5} {counts['refused']:8} {counts['believed']:9}")
