"""The scripted faults: one run with a fault in every round, real SIGKILLs, and a table.

The table says what came of each fault. The server is a process of its own, and so is a site in the
rounds in which somebody is killed.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch._dynamo  # noqa: F401  (a first step of training imports it, for seconds; forked processes must not each)
from flwr.app import Array, ArrayRecord, Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.executors.flower.book import Book
from fedloom.executors.flower.grid import InProcessGrid
from fedloom.executors.flower.settings import Settings
from fedloom.testing import small_world

ROUNDS = 8
HUGE = 2 * 2**30
SCRIPT = {
    2: "site 1 sends NaN",
    3: "site 1 sends a wrong shape",
    4: "site 1 sends 2 GB",
    5: "site 1 sends nothing",
    6: "site 2 is killed while it trains, and is back",
    7: "the server is killed in the middle, and resumed",
}


def spoil(message, context, call_next):
    """ClientWorker 1 in rounds 2 to 4."""
    reply = call_next(message, context)
    round = int(message.metadata.group_id)
    if context.node_config["partition-id"] == 1 and round in (2, 3, 4):
        arrays = dict(reply.content["payload"])
        name = next(n for n in arrays if "head.bias" in n)
        old = arrays[name].numpy()
        arrays[name] = {
            2: lambda: Array(old * np.float32("nan")),
            3: lambda: Array(np.append(old, old)),
            4: lambda: Array("float32", (HUGE // 4,), "numpy.ndarray", bytes(HUGE)),
        }[round]()
        reply.content["payload"] = ArrayRecord(arrays)
    return reply


class Forking(InProcessGrid):
    """Trains in a process per message in rounds 6 and 7, so that there is something to kill."""

    folder: Path  # where the test and the processes leave each other notes
    phase: int

    def push_messages(self, messages):
        messages = list(messages)
        kind, round = messages[0].metadata.message_type, messages[0].metadata.group_id
        if kind != "train" or round not in ("6", "7"):
            return super().push_messages(messages)
        (message,) = messages
        self._sent += 1
        message.metadata.__dict__["_message_id"] = number = f"message-{self._sent}"
        site = self.nodes[message.metadata.dst_node_id]["partition-id"]
        ours, theirs = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                if (round, site) == ("6", 2) and self.phase == 1:
                    time.sleep(60)  # it is killed before that
                reply = self.deliver(message)
                objects = {i: o.deflate() for i, o in get_all_nested_objects(reply.content).items()}
                with os.fdopen(theirs, "wb") as pipe:
                    pipe.write(pickle.dumps((reply.content.object_id, objects)))
            finally:
                os._exit(0)
        os.close(theirs)
        self.__dict__.setdefault("_pipes", {})[number] = (ours, pid, message)
        (self.folder / f"{self.phase}-round-{round}-site-{site}").write_text(str(pid))
        if round == "7" and self.phase == 1 and site == 3:
            time.sleep(60)  # two of the four have their orders; here the server is killed
        return [number]

    def pull_messages(self, message_ids):
        came = super().pull_messages(message_ids)
        for number in list(message_ids):
            if number in self.__dict__.get("_pipes", {}):
                ours, pid, message = self._pipes[number]
                if select.select([ours], [], [], 0)[0]:
                    with os.fdopen(ours, "rb") as pipe:
                        data = pipe.read()
                    os.waitpid(pid, 0)
                    del self._pipes[number]
                    if data:  # a process that was killed says nothing
                        name, objects = pickle.loads(data)
                        came.append(
                            Message(inflate_object_from_contents(name, objects), reply_to=message)
                        )
        return came


def lost(message):
    """ClientWorker 1's reply in round 5 never comes."""
    late = message.metadata.message_type == "train" and message.metadata.group_id == "5"
    return "silent" if late and message.metadata.dst_node_id == 101 else None


def federation(world, tmp_path: Path, phase: int):
    settings = Settings(timeout=6, wait=0, limit_mb=5)
    here = world(
        make("scaffold"), mods=(spoil,), fault=lost, settings=settings, schedule={"saved": True}
    )
    here.grid = Forking(here.app, here.grid.nodes, fault=lost)
    here.grid.folder, here.grid.phase = tmp_path / "notes", phase
    here.book = Book.open(tmp_path / "log", "test")
    return here


def until(path: Path) -> int:
    """Wait for a note, which is the number of a process."""
    end = time.monotonic() + 120
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end, f"{path.name} never came"
        time.sleep(0.01)
    return int(path.read_text())


@pytest.mark.slow
def test_faults(world, tmp_path: Path) -> None:
    if "fedloom.testing.pretend" in sys.modules:
        # Torch refuses to fork once it has threads for an accelerator, even for a pretend one.
        without = {**os.environ, "FEDLOOM_PRETEND": "0"}
        without.pop("PYTEST_XDIST_WORKER", None)
        command = [sys.executable, "-m", "pytest", f"{__file__}::test_faults"]
        done = subprocess.run(command, env=without, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
        return
    notes = tmp_path / "notes"
    for folder in (notes, tmp_path / "log"):
        folder.mkdir()
    server = os.fork()
    if server == 0:
        try:
            federation(world, tmp_path, 1).run(rounds=ROUNDS)
        finally:
            os._exit(0)
    try:
        os.kill(until(notes / "1-round-6-site-2"), signal.SIGKILL)
        until(notes / "1-round-7-site-3")
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
    time.sleep(0.5)  # the sites that have their orders finish them; nobody hears of it
    again = federation(world, tmp_path, 2)
    ahead = [k for k in range(4) if (1, 7) in again.versions(k).held()]
    seen = again.run(rounds=ROUNDS)

    lines = [
        json.loads(line) for line in (tmp_path / "log" / "answers.jsonl").read_text().splitlines()
    ]
    rounds = {e["round"]: e for e in lines if e["kind"] == "client"}
    print(f"\n{'round':5}  {'fault':48} {'answered':13} what was said")
    for r, e in rounds.items():
        said = "; ".join(e["refused"].values()) or (f"silent: {e['silent']}" if e["silent"] else "")
        print(f"{r:5}  {SCRIPT.get(r, 'none'):48} {sorted(e['answered'])!s:13} {said}")
    assert list(rounds) == list(range(1, ROUNDS + 1)), "no round is lost"
    assert {r: sorted(e["answered"]) for r, e in rounds.items()} == {
        1: [0, 1, 2, 3],
        2: [0, 2, 3],
        3: [0, 2, 3],
        4: [0, 2, 3],
        5: [0, 2, 3],
        6: [0, 1, 3],
        7: [0, 1, 2, 3],
        8: [0, 1, 2, 3],
    }
    for r, said in ((2, "NaN or infinity"), (3, "of shape"), (4, "2147.5 MB")):
        assert list(rounds[r]["refused"]) == ["1"] and said in rounds[r]["refused"]["1"]
    assert rounds[5]["silent"] == [1] and rounds[6]["silent"] == [2]
    assert [e["attempt"] for e in rounds.values()] == [1] * 6 + [2] * 2
    assert ahead, "when the server died, some sites had done round 7"

    # The measure: a run in one process in which those who did not answer were lost.
    gone = {r: [k for k in range(4) if k not in e["answered"]] for r, e in rounds.items()}
    expected = small_world.trace(make("scaffold"), rounds=ROUNDS, dropouts=gone)
    assert seen.server.equal(expected.server)
    for k in range(4):
        assert again.state(k).equal(Payload.decode(expected.states[-1][k])), f"site {k}"
        assert all(
            version <= (2, 8) and version != (1, 7) for version in again.versions(k).held()
        ), "ahead"
