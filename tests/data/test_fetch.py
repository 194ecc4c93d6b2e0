"""Data sets from the net, which is a server on this machine."""

from __future__ import annotations

import errno
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedloom.core.errors import FedloomError
from fedloom.data import counting, fetch, published
from fedloom.data.catalogue import load
from fedloom.data.published import Download, find
from fedloom.testing import replicas
from fedloom.testing.replicas.tools import packed


class Server(ThreadingHTTPServer):
    """Serves `files`; `broken` is how many answers stop after half of what they promise."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.broken = 0
        self.ranges = True
        self.asked: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        self.server.asked.append((self.path, self.headers.get("Range")))
        data = self.server.files.get(self.path.partition("?")[0])
        if data is None:
            self.send_error(404, "not here")
            return
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked and self.server.ranges:
            start = int(asked[1])
            if start >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("ETag", '"' + hashlib.sha256(data).hexdigest() + '"')
        self.send_header("X-Repo-Commit", "c" * 40)
        self.end_headers()
        sent = data[start:]
        if self.server.broken and body:
            self.server.broken -= 1
            sent = sent[: len(sent) // 2]
        if body:
            self.wfile.write(sent)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = Server()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture
def served(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bytes]:
    """Serve a replica of CIFAR-10 as its archive; the catalogue then points to it."""

    def serve(**changes: str) -> bytes:
        replica = replicas.make("cifar10", tmp_path / "replica")
        archive = packed(replica.folder, tmp_path / "cifar-10-python.tar.gz").read_bytes()
        server.files["/cifar-10-python.tar.gz"] = archive
        download = Download(
            "cifar-10-python.tar.gz",
            url=f"{server.url}/cifar-10-python.tar.gz",
            md5=hashlib.md5(archive).hexdigest(),
        )
        entry = replace(find("cifar10"), downloads=(replace(download, **changes),))
        monkeypatch.setitem(published.published(), "cifar10", entry)
        monkeypatch.setattr(counting, "expected_of", lambda entry, layout: replica.expected)
        return archive

    return serve


def silent(what: str, done: int, total: int) -> None:
    """Nobody watches."""


def test_get_fetches_checks_and_imports(served, fedloom, tmp_path) -> None:
    served()
    code, out, err = fedloom("data", "get", "CIFAR-10", "--data-root", "data")
    assert code == 0, err
    assert "CIFAR-10 is complete and kept in" in out and "100 train, 20 test; 10 classes" in out
    assert len(load("cifar10", root=str(tmp_path / "data")).y) == 120
    assert not list((tmp_path / "data" / ".downloads").iterdir())
    code, out, err = fedloom("data", "get", "cifar10", "--data-root", "data")
    assert code != 0 and "--replace imports cifar10 anew" in err
    code, out, _ = fedloom("data", "list", "--data-root", "data", "--json")
    told = json.loads(out)["data"]["cifar10"]
    assert told["imported"] and told["command"] == "--data cifar10" and told["licence"]
    code, out, _ = fedloom("data", "list", "--data-root", "data")
    assert "fedloom data get cub200" in out and "fedloom data import imagenet RAW" in out


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(served, server, tmp_path) -> None:
    archive = served()
    server.broken = 2
    seen: list[int] = []
    folder = fetch.fetch(
        find("cifar10"), tmp_path / "got", lambda what, done, total: seen.append(done)
    )
    assert (folder / "cifar-10-python.tar.gz").read_bytes() == archive
    starts = [asked for _, asked in server.asked]
    half = len(archive) // 2
    assert starts[0] is None and starts[1] == f"bytes={half}-" and len(starts) == 3
    assert seen[-1] == len(archive)


def test_another_call_goes_on_too_and_a_server_without_ranges_starts_again(
    served, server, tmp_path
) -> None:
    archive = served()
    server.broken = fetch.TRIES
    with pytest.raises(FedloomError, match=r"broke off .* the next attempt goes on from there"):
        fetch.fetch(find("cifar10"), tmp_path / "got", silent)
    part = tmp_path / "got" / "cifar-10-python.tar.gz.part"
    assert 0 < part.stat().st_size < len(archive)
    server.ranges = False
    fetch.fetch(find("cifar10"), tmp_path / "got", silent)
    assert (tmp_path / "got" / "cifar-10-python.tar.gz").read_bytes() == archive
    # A part that is whole already only has to be recognised as such.
    server.ranges = True
    (tmp_path / "got" / "cifar-10-python.tar.gz").rename(part)
    fetch.fetch(find("cifar10"), tmp_path / "got", silent)
    assert (tmp_path / "got" / "cifar-10-python.tar.gz").read_bytes() == archive


def test_another_file_than_the_published_one_is_removed(served, tmp_path) -> None:
    served(md5="0" * 32)
    with pytest.raises(FedloomError, match=r"its md5 is \w+, not 0+; .* was removed"):
        fetch.fetch(find("cifar10"), tmp_path / "got", silent)
    assert not list((tmp_path / "got").iterdir())


def test_what_a_user_has_put_there_is_checked_too(served, server, tmp_path) -> None:
    served()
    (tmp_path / "got").mkdir()
    (tmp_path / "got" / "cifar-10-python.tar.gz").write_bytes(b"half a file")
    with pytest.raises(FedloomError, match=r"its md5 is \w+, not .* was removed"):
        fetch.fetch(find("cifar10"), tmp_path / "got", silent)
    assert not server.asked


def test_what_needs_a_browser_is_said_before_anything_is_fetched(served, server, tmp_path) -> None:
    served()
    by_hand = Download("split.json", page="https://example.org/split")
    entry = find("cifar10")
    entry = replace(entry, downloads=(*entry.downloads, by_hand))
    with pytest.raises(FedloomError, match=r"only a browser can fetch: split\.json from https"):
        fetch.fetch(entry, tmp_path / "got", silent)
    assert not server.asked
    (tmp_path / "got" / "split.json").write_text("{}")
    assert (fetch.fetch(entry, tmp_path / "got", silent) / "cifar-10-python.tar.gz").is_file()


def test_a_full_disk_is_no_broken_net(served, tmp_path, monkeypatch) -> None:
    served()

    def full(url: str, part: Path, tell: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch, "_continue", full)
    with pytest.raises(FedloomError, match=r"\.part cannot be written: No space left on device"):
        fetch.fetch(find("cifar10"), tmp_path / "got", silent)


def test_a_log_hears_of_large_files_ten_times(capsys) -> None:
    from fedloom.cli.keep import LARGE, _Tenths

    tell = _Tenths()
    for share in range(101):
        tell("large.zip", share * LARGE, 100 * LARGE)
        tell("small.txt", share, 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"large.zip: {tenth}0 %" for tenth in range(1, 11)]


def test_offline_and_absent_files_are_refused_in_one_sentence(
    served, server, tmp_path, fedloom
) -> None:
    served(url="http://127.0.0.1:9/cifar-10-python.tar.gz")
    code, _, err = fedloom("data", "get", "cifar10", "--data-root", "data")
    assert code != 0 and "127.0.0.1 cannot be reached" in err
    assert "if this machine is offline, fetch http://127.0.0.1:9/" in err
    assert "`fedloom data import cifar10 RAW`" in err


def test_a_file_that_moved_is_refused(served, server, tmp_path) -> None:
    served()
    server.files.clear()
    with pytest.raises(FedloomError, match=r"the server says 404 .*is published at https://www.cs"):
        fetch.fetch(find("cifar10"), tmp_path / "got", silent)


def test_a_proxy_is_used(served, server, tmp_path, monkeypatch) -> None:
    archive = served(url="http://data.invalid/cifar-10-python.tar.gz")
    server.files["http://data.invalid/cifar-10-python.tar.gz"] = archive  # as a proxy is asked
    monkeypatch.setenv("http_proxy", server.url)
    fetch.fetch(find("cifar10"), tmp_path / "got", silent)
    assert server.asked[0][0].startswith("http://data.invalid/")


def test_what_only_a_browser_can_fetch_is_said(tmp_path) -> None:
    with pytest.raises(FedloomError, match=r"only a browser can fetch: ILSVRC2012_img_train.tar"):
        fetch.fetch(find("imagenet"), tmp_path / "got", silent)
    with pytest.raises(FedloomError, match="no copy of cub200 on the Hugging Face hub is known"):
        fetch.fetch(find("cub200"), tmp_path / "got", silent, hub=True)


def test_the_hub(server, tmp_path, monkeypatch) -> None:
    constants = pytest.importorskip(
        "huggingface_hub.constants", reason="the extra 'hf' is not installed"
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # other tests forbid the net
    replica = replicas.make("pacs", tmp_path / "replica", form=1)
    file = replica.folder / "data" / "train-00000-of-00001.parquet"
    name, commit = "data/train-00000-of-00001.parquet", "c" * 40
    about = {"id": "flwrlabs/pacs", "sha": commit, "siblings": [{"rfilename": name}]}
    for revision in ("main", commit):
        server.files[f"/api/datasets/flwrlabs/pacs/revision/{revision}"] = json.dumps(
            about
        ).encode()
    tree = [{"type": "file", "path": name, "size": file.stat().st_size, "oid": "f" * 40}]
    server.files[f"/api/datasets/flwrlabs/pacs/tree/{commit}"] = json.dumps(tree).encode()
    server.files[f"/datasets/flwrlabs/pacs/resolve/{commit}/{name}"] = file.read_bytes()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    folder = fetch.fetch(find("pacs"), tmp_path / "got", silent)
    assert (folder / name).read_bytes() == file.read_bytes()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    with pytest.raises(FedloomError, match=r"does not give flwrlabs/pacs .* offline"):
        fetch.fetch(find("pacs"), tmp_path / "none", silent)
