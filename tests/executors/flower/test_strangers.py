"""Who may say what it is: descriptions, keys, and what a site tells or is told to do."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.engine.config import build
from fedloom.executors.flower import client
from fedloom.executors.flower.book import LOG, Book
from fedloom.executors.flower.certificates import write_certificates
from fedloom.executors.flower.settings import Settings, flat
from fedloom.executors.flower.sites import Description, describe
from fedloom.executors.flower.wire import Order, read_order
from fedloom.executors.flower.words import cut, without_paths
from fedloom.testing import small_world

HOSTILE = 1


def honest() -> dict:
    return json.loads(describe(small_world.federation(), HOSTILE).encode())


LIES = {
    "more samples than there can be": {"train": 10**12},
    "as many as fit in 64 bits": {"train": 2**63 - 1},
    "fewer than none": {"test": -1},
    "half a client": {"client": 0.5},
    "a client as text": {"client": "1"},
    "yes as a client": {"client": True},
    "a client beyond the last": {"client": 4},
    "nested classes": {"classes": [["a", ["b"]], "c"]},
    "no classes": {"classes": []},
    "a class twice": {"classes": ["a", "a", "b", "c"]},
    "a domain that is a number": {"domain": 7},
    "a domain that is a list": {"domain": ["a"]},
    "a long domain": {"domain": "x" * 10_000},
    "no type": {"dtype": "object"},
    "a huge sample": {"sample": [2**40]},
    "a sample of many huge sides": {"sample": [2**20, 2**20]},
    "a mean that is no number": {"mean": ["x"]},
    "a million clients": {"clients": 10**6},
    "something else": {"path": "/etc"},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_description_that_lies_is_refused_and_not_stored(lie: str, world, tmp_path) -> None:
    text = json.dumps({**honest(), **LIES[lie]})
    with pytest.raises(FedloomError, match="cannot be read"):
        Description.decode(text)
    _without_the_hostile_one(world, tmp_path, text)


@pytest.mark.parametrize(
    "text", ["[" * 5000, '{"client":' + "[" * 5000, "", "null", "[]", "\ud800", "x" * 5_000_000]
)
def test_a_text_that_is_no_description_is_refused(text: str) -> None:
    with pytest.raises(FedloomError):
        Description.decode(text)


def _without_the_hostile_one(world, tmp_path: Path, text: str) -> None:
    """Run with a site that describes itself with `text`; the run is that of the others."""
    method = make("local")
    here = world(method, settings=Settings(timeout=5, wait=0, sites=3, limit_mb=5))
    here.book = Book.open(tmp_path, "test")
    find = here.app

    def app(message: Message, context) -> Message:
        if message.metadata.message_type == "query.site" and (
            context.node_config["partition-id"] == HOSTILE
        ):
            content = RecordDict({"site": ConfigRecord({"about": text})})
            return Message(content, reply_to=message)
        return find(message, context)

    here.grid.app = app
    here.run(rounds=1)
    assert here.roster.there() == [0, 2, 3]
    assert list(json.loads((tmp_path / LOG).read_text())["sites"]) == ["0", "2", "3"]


def test_a_reply_that_is_no_description_at_all(world) -> None:
    here = world(make("local"), settings=Settings(timeout=5, wait=0, sites=3, limit_mb=5))
    whole = here.app
    contents = iter(
        [
            RecordDict(),
            RecordDict({"site": ConfigRecord({"about": [1, 2]})}),
            RecordDict({"site": ConfigRecord({"about": b"\xff"})}),
            RecordDict({"refusal": ConfigRecord({"why": "x" * 10**6})}),
            RecordDict({"more": ConfigRecord({"y": "z" * 9**8})}),
        ]
    )

    def app(message: Message, context) -> Message:
        hostile = context.node_config["partition-id"] == HOSTILE
        if hostile and message.metadata.message_type == "query.site":
            return Message(next(contents), reply_to=message)
        return whole(message, context)

    here.grid.app = app
    here.run(rounds=1)
    for _ in range(4):
        here.grid.nodes.pop(101, None)
        here.roster.refresh()
        here.grid.nodes[101] = {"partition-id": HOSTILE}
        here.roster.refresh()
        assert 1 not in here.roster.there() and len(here.roster.refused[101]) <= 300


def test_a_stored_description_that_is_bad_is_set_aside(world, tmp_path: Path, caplog) -> None:
    here = world(make("local"), schedule={"saved": True})
    here.book = Book.open(tmp_path, "test")
    here.run(rounds=1)
    body = json.loads((tmp_path / LOG).read_text())
    body["sites"]["2"]["train"] = 10**12
    (tmp_path / LOG).write_text(json.dumps(body))
    book = Book.open(tmp_path, "test")
    assert sorted(book.sites) == [0, 1, 3] and "of site 2 is set aside" in caplog.text
    again = world(make("local"), schedule={"saved": True}, book=book)
    again.run(rounds=2)
    assert sorted(again.book.sites) == [0, 1, 2, 3], "it was asked again"


def test_one_site_alone_does_not_decide_what_the_run_is(world) -> None:
    """The first to come says that it is the only one, with other classes: the majority decides."""
    here = world(make("local"), settings=Settings(timeout=5, wait=0, sites=3, limit_mb=5))
    whole = here.app

    def app(message: Message, context) -> Message:
        if context.node_config["partition-id"] == 0 and (
            message.metadata.message_type == "query.site"
        ):
            about = json.dumps({**honest(), "client": 0, "clients": 1, "classes": ["mine"]})
            return Message(RecordDict({"site": ConfigRecord({"about": about})}), reply_to=message)
        return whole(message, context)

    here.grid.app = app
    here.run(rounds=1)
    assert here.roster.there() == [1, 2, 3] and len(here.book.sites[1].classes) == 4


# -- keys ----------------------------------------------------------------------------------------
PEM = b"-----BEGIN PUBLIC KEY-----\n"


def keyed(here) -> None:
    here.grid.keys = {100 + k: PEM + bytes([65 + k]) for k in range(4)}


def test_a_key_is_one_client(world, caplog) -> None:
    """Node 101 is site 1; later it says that it is site 2, whose node has gone for a moment."""
    here = world(make("fedper"))
    keyed(here)
    got = []

    def fault(message):
        kind, round = message.metadata.message_type, message.metadata.group_id
        if kind == "train" and round == "2":
            here.grid.nodes.pop(102, None)
            here.grid.nodes[101] = {"partition-id": 2}
            here.roster._asked.discard(101)
        if message.metadata.dst_node_id == 101:
            got.append((kind, round))
        return None

    here.grid.fault = fault
    seen = here.run(rounds=4)
    assert "it claims to be site 2, and its key is site 1's" in caplog.text
    assert here.roster.nodes.get(2) != 101
    assert seen.metrics[-1]["round"] == 4


def test_a_client_keeps_its_key_over_a_restart_of_the_server(world, tmp_path, caplog) -> None:
    here = world(make("local"), schedule={"saved": True})
    here.book = Book.open(tmp_path, "test")
    keyed(here)
    here.run(rounds=1)
    assert sorted(json.loads((tmp_path / LOG).read_text())["keys"]) == ["0", "1", "2", "3"]
    again = world(
        make("local"),
        schedule={"saved": True},
        book=Book.open(tmp_path, "test"),
        settings=Settings(timeout=5, wait=0, sites=3, limit_mb=5),
    )
    del again.grid.nodes[102]
    again.grid.nodes[999] = {"partition-id": 2}  # another node, with another key
    again.grid.keys = {100 + k: PEM + bytes([65 + k]) for k in range(4)} | {999: PEM + b"other"}
    again.run(rounds=2)
    assert again.roster.there() == [0, 1, 3]
    assert "it claims to be site 2, which has another key" in caplog.text


def test_the_same_key_may_come_back_under_another_node_id(world) -> None:
    here = world(make("fedavg"))
    keyed(here)

    def move(message):
        if message.metadata.message_type == "train" and message.metadata.group_id == "2":
            here.grid.nodes.pop(103, None)
            here.grid.nodes[203] = {"partition-id": 3}
            here.grid.keys[203] = here.grid.keys[103]
        return None

    here.grid.fault = move
    here.run(rounds=4)
    assert here.roster.nodes[3] == 203 and here.roster.there() == [0, 1, 2, 3]


def test_private_keys_are_nobody_elses_from_the_first_byte(tmp_path: Path, monkeypatch) -> None:
    import os

    modes = {}
    whole = os.open

    def watched(path, flags, mode=0o777, **more):
        modes[Path(path).name] = (flags, mode)
        return whole(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", watched)
    write_certificates(tmp_path / "certs", 1, ["localhost"])
    for name in ("ca.key", "server.key", "site-0"):
        flags, mode = modes[name]
        assert mode == 0o600 and flags & os.O_EXCL
        assert (tmp_path / "certs" / name).stat().st_mode & 0o777 == 0o600


# -- what a site says, and does ------------------------------------------------------------------
def test_sites_do_not_reveal_paths(tmp_path: Path) -> None:
    config = build({"method": "fedavg", "clients": 2, "model": "mlp", "data": "own"}, {"rounds": 1})
    node = {"partition-id": 0, "data": str(tmp_path / "secret ward" / "patients")}
    context = SimpleNamespace(node_config=node, run_config=flat(config, Settings()))
    message = Message(RecordDict({"ask": ConfigRecord({})}), 1, "query.site")
    why = client.app(message, context).content["refusal"]["why"]
    assert "<data>" in why and "secret" not in why and str(tmp_path) not in why


def test_a_lost_state_is_told_without_its_path(world, tmp_path: Path) -> None:
    here = world(make("scaffold"))

    def wiped(message):
        if message.metadata.message_type == "train" and message.metadata.group_id == "2":
            for path in here.versions(2).folder.glob("*"):
                path.unlink(missing_ok=True)
        return None

    here.grid.fault = wiped
    here.run(rounds=2)
    (entry,) = [e for e in here.book.answers if e["refused"] and e["kind"] == "client"]
    assert "there is no state of round 1" in entry["refused"][2]
    assert str(tmp_path) not in entry["refused"][2] and "site-2" not in entry["refused"][2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no /srv/data/x.npz here", "no <path> here"),
        ("'/srv/data' is bad", "'<path>' is bad"),
        ("uploaded 'model/head.bias' and 3/4", "uploaded 'model/head.bias' and 3/4"),
        ("C:\\Users\\me\\x is bad", "<path> is bad"),
        ("in ~/data: no", "in <path> no"),
        ("/my own/place/x", "<data>/x"),
    ],
)
def test_paths_are_replaced(text: str, said: str) -> None:
    assert without_paths(text, {"/my own/place": "<data>", "": "<state>"}) == said


def test_texts_are_cut() -> None:
    assert cut("a\nb\tc\x1b[0m") == "a b c [0m" and cut("x" * 10**7) == "x" * 296 + " ..."


def order(**changes: object) -> RecordDict:
    whole = {
        "experiment": "e", "attempt": 1, "client": 0, "kind": "client", "round": 1,
        "splits": "validation test", "work": 1.0, "metric": "accuracy", "state_attempt": 0,
        "state_round": 0, "limit": 10,
    }  # fmt: skip
    return RecordDict({"order": ConfigRecord({**whole, **changes})})


def test_an_order_is_read_as_it_was_written() -> None:
    assert isinstance(read_order(order()), Order) and read_order(order(splits="")).splits == ""


@pytest.mark.parametrize(
    "change",
    [
        {"splits": "train"},
        {"splits": "validation train"},
        {"splits": "test\ntrain"},
        {"kind": "common"},
        {"client": 0.5},
        {"client": -1},
        {"round": 2**40},
        {"work": float("nan")},
        {"work": 0.0},
        {"limit": -1},
        {"more": 1},
    ],
)
def test_a_site_follows_no_impossible_order(change: dict) -> None:
    with pytest.raises(FedloomError, match="holds no order"):
        read_order(order(**change))


def test_the_run_config_does_not_say_where_a_site_writes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("FEDLOOM_STATE", str(tmp_path / "mine"))
    config = build({"method": "fedavg", "clients": 2, "partition": "iid"}, {"limit_train": 4})
    keys = {**flat(config, Settings()), "federation.state": str(tmp_path / "theirs")}
    context = SimpleNamespace(node_config={"partition-id": 0}, run_config=keys)
    with pytest.raises(FedloomError, match="state"):
        client.from_config(context)
    del keys["federation.state"]
    assert client.from_config(context).memory == tmp_path / "mine"


def test_the_run_config_does_not_say_which_file_a_site_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    keys = {**flat(build({"method": "fedavg"}), Settings()), "method": str(tmp_path / "mine.py")}
    context = SimpleNamespace(node_config={"partition-id": 0}, run_config=keys)
    with pytest.raises(FedloomError, match="method-files=true"):
        client.from_config(context)
    assert not marker.exists()
    keys["method"] = f"{tmp_path / 'mine.py'}+dfdc"
    with pytest.raises(FedloomError, match="method-files=true"):
        client.from_config(context)
    # Escapes of a list, whose text is taken for a name: ['mine.py+dfdc']
    monkeypatch.chdir(tmp_path)
    (tmp_path / "['mine.py").write_text((tmp_path / "mine.py").read_text())
    keys["method"] = '["mine.\\u0070y+dfdc"]'
    for allowed in ({}, {"method-files": False}, {"method-files": "false"}):
        context.node_config = {"partition-id": 0, **allowed}
        with pytest.raises(FedloomError, match="method-files=true"):
            client.from_config(context)
    assert not marker.exists()
    context.node_config = {"partition-id": 0, "method-files": True}
    with pytest.raises(FedloomError, match="must define exactly one @method"):
        client.from_config(context)
    assert marker.exists()
