"""A real federation with TLS and node keys, three sites, of which one lies for twenty rounds.

A fourth node with a registered key describes itself with nonsense. The run ends, and its model is
that of the two honest sites alone, to the last bit.
"""

import json
import shutil
from pathlib import Path

import pytest
from hostile_replies import HELLOS, LIES

import fedloom
from fedloom.engine.checkpoint import Store
from fedloom.engine.config import build
from fedloom.executors.flower.app import write_app
from fedloom.executors.flower.settings import Settings

pytestmark = pytest.mark.federation
SMALL = {"width": 4, "features": 16, "limit_train": 3, "limit_test": 2, "norm": True}
ROUNDS = 20

# Until it has introduced itself, a site is asked to in every round.
SAID = [
    "size -1",
    "size 9223372036854775807",
    "size nan",
    "hello: a tensor nobody asked for",
    "hello: no content",
]
SENT = [
    "a zip",
    "3e+38 in a tensor",
    "3e38 everywhere",
    "nan in a tensor",
    "-1 in a count",
    "a huge shape",
    "nested brackets in a header",
    "ten thousand tensors",
    "another client's receipt",
    "a megabyte of refusal",
    "a part of the loss of 1e308",
    "more than the limit",
    "records of the wrong kind",
    "another type",
    "a longer tensor",
]

APP = """
import json
import random

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

import hostile_replies
import fedloom.executors.flower.client as real

SAID, SENT = {said!r}, {sent!r}


class Hostile(ClientApp):
    def __call__(self, message, context):
        site, kind = context.node_config["partition-id"], message.metadata.message_type
        round = int(message.metadata.group_id or 0)
        if site == 3:
            lie = ConfigRecord({{"about": "[" * 5000}})
            return Message(RecordDict({{"site": lie}}), reply_to=message)
        reply = real.app(message, context)
        if site == 2 and kind == "query.hello" and round <= len(SAID):
            hostile_replies.HELLOS[SAID[round - 1]](reply.content, random.Random(round))
        if site == 2 and kind == "train":
            words = SENT[round - len(SAID) - 1]
            hostile_replies.LIES[words](reply.content, random.Random(round))
        return reply


app = Hostile()
"""


def test_one_hostile_site_among_three(deployment, tmp_path: Path) -> None:
    assert len(SAID) + len(SENT) == ROUNDS
    assert set(SAID) <= set(HELLOS) and set(SENT) <= set(LIES)
    out = tmp_path / "run"
    here = deployment()
    here.link()
    here.register(0, 1, 2, 3)
    for k in range(4):
        here.node(k)
    changes = {**SMALL, "rounds": ROUNDS, "eval_every": ROUNDS}
    config = build({"method": "fedavg", "clients": 3, "partition": "iid"}, changes)
    settings = Settings(out=str(out), wait=600, timeout=300, limit_mb=5)
    folder = write_app(tmp_path / "app", config, settings).parent
    project = folder / "pyproject.toml"
    project.write_text(
        project.read_text().replace("fedloom.executors.flower.client:app", "hostile:app")
    )
    (folder / "hostile.py").write_text(APP.format(said=SAID, sent=SENT))
    shutil.copy(Path(__file__).parent / "hostile_replies.py", folder)
    run = here.run(folder)
    here.until(lambda: run.poll() is not None, 3000, "the end")
    assert fedloom.Run.load(out).finished, here.said("run")[-5000:]

    lines = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    why = {e["round"]: e["refused"]["2"] for e in lines if "2" in e["refused"]}
    print(f"\n{'round':5}  {'what site 2 said':36} why it was refused")
    for number, words in enumerate(SAID + SENT, start=1):
        print(f"{number:5}  {words:36} {why.get(number, 'BELIEVED')[:100]}")
    assert sorted(why) == list(range(1, ROUNDS + 1))
    trained = {e["round"]: sorted(e["answered"]) for e in lines if e["kind"] == "client"}
    assert trained == {r: [0, 1] for r in range(1, ROUNDS + 1)}
    assert "is not let in: a site's description of itself cannot be read" in here.said("run")
    book = json.loads((out / "federation-log.json").read_text())
    assert sorted(book["sites"]) == sorted(book["keys"]) == ["0", "1", "2"]

    everybody = {r: [2] for r in range(1, ROUNDS + 1)}
    alone = tmp_path / "alone"
    fedloom.run("fedavg", partition="iid", clients=3, out=alone, dropouts=everybody, **changes)
    ours, theirs = (Store(f / "checkpoint").load().server for f in (out, alone))
    assert ours is not None and theirs is not None
    assert ours.group("model").equal(theirs.group("model")), "site 2 has left a trace"
