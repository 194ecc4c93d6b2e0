import builtins
import errno
import gc
import hashlib
import json
import os
import random
import shutil
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.core import files as core_files
from fedloom.core.errors import CheckpointError
from fedloom.core.files import sha256, write_atomic
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.engine import checkpoint as state
from fedloom.engine.checkpoint import FORMAT, Checkpoint, Store

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def always_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "SYNC", 0.0)


def server(round: int) -> Payload:
    return Payload(
        model=Tree({"w": torch.arange(6.0) + round, "n": torch.tensor(round)}), round=round
    )


def memory(k: int, round: int) -> Payload:
    return Payload(
        head=Tree({"w": torch.full((3,), float(k)), "b": torch.tensor(round)}),
        seen=round,
        fine=True,
    )


def checkpoint(round: int) -> Checkpoint:
    return Checkpoint(
        round, server(round), {"bytes": {"up": 3 * round, "down": 40}, "note": "plain"}
    )


def play(
    folder: Path,
    rounds: range,
    clients: Callable[[int], list[int]] = lambda r: [0, r],
    last: bool = True,
) -> Store:
    """In every round client 0 and client `round` get a new state."""
    store = Store(folder)
    for round in rounds:
        for k in clients(round):
            store.put(k, memory(k, round))
        store.save(checkpoint(round), last)
    return store


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def manifests(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("round-*.json"))


def body(folder: Path, round: int) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((folder / f"round-{round:06d}.json").read_bytes())
    return parsed


def named(folder: Path) -> set[str]:
    """All files that are named by a manifest, and the manifests."""
    found = set(manifests(folder))
    for name in manifests(folder):
        manifest = json.loads((folder / name).read_bytes())
        found |= {manifest["server"], *manifest["clients"].values()}
    return found


def quietly(store: Store) -> Checkpoint:
    """Load with no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return store.load()


def assert_is(found: Checkpoint, store: Store, round: int) -> None:
    """`found` is what `play` saved after `round`, and the store has its client states."""
    assert found.round == round
    assert found.server is not None and found.server.encode() == server(round).encode()
    assert found.extra == checkpoint(round).extra
    assert store.get(0).encode() == memory(0, round).encode()
    for k in range(1, round + 1):
        assert store.get(k).encode() == memory(k, k).encode()
    assert len(store.get(round + 1)) == 0


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of rounds 2 and 3; tests work on copies of it."""
    folder = tmp_path_factory.mktemp("two") / "checkpoint"
    play(folder, range(1, 4))
    return folder


@pytest.fixture
def fresh(two: Path, tmp_path: Path) -> Callable[[], Path]:
    """Gives the same folder again and again, as good as new."""

    def make() -> Path:
        target = tmp_path / "copy"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(two, target)
        return target

    return make


# -- get, put, save, load -------------------------------------------------------------------------
def test_in_memory() -> None:
    store = Store()
    assert len(store.get(0)) == 0
    store.put(0, memory(0, 1))
    store.save(checkpoint(1))
    store.put(1, memory(1, 1))
    assert store.get(0).equal(memory(0, 1)) and store.get(1).equal(memory(1, 1))
    store.put(0, memory(0, 2))
    store.save(checkpoint(2))
    assert store.get(0).equal(memory(0, 2)) and store.get(1).equal(memory(1, 1))
    assert len(store.get(2)) == 0


def test_in_memory_there_is_nothing_to_load() -> None:
    assert quietly(Store()) == Checkpoint(0, None, {})


def test_an_empty_or_absent_folder_holds_no_checkpoint(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        store = Store(folder)
        assert quietly(store) == Checkpoint(0, None, {})
        assert len(store.get(3)) == 0


def test_round_trip(tmp_path: Path) -> None:
    store = play(tmp_path / "deep" / "folder", range(1, 4))
    other = Store(tmp_path / "deep" / "folder")
    assert_is(quietly(other), other, 3)
    for k in range(5):
        assert store.get(k).equal(other.get(k)), "the one that wrote reads the same"


def test_states_are_there_before_and_after_they_are_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(4, memory(4, 1))
    assert store.get(4).equal(memory(4, 1))
    assert files(tmp_path) == {}, "nothing is written before the checkpoint"
    store.save(checkpoint(1))
    assert store.get(4).equal(memory(4, 1))
    store.put(4, memory(4, 2))
    assert store.get(4).equal(memory(4, 2)), "the newest is given"
    reread = Store(tmp_path)
    quietly(reread)
    assert reread.get(4).equal(memory(4, 1)), "what was not checkpointed is not on disk"


def test_a_resumed_store_goes_on(tmp_path: Path) -> None:
    play(tmp_path, range(1, 3))
    store = Store(tmp_path)
    assert_is(quietly(store), store, 2)
    store.put(0, memory(0, 3))
    store.put(3, memory(3, 3))
    store.save(checkpoint(3))
    again = Store(tmp_path)
    assert_is(quietly(again), again, 3)
    assert manifests(tmp_path) == ["round-000002.json", "round-000003.json"]


def test_absent_clients_are_empty_and_cost_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(7, Payload())
    store.save(checkpoint(1))
    assert body(tmp_path, 1)["clients"] == {}
    assert len(files(tmp_path)) == 2
    assert isinstance(store.get(7), Payload) and len(store.get(7)) == 0


def test_a_state_can_become_empty_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(7, memory(7, 1))
    store.save(checkpoint(1))
    store.put(7, Payload())
    assert len(store.get(7)) == 0
    store.save(checkpoint(2))
    again = Store(tmp_path)
    assert quietly(again).round == 2
    assert len(again.get(7)) == 0


def test_other_clients_saves_change_no_state(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(5, memory(5, 1))
    store.save(checkpoint(1))
    name = body(tmp_path, 1)["clients"]["5"]
    written = (tmp_path / name).stat()
    for round in range(2, 7):
        store.put(round * 10, memory(round * 10, round))
        store.save(checkpoint(round))
        assert store.get(5).equal(memory(5, 1))
        assert body(tmp_path, round)["clients"]["5"] == name
    after = (tmp_path / name).stat()
    assert (after.st_ino, after.st_mtime_ns) == (written.st_ino, written.st_mtime_ns), (
        "nor is it written again"
    )
    again = Store(tmp_path)
    quietly(again)
    assert again.get(5).equal(memory(5, 1))


def test_equal_states_share_one_file(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for k in range(5):
        store.put(k, Payload(w=torch.ones(3)))
    store.save(checkpoint(1))
    assert len(files(tmp_path)) == 3
    store.put(0, Payload(w=torch.zeros(3)))
    store.save(checkpoint(2))
    assert store.get(0)["w"].sum() == 0  # type: ignore[union-attr]
    assert store.get(1)["w"].sum() == 3  # type: ignore[union-attr]


def test_nothing_is_written_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.put(1, memory(1, 1))
    store.save(checkpoint(1))
    written: list[str] = []
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (written.append(Path(b).name), real(a, b))[1])
    store.put(1, memory(1, 1))
    store.put(2, memory(1, 1))
    store.save(Checkpoint(2, server(1)))
    assert written == ["round-000002.json"]
    assert store.get(1).equal(memory(1, 1)) and store.get(2).equal(memory(1, 1))


def test_what_is_on_disk_is_not_kept_in_memory(tmp_path: Path) -> None:
    store = Store(tmp_path)
    tensor = torch.ones(3)
    watch = weakref.ref(tensor)
    store.put(1, Payload(w=tensor))
    del tensor
    gc.collect()
    assert watch() is not None
    store.save(checkpoint(1))
    gc.collect()
    assert watch() is None
    assert store.get(1).equal(Payload(w=torch.ones(3)))


def test_extra_comes_back(tmp_path: Path) -> None:
    mixed = [1, 2.5, None, True, 'naïve "q" 😀']
    extra = {"bytes": {"up": 1, "down": 2}, "list": mixed, "tiny": 1e-05, "deep": {"a": {}}}
    Store(tmp_path).save(Checkpoint(1, server(1), extra))
    assert quietly(Store(tmp_path)).extra == extra


def test_extra_with_numbers_as_keys_is_not_taken_for_damage(tmp_path: Path) -> None:
    """JSON makes texts of them, which sort differently."""
    Store(tmp_path).save(Checkpoint(1, server(1), {"by client": {2: "b", 10: "j"}}))
    found = quietly(Store(tmp_path))
    assert found.round == 1 and found.extra == {"by client": {"2": "b", "10": "j"}}


# -- what is in the folder ------------------------------------------------------------------------
def test_two_manifests_are_kept_and_no_file_without_a_name(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for round in range(1, 8):
        store.put(0, memory(0, round))
        store.put(round, memory(round, round))
        store.save(checkpoint(round))
        assert manifests(tmp_path) == [
            f"round-{r:06d}.json" for r in range(max(1, round - 1), round + 1)
        ]
        assert set(files(tmp_path)) == named(tmp_path)
    clients = {f"{sha256(memory(k, k).encode())}.safetensors" for k in range(1, 8)}
    changing = {
        f"{sha256(p.encode())}.safetensors" for r in (6, 7) for p in (server(r), memory(0, r))
    }
    assert named(tmp_path) == clients | changing | set(manifests(tmp_path))


def test_the_manifest_says_what_is_what(two: Path) -> None:
    manifest = body(two, 3)
    assert manifest["format"] == FORMAT and manifest["round"] == 3
    assert list(manifest["clients"]) == ["0", "1", "2", "3"]
    for name in [manifest["server"], *manifest["clients"].values()]:
        assert name == hashlib.sha256((two / name).read_bytes()).hexdigest() + ".safetensors"
    assert (two / manifest["clients"]["2"]).read_bytes() == memory(2, 2).encode()


def test_nothing_is_pickled(two: Path) -> None:
    found = files(two)
    assert {Path(name).suffix for name in found} == {".json", ".safetensors"}
    for name, data in found.items():
        if name.endswith(".json"):
            assert isinstance(json.loads(data), dict)
        else:
            assert Payload.decode(data).encode() == data


def test_identical_histories_give_identical_folders(tmp_path: Path) -> None:
    play(tmp_path / "a", range(1, 5))
    play(tmp_path / "b", range(1, 5))
    play(
        tmp_path / "c", range(1, 5), clients=lambda r: [r, 0]
    )  # in one round the order does not matter
    play(tmp_path / "d", range(1, 3))
    resumed = Store(tmp_path / "d")
    resumed.load()
    for round in (3, 4):
        resumed.put(0, memory(0, round))
        resumed.put(round, memory(round, round))
        resumed.save(checkpoint(round))
    assert (
        files(tmp_path / "a")
        == files(tmp_path / "b")
        == files(tmp_path / "c")
        == files(tmp_path / "d")
    )
    play(tmp_path / "e", range(1, 5), clients=lambda r: [0])
    assert files(tmp_path / "a") != files(tmp_path / "e")


def test_loading_changes_nothing_and_tidying_removes_what_a_killed_writer_left(
    fresh: Callable[[], Path],
) -> None:
    folder = fresh()
    before = files(folder)
    (folder / ".x.tmp").write_bytes(b"half")
    (folder / ".round-000004.json.123.tmp").write_bytes(b"{")
    (folder / f"{'0' * 64}.safetensors").write_bytes(b"written, but the manifest was not")
    littered = files(folder)
    store = Store(folder)
    assert_is(quietly(store), store, 3)
    assert files(folder) == littered
    store.tidy()
    assert files(folder) == before


def test_what_a_killed_writer_left_is_cleaned_on_save(tmp_path: Path) -> None:
    (tmp_path / ".x.tmp").write_bytes(b"half")
    (tmp_path / f"{'0' * 64}.safetensors").write_bytes(b"of no manifest")
    play(tmp_path, range(1, 2))
    assert set(files(tmp_path)) == named(tmp_path)


def test_other_files_are_left_alone(fresh: Callable[[], Path]) -> None:
    folder = fresh()
    (folder / "notes.txt").write_text("mine")
    quietly(Store(folder))
    assert (folder / "notes.txt").read_text() == "mine"


# -- damage ---------------------------------------------------------------------------------------
def newest(folder: Path, kind: str) -> Path:
    """The newest manifest, or a file that only it names."""
    if kind == "manifest":
        return folder / "round-000003.json"
    manifest = body(folder, 3)
    return folder / (manifest["server"] if kind == "server" else manifest["clients"]["3"])


def assert_goes_back(folder: Path) -> None:
    """Loading gives round 2 with one warning that names round 3; after tidying all is quiet."""
    store = Store(folder)
    before = files(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = store.load()
    assert len(caught) == 1
    text = str(caught[0].message)
    assert (
        text.startswith("round-000003.json is damaged")
        and "Going on from round-000002.json instead." in text
    )
    assert_is(found, store, 2)
    assert files(folder) == before, "loading only reads"
    store.tidy()
    assert set(files(folder)) == named(folder)
    assert manifests(folder) == ["round-000002.json"]
    again = Store(folder)
    assert_is(quietly(again), again, 2)


@pytest.mark.parametrize("kind", ["manifest", "server", "client"])
def test_a_flipped_bit_anywhere_goes_back(fresh: Callable[[], Path], kind: str) -> None:
    rng = random.Random(kind)
    for _ in range(150):
        folder = fresh()
        path = newest(folder, kind)
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        assert_goes_back(folder)


@pytest.mark.parametrize("kind", ["manifest", "server", "client"])
def test_a_truncated_file_goes_back(fresh: Callable[[], Path], kind: str) -> None:
    size = newest(fresh(), kind).stat().st_size
    for length in {0, 1, 8, size // 2, size - 1, *random.Random(kind).sample(range(size), 20)}:
        folder = fresh()
        os.truncate(newest(folder, kind), length)
        assert_goes_back(folder)


@pytest.mark.parametrize("kind", ["server", "client"])
def test_a_lost_file_goes_back(fresh: Callable[[], Path], kind: str) -> None:
    folder = fresh()
    newest(folder, kind).unlink()
    assert_goes_back(folder)


@pytest.mark.parametrize(
    "text", [b"[]", b"3", b"null", b'"x"', b"{}", b'{"sha256": "0"}', b"\xff\xfe", b"\0" * 400]
)
def test_a_manifest_that_is_none_goes_back(fresh: Callable[[], Path], text: bytes) -> None:
    folder = fresh()
    newest(folder, "manifest").write_bytes(text)
    assert_goes_back(folder)


@pytest.mark.parametrize("kind", ["manifest", "server", "client"])
def test_a_run_that_went_back_ends_as_if_nothing_had_happened(
    fresh: Callable[[], Path], two: Path, kind: str
) -> None:
    folder = fresh()
    path = newest(folder, kind)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    store = Store(folder)
    with pytest.warns(UserWarning, match=r"round-000003\.json"):
        store.load()
    store.put(0, memory(0, 3))
    store.put(3, memory(3, 3))
    store.save(checkpoint(3))
    assert files(folder) == files(two)


@pytest.mark.parametrize("first", ["manifest", "server"])
@pytest.mark.parametrize("second", ["manifest", "server"])
def test_both_damaged_is_an_error(fresh: Callable[[], Path], first: str, second: str) -> None:
    folder = fresh()
    paths = [folder / "round-000002.json", folder / "round-000003.json"]
    servers = [folder / body(folder, round)["server"] for round in (2, 3)]
    for path in (
        paths[0] if first == "manifest" else servers[0],
        paths[1] if second == "manifest" else servers[1],
    ):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        Store(folder).load()
    text = str(caught.value)
    assert "round-000003.json is damaged" in text and "round-000002.json is damaged" in text
    assert f"No whole checkpoint is left in {folder}; `fedloom run` with --fresh" in text
    assert manifests(folder) == [p.name for p in paths], "the evidence stays"


def test_a_file_of_both_checkpoints_damaged_is_an_error(fresh: Callable[[], Path]) -> None:
    folder = fresh()
    path = folder / body(folder, 3)["clients"]["1"]
    assert path.name == body(folder, 2)["clients"]["1"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=path.name[:12]):
        Store(folder).load()


def test_a_damaged_file_is_not_taken_for_whole_later(fresh: Callable[[], Path]) -> None:
    """It has the right name, so a later checkpoint with the same content could trust it."""
    folder = fresh()
    path = folder / body(folder, 3)["clients"]["1"]
    path.write_bytes(path.read_bytes()[:-1])
    store = Store(folder)
    with pytest.raises(CheckpointError):
        store.load()
    store.put(1, memory(1, 1))
    store.save(checkpoint(4))
    again = Store(folder)
    assert quietly(again).round == 4
    assert again.get(1).equal(memory(1, 1))


def test_the_only_checkpoint_damaged_is_an_error(tmp_path: Path) -> None:
    play(tmp_path, range(1, 2))
    os.truncate(tmp_path / "round-000001.json", 30)
    with pytest.raises(
        CheckpointError,
        match=r"round-000001\.json is damaged \(not readable\)\. No whole checkpoint",
    ):
        Store(tmp_path).load()


def test_damage_to_the_older_checkpoint_does_not_matter(fresh: Callable[[], Path]) -> None:
    folder = fresh()
    (folder / "round-000002.json").write_bytes(b"damaged")
    store = Store(folder)
    assert_is(quietly(store), store, 3)


def another_format(folder: Path, round: int, number: Any) -> None:
    manifest = body(folder, round)
    del manifest["sha256"]
    manifest["format"] = number
    manifest["sha256"] = sha256(json.dumps(manifest, sort_keys=True).encode())
    (folder / f"round-{round:06d}.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("number", "age"), [(FORMAT - 1, "an older"), (0, "an older"), (99, "a newer")]
)
def test_an_unknown_format_is_refused(tmp_path: Path, number: int, age: str) -> None:
    play(tmp_path, range(1, 2))
    another_format(tmp_path, 1, FORMAT)
    assert quietly(Store(tmp_path)).round == 1, "the manifest made here is a right one"
    another_format(tmp_path, 1, number)
    before = files(tmp_path)
    with pytest.raises(
        CheckpointError, match=rf"round-000001\.json has format {number}, from {age} version"
    ):
        Store(tmp_path).load()
    assert files(tmp_path) == before


def test_a_checkpoint_of_an_unknown_format_is_not_deleted(fresh: Callable[[], Path]) -> None:
    """It is not damaged: the version that wrote it can read it."""
    folder = fresh()
    another_format(folder, 3, FORMAT + 1)
    before = files(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            Store(folder).load()
        except CheckpointError as error:
            assert f"round-000003.json has format {FORMAT + 1}" in str(error)
    assert files(folder) == before


# -- the disk is full -----------------------------------------------------------------------------
def full(monkeypatch: pytest.MonkeyPatch, call: str, after: int) -> None:
    """From now on `call` works `after` times, then there is no space."""
    owner = builtins if call == "open" else os
    real, left = getattr(owner, call), [after]

    def fake(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **kwargs)

    if call == "open":
        monkeypatch.setattr(core_files, "open", fake, raising=False)
    else:
        monkeypatch.setattr(os, call, fake)


@pytest.mark.parametrize("call", ["replace", "fsync", "open"])
@pytest.mark.parametrize("after", range(4))
def test_a_full_disk_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, after: int
) -> None:
    folder, whole = tmp_path / "run", tmp_path / "whole"
    play(whole, range(1, 4))
    store = play(folder, range(1, 3))
    before = files(folder)
    store.put(0, memory(0, 3))
    store.put(3, memory(3, 3))
    with monkeypatch.context() as patch:
        full(patch, call, after)  # two client files, the server, the manifest
        for _ in range(2):  # it may be tried again in vain
            with pytest.raises(CheckpointError) as caught:
                store.save(checkpoint(3))
            text = str(caught.value)
            assert (
                "checkpoint of round 3: No space left on device" in text
                and "the one before it is intact" in text
            )
            assert not [name for name in files(folder) if name.endswith(".tmp")]
            assert before.items() <= files(folder).items()
            assert manifests(folder) == ["round-000001.json", "round-000002.json"]
    assert store.get(0).equal(memory(0, 3)) and store.get(3).equal(memory(3, 3)), (
        "nothing is forgotten meanwhile"
    )
    other = Store(folder)
    assert_is(quietly(other), other, 2)
    other.tidy()
    assert files(folder) == before
    store.save(checkpoint(3))
    assert files(folder) == files(whole)
    again = Store(folder)
    assert_is(quietly(again), again, 3)


def test_a_full_disk_at_the_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    with monkeypatch.context() as patch:
        full(patch, "fsync", 1)
        with pytest.raises(CheckpointError, match="No space left"):
            store.save(checkpoint(1))
    assert quietly(Store(tmp_path)) == Checkpoint(0, None, {})
    store.save(checkpoint(1))
    assert quietly(Store(tmp_path)).round == 1
    assert set(files(tmp_path)) == named(tmp_path)


def test_write_atomic_leaves_the_old_file_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "file.json"
    write_atomic(path, b"old")
    for call in ("replace", "fsync"):
        with monkeypatch.context() as patch:
            full(patch, call, 0)
            with pytest.raises(OSError, match="No space left"):
                write_atomic(path, b"the new one")
        assert files(path.parent) == {"file.json": b"old"}
    write_atomic(path, b"the new one")
    assert files(path.parent) == {"file.json": b"the new one"}


def test_write_atomic_syncs_before_it_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the name could survive a power cut and the content not."""
    calls = []
    for call in ("fsync", "replace"):
        real = getattr(os, call)
        monkeypatch.setattr(os, call, lambda *a, c=call, r=real: (calls.append(c), r(*a))[1])
    write_atomic(tmp_path / "file", b"data")
    assert calls[:2] == ["fsync", "replace"]


def test_the_manifest_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (written.append(Path(b).name), real(a, b))[1])
    play(tmp_path, range(1, 3))
    assert [Path(n).suffix for n in written] == [".safetensors"] * 3 + [".json"] + [
        ".safetensors"
    ] * 3 + [".json"]


# -- how often the disk is waited for -------------------------------------------------------------
def test_between_times_the_disk_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: (synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name), real(fd))[1],
    )
    monkeypatch.setattr(state, "SYNC", 3600.0)
    store = play(tmp_path, range(1, 2), last=False)
    first = named(tmp_path) - {"round-000001.json"}
    assert first <= set(
        synced
    )  # the first checkpoint of a process is on the disk before its manifest
    assert synced.index(max(first, key=synced.index)) < next(
        i for i, n in enumerate(synced) if n.startswith(".round")
    )
    synced.clear()
    for round in range(2, 6):
        store.put(0, memory(0, round))
        store.put(round, memory(round, round))
        store.save(checkpoint(round))
    assert not synced
    # The two newest, and the one that would survive a power cut.
    assert manifests(tmp_path) == ["round-000001.json", "round-000004.json", "round-000005.json"]
    assert set(files(tmp_path)) == named(tmp_path)
    store.put(0, memory(0, 6))
    store.save(checkpoint(6), last=True)
    assert named(tmp_path) - {"round-000005.json", "round-000006.json"} > {
        n for n in synced if "safetensors" in n
    }
    states = set(body(tmp_path, 6)["clients"].values()) - first
    assert states <= set(synced), "a state of an earlier round is on the disk too"
    assert manifests(tmp_path) == ["round-000005.json", "round-000006.json"]


@pytest.mark.parametrize("lost", ["empty", "gone"])
def test_after_a_power_cut_the_checkpoint_on_the_disk_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """What was never waited for comes back without content, or not at all."""
    monkeypatch.setattr(state, "SYNC", 3600.0)
    play(tmp_path, range(1, 6), last=False)
    survives = {
        "round-000001.json",
        body(tmp_path, 1)["server"],
        *body(tmp_path, 1)["clients"].values(),
    }
    for path in [p for p in tmp_path.iterdir() if p.name not in survives]:
        path.write_bytes(b"") if lost == "empty" else path.unlink()
    store = Store(tmp_path)
    if lost == "gone":
        assert_is(quietly(store), store, 1)
    else:
        with pytest.warns(UserWarning, match=r"Going on from round-000001\.json"):
            assert_is(store.load(), store, 1)
