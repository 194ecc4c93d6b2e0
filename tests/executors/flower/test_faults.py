"""Faults that a federation has to survive.

Each is measured against a run in which the faulty client was simply lost.
"""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.executors.flower.book import Book
from fedloom.executors.flower.executor import TooFew
from fedloom.executors.flower.settings import Settings
from fedloom.executors.flower.sites import alone
from fedloom.testing import small_world

BAD = 1  # the client that misbehaves, in round 2


def spoiled(change):
    """A mod that changes the upload of client BAD in round 2."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.group_id == "2" and context.node_config["partition-id"] == BAD:
            return change(reply) or reply
        return reply

    return mod


def array(name, change):
    def apply(reply):
        arrays = reply.content["payload"]
        full = next(n for n in arrays if name in n)
        arrays[full] = change(arrays[full])
        reply.content["payload"] = ArrayRecord(dict(arrays))

    return apply


def numpy(change):
    return lambda old: Array(change(old.numpy()))


def renamed(reply):
    arrays = dict(reply.content["payload"])
    name = sorted(arrays)[0]
    arrays["model/other"] = arrays.pop(name)
    reply.content["payload"] = ArrayRecord(arrays)


def without(reply):
    arrays = dict(reply.content["payload"])
    arrays.pop(sorted(arrays)[0])
    reply.content["payload"] = ArrayRecord(arrays)


def receipt(reply):
    reply.content["receipt"] = ConfigRecord({**reply.content["receipt"], "round": 1})


def fails(reply):
    raise RuntimeError("the site's disk is full")


HUGE = 2 * 2**30


def more_right_than_there_are(reply):
    metrics = reply.content["metrics"]
    metrics["score/test"] = [13.0, 12.0, *metrics["score/test"][2:]]


FAULTS = {
    "NaN": (
        array("head.bias", numpy(lambda a: a * np.float32("nan"))),
        "a NaN or infinity in 'model/head.bias'",
    ),
    "infinite": (array("head.bias", numpy(lambda a: a + np.float32("inf"))), "NaN or infinity"),
    "wrong shape": (
        array("head.bias", numpy(lambda a: np.append(a, a))),
        r"'model/head.bias' of shape \(8,\), not",
    ),
    "wrong type": (
        array("head.bias", numpy(lambda a: a.astype(np.float64))),
        "as float64, not float32",
    ),
    "another name": (renamed, "'model/other', which fedavg does not send"),
    "a name missing": (without, "uploaded no 'model/body.0.bias'"),
    # Zeros that nobody looks at take no memory: it is refused by its length.
    "2 GB": (
        array(
            "head.bias", lambda old: Array("float32", (HUGE // 4,), "numpy.ndarray", bytes(HUGE))
        ),
        "2147.5 MB",
    ),
    "a lie": (
        array("head.bias", lambda old: Array("float32", (4,), "numpy.ndarray", b"nonsense" * 5)),
        "but is not",
    ),
    "a scalar": (
        lambda r: r.content["scalars"].update(size=float("nan")),
        "'size', which fedavg does not send",
    ),
    "a loss": (lambda r: r.content["metrics"].update({"loss/ce": float("nan")}), "its ce is nan"),
    "another round": (receipt, "does not come from client 1 in round 2"),
    "impossible score": (more_right_than_there_are, "13 of 12"),
    "a zip": (
        array(
            "head.bias",
            lambda old: Array("float32", (4,), "numpy.ndarray", b"PK\x03\x04" + bytes(100)),
        ),
        "but is not",
    ),
    "6 MB of text": (
        lambda r: r.content.update(extra=ConfigRecord({"text": "x" * 6_000_000})),
        "the reply has 6.0 MB",
    ),
    "another record": (lambda r: r.content.update(extra=ConfigRecord({"a": 1})), "record 'extra'"),
    "a long name": (
        lambda r: r.content["metrics"].update({"loss/" + "x" * 9999: 1.0}),
        r"metric 'loss/x{50,60} \.\.\.'",
    ),
    "a huge loss": (lambda r: r.content["metrics"].update({"loss/ce": 1e308}), "its ce is 1e"),
    "many losses": (
        lambda r: r.content["metrics"].update({f"loss/{i}": 1.0 for i in range(100)}),
        "101 parts",
    ),
    "a list as scalar": (lambda r: r.content["scalars"].update(x=[1, 2]), "'x' is a list"),
    "a long refusal": (
        lambda r: setattr(
            r, "content", RecordDict({"refusal": ConfigRecord({"why": "no\n\x1b[2J" * 9999})})
        ),
        r"^no \[2Jno [^\n\x1b]{270,295}\.\.\.$",
    ),
    "an empty refusal": (
        lambda r: setattr(r, "content", RecordDict({"refusal": ConfigRecord()})),
        "did not say why",
    ),
    "scores of nobody": (
        lambda r: r.content["metrics"].update({"score/train": [1.0, 1.0]}),
        "not asked for",
    ),
    "no content": (lambda r: setattr(r, "content", RecordDict()), "does not come from client"),
    "an exception": (fails, "disk is full"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_upload_is_refused_named_and_the_round_goes_on(fault: str, world) -> None:
    change, said = FAULTS[fault]
    method = make("fedavg")
    expected = small_world.trace(method, dropouts={2: [BAD]})
    here = world(method, mods=(spoiled(change),))
    seen = here.run()
    assert seen.server.equal(expected.server)
    assert [m["lost"] for m in seen.metrics] == [[], [BAD], []]
    (entry,) = [e for e in here.book.answers if e["refused"]]
    assert (entry["round"], entry["kind"], list(entry["refused"])) == (2, "client", [BAD])
    assert sorted(entry["answered"]) == [0, 2, 3]
    with pytest.raises(FedloomError, match=said):
        raise FedloomError(entry["refused"][BAD])


@pytest.mark.parametrize("name", ["scaffold", "fedpcl", "fedproto", "fedfomo", "fedamp"])
@pytest.mark.parametrize("how", ["lost", "silent", "NaN"])
def test_private_states_stay_with_the_last_accepted_round(name: str, how: str, world) -> None:
    """The client goes on from round 1, whether the message or its reply was lost or refused."""
    method = make(name)
    expected = small_world.trace(method, dropouts={2: [BAD]})
    settings = Settings(timeout=0.01, wait=0, limit_mb=5)

    def fault(message):
        last = message.metadata.message_type == "train" and message.metadata.group_id == "2"
        return how if last and message.metadata.dst_node_id == 100 + BAD and how != "NaN" else None

    def poisoned(reply):
        arrays = {
            n: Array((a.numpy() * np.float32("nan")).astype(a.dtype)) if "float" in a.dtype else a
            for n, a in reply.content["payload"].items()
        }
        reply.content["payload"] = ArrayRecord(arrays)

    here = world(
        method, fault=fault, settings=settings, mods=(spoiled(poisoned),) if how == "NaN" else ()
    )
    seen = here.run()
    assert seen.server.equal(expected.server)
    for k in range(4):
        assert here.state(k).equal(Payload.decode(expected.states[-1][k])), f"client {k}"
    missing = [e for e in here.book.answers if e["refused"] or e["silent"]]
    assert [(e["round"], e["kind"]) for e in missing] == [(2, "client")]
    assert (list(missing[0]["refused"]) or missing[0]["silent"]) == [BAD]


class Killed(BaseException):
    """Stands for SIGKILL: nobody catches it."""


@pytest.mark.parametrize("name", ["scaffold", "fedpcl"])
@pytest.mark.parametrize("moment", ["train", "evaluate"])
def test_a_server_killed_in_a_round_resumes_with_clients_that_are_not_ahead(
    name, moment, world, tmp_path
) -> None:
    method = make(name)
    expected = small_world.usual(method)
    calls = []

    def fault(message):
        if message.metadata.message_type == moment and message.metadata.group_id == "2":
            calls.append(message)
            if len(calls) == 3:
                raise Killed
        return None

    first = world(method, fault=fault, schedule={"saved": True})
    first.book = Book.open(tmp_path, "test")
    with pytest.raises(Killed):
        first.run()
    ahead = [k for k in range(4) if (1, 2) in first.versions(k).held()]
    assert len(ahead) == (4 if moment == "evaluate" else 2), (
        "some clients have done round 2 already"
    )
    again = world(method, schedule={"saved": True}, book=Book.open(tmp_path, "test"))
    assert (again.book.attempt, again.book.experiment) == (2, first.book.experiment)
    seen = again.run()
    assert [m["round"] for m in seen.metrics] == [2, 3], "no round is lost, none is done twice"
    assert seen.server.equal(expected.server)
    for k in range(4):
        assert again.state(k).equal(Payload.decode(expected.states[-1][k]))
        assert list(again.versions(k).held()) == [(1, 1), (2, 2), (2, 3)], "what was ahead is gone"


def test_messages_of_a_server_that_is_no_more_leave_no_trace(world) -> None:
    """Every training message of a run delivered again afterwards, in reverse order."""
    sent = []
    here = world(make("scaffold"), fault=lambda m: sent.append(m))
    here.run()
    before = {p: p.read_bytes() for k in range(4) for p in here.versions(k).folder.iterdir()}
    training = [m for m in sent if m.metadata.message_type == "train"]
    assert len(training) == 12
    said = [here.grid.deliver(m).content for m in reversed(training)]
    late = [c["refusal"]["why"] for c in said if "refusal" in c]
    assert len(late) == 8 and all(
        "came late" in why for why in late
    )  # rounds 1 and 2; round 3 is merely repeated
    assert {
        p: p.read_bytes() for k in range(4) for p in here.versions(k).folder.iterdir()
    } == before


def test_a_site_that_lost_its_state_is_named(world) -> None:
    here = world(make("scaffold"))

    def wiped(message):
        if message.metadata.message_type == "train" and message.metadata.group_id == "3":
            for path in here.versions(2).folder.glob("*"):
                path.unlink(missing_ok=True)
        return None

    here.grid.fault = wiped
    seen = here.run()
    assert seen.metrics[-1]["lost"] == [2]
    (entry,) = [e for e in here.book.answers if e["refused"] and e["kind"] == "client"]
    assert "there is no state of round 2" in entry["refused"][2]


def test_sites_that_come_late_and_come_back(world) -> None:
    here = world(make("fedavg"), settings=Settings(timeout=1, wait=0, sites=3, limit_mb=5))
    late = here.grid.nodes.pop(100)

    def move(message):
        if message.metadata.message_type == "train" and message.metadata.group_id == "2":
            here.grid.nodes[100] = late  # a site that was never there comes in round 2
            here.grid.nodes.pop(103, None)  # another one goes
        if message.metadata.group_id == "3" and message.metadata.message_type == "train":
            here.grid.nodes[203] = {"partition-id": 3}  # and comes back as another node
        return None

    here.grid.fault = move
    seen = here.run(rounds=5)
    trained = {
        m["round"]: sorted(e["answered"])
        for m, e in zip(
            seen.metrics, (e for e in here.book.answers if e["kind"] == "client"), strict=True
        )
    }
    assert (
        trained[1] == [1, 2, 3]
        and 0 in trained[3]
        and 3 not in trained[3]
        and trained[5] == [0, 1, 2, 3]
    )
    assert here.book.sites[0].train == 24 and here.roster.nodes[3] == 203
    assert [e["answered"] for e in here.book.answers if e["kind"] == "hello"] == [[1, 3, 2], [0]]


def test_too_few_replies_stop_the_round(world) -> None:
    settings = Settings(timeout=0.01, wait=0, replies=3, limit_mb=5)
    here = world(
        make("fedavg"),
        settings=settings,
        fault=lambda m: (
            "lost"
            if m.metadata.message_type == "train"
            and m.metadata.group_id == "2"
            and m.metadata.dst_node_id > 101
            else None
        ),
    )
    with pytest.raises(TooFew, match="round 2 had 2 of the 3 uploads"):
        here.run()


def test_two_nodes_with_one_number(world, caplog) -> None:
    here = world(make("fedavg"))
    here.grid.nodes[999] = {"partition-id": 2}
    seen = here.run()
    assert seen.server.equal(small_world.usual(make("fedavg")).server)
    assert "it claims to be site 2, which node" in caplog.text


def test_a_site_that_does_not_fit_is_named(world) -> None:
    here = world(make("fedavg"))
    home = here.homes[2]
    data = replace(home.worker.federation.data, classes=("zero", "one", "two", "three"))
    home.worker.federation = replace(alone(here.federation, 2), data=data)
    with pytest.raises(
        FedloomError,
        match=r"site 2 does not fit the others: as classes it has zero, one, two, three, 3",
    ):
        here.run()


def test_who_answered_is_written_down(world, tmp_path) -> None:
    here = world(make("fedavg"))
    here.book = Book.open(tmp_path, "test")
    here.run()
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [(e["round"], e["kind"]) for e in lines] == [
        (1, "hello"),
        *((r, k) for r in (1, 2, 3) for k in ("client", "before")),
    ]
    assert all(sorted(e["answered"]) == [0, 1, 2, 3] and e["attempt"] == 1 for e in lines)


def test_only_a_version_is_kept_at_the_server(world) -> None:
    """The server knows which state a client holds, never the state."""
    here = world(make("fedpcl"))
    here.run()
    assert all(dict(here.store.get(k)) == {"attempt": 1, "round": 3} for k in range(4))
    assert all(isinstance(v, torch.Tensor) for k in range(4) for v in here.state(k).values())
    assert sum(len(here.state(k)) for k in range(4)) > 0


def test_a_newcomer_that_says_nothing_holds_nobody_up(world) -> None:
    here = world(make("fedavg"), settings=Settings(timeout=60, wait=0, sites=3, limit_mb=5))
    here.grid.fault = lambda m: "lost" if m.metadata.dst_node_id == 100 else None
    start = time.monotonic()
    seen = here.run()
    assert len(seen.metrics) == 3 and here.roster.there() == [1, 2, 3]
    assert time.monotonic() - start < 30, "it was waited for"
