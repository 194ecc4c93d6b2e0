"""A reader sees the old file or the new one, never a part, whatever happens to the writer."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fedloom.core.files import replacing, sha256, write_atomic


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_written_with_its_folders(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "a" / "b" / "file.json"
    write_atomic(path, b"first", durable)
    write_atomic(path, b"second", durable)
    assert path.read_bytes() == b"second"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt])
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(error), replacing(path) as temporary:
        temporary.write_bytes(b"half of the n")
        raise error
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_takes_the_place_before_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path, durable=False) as temporary:
        temporary.write_bytes(b"new")
        assert not path.exists()
        assert temporary.suffix == ".tmp"
    assert path.read_bytes() == b"new"


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError):
        write_atomic(tmp_path / "file" / "below", b"data")


def test_threads_may_write_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([letter]) * 100_000 for letter in b"abcdefgh"]

    def write(content: bytes) -> None:
        for _ in range(20):
            write_atomic(path, content, durable=False)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not path.exists() or path.read_bytes() in contents
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_the_checksum_is_sha256() -> None:
    assert sha256(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
