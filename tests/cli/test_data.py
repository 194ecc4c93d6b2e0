"""`fedloom data`, as people use it: with their own files, and with mistakes."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

VECTORS = np.random.default_rng(0).normal(size=(60, 5))
LABELS = np.arange(60) % 3
WHOLE = {"x_train": VECTORS, "y_train": LABELS, "x_test": VECTORS[:9], "y_test": LABELS[:9]}


@pytest.fixture
def fedloom(fedloom, monkeypatch: pytest.MonkeyPatch):
    """The command line where no real data are at hand."""
    monkeypatch.delenv("FEDLOOM_DATA", raising=False)
    return fedloom


def image(path: Path) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 20), (9, 0, 90)).save(path)


def test_the_list_cuts_no_name_and_no_command(fedloom, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from fedloom.cli import data
    from fedloom.cli.keep import what_to_type
    from fedloom.data.catalogue import ABOUT
    from fedloom.data.partitions import PARTITIONS

    console = Console(width=80)
    monkeypatch.setattr(data, "console", console)
    with console.capture() as captured:
        data.list_()
    lines = captured.get().splitlines()
    words = {word for line in lines for word in line.split()}
    assert len(ABOUT) > 20 and not set(ABOUT) - words and not set(PARTITIONS.names()) - words
    ends = {line.rstrip() for line in lines}
    for name in ABOUT:
        command = what_to_type(name, None)
        assert any(line.endswith(command) for line in ends), command
    assert max(map(len, lines)) <= 80 and "…" not in captured.get()


def test_data_commands(fedloom, tmp_path) -> None:
    from PIL import Image

    code, out, _ = fedloom("data", "show", "digits4", "--partition", "domains", "--clients", 8)
    assert code == 0 and "handwritten 1500" in out and "several" not in out
    code, out, _ = fedloom("data", "show", "digits4", "--json")
    assert json.loads(out)["train"] == 4800 and "clients" not in json.loads(out)
    code, out, _ = fedloom(
        "data", "picture", "digits4", "--partition", "dirichlet", "--out", "p.png"
    )
    assert code == 0 and Image.open(tmp_path / "p.png").width > 300
    for domain in ("north", "south"):
        for kind in ("good", "bent"):
            folder = tmp_path / "parts" / domain / kind
            folder.mkdir(parents=True)
            for i in range(12):
                Image.new("RGB", (20, 20), (i * 20, 0, 90)).save(folder / f"{i}.png")
    code, out, _ = fedloom("data", "check", "parts")
    assert (
        code == 0
        and "parts is fine: 40 training and 8 test samples (image), 2 classes, 2 domains." in out
    )
    (tmp_path / "parts/north/good/3.png").write_bytes(b"no picture")
    code, _, err = fedloom("data", "check", "parts")
    assert code == 2 and "3.png" in err
    code, out, err = fedloom("data", "check", "parts", "--on-bad-file", "skip")
    assert code == 0 and "3.png" in err and "39 training and 8 test samples" in out
    code, _, err = fedloom("data", "check", "parts", "--on-bad-file", "ignore")
    assert code == 2 and "on_bad_file" in err
    args = [
        "run",
        "fedavg",
        "--data",
        "parts",
        "--clients",
        2,
        "--rounds",
        1,
        "--set",
        "width=4",
        "--set",
        "features=8",
    ]
    code, out, _ = fedloom(*args, "--on-bad-file", "skip", "--out", "R")
    assert code == 0 and "round 1/1" in out


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (
            {"y_train": np.where(np.arange(60) == 3, 10**12, LABELS)},
            "no sample has the label 3 although",
        ),
        ({"y_train": np.full(60, 2**64 - 1, np.uint64)}, "y_train holds a label that is too large"),
        ({"x_train": np.array([{}] * 60, dtype=object)}, "x_train holds pickled objects"),
    ],
)
def test_arrays_that_cannot_be_used(fedloom, tmp_path, arrays, said) -> None:
    np.savez(tmp_path / "a.npz", **{**WHOLE, **arrays})
    code, _, err = fedloom("data", "check", "a.npz")
    assert code == 2 and said in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.npz", b"xx", "a.npz: is not an .npz file"),
        ("a.npz", pickle.dumps({1: 2}), "a.npz: is not an .npz file (a pickle, perhaps"),
        ("a.npz", b"PK\x03\x04 and no more", "a.npz: is truncated or not an .npz file"),
        ("notes.txt", b"hello", "notes.txt: no reader recognises it; it must be an .npz file"),
        ("my data.csv", b"text,kind\na,b\n", "my data.csv: wants the header label,text"),
    ],
)
def test_files_that_cannot_be_used(fedloom, tmp_path, name, content, said) -> None:
    (tmp_path / name).write_bytes(content)
    for command in (["check", name], ["show", name], ["picture", name, "--out", "p.png"]):
        code, _, err = fedloom("data", *command)
        assert code == 2 and said in err


def test_folders_and_names_that_cannot_be_used(fedloom, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    assert (
        "empty: holds no folders; expected <domain>/<class>/*"
        in fedloom("data", "check", "empty")[2]
    )
    (tmp_path / "folder.npz").mkdir()
    assert "folder.npz: holds no folders" in fedloom("data", "check", "folder.npz")[2]
    assert "did you mean 'pacs'" in fedloom("data", "check", "pasc")[2]
    assert "unknown data set or path ''" in fedloom("data", "check", "")[2]
    (tmp_path / "pfl" / "train").mkdir(parents=True)
    np.savez(tmp_path / "pfl" / "train" / "0.npz", data={"x": VECTORS, "y": LABELS})
    assert (
        "config.json: there is no such file; PFLlib writes it" in fedloom("data", "check", "pfl")[2]
    )
    image(tmp_path / "tables" / "cat" / "0.png")
    # A table beside folders of images does not make it a set of texts.
    (tmp_path / "tables" / "notes.csv").write_text("file,kind\n")
    code, out, err = fedloom("data", "check", "tables")
    assert code != 0 and "all its 1 samples are of one class, 'cat'" in err and "fine" not in out


def test_what_will_hardly_serve_is_said(fedloom, tmp_path) -> None:
    np.savez(tmp_path / "a.npz", **{**WHOLE, "x_test": VECTORS[:0], "y_test": LABELS[:0]})
    code, out, _ = fedloom("data", "check", "a.npz")
    assert code == 0 and "60 training and 0 test samples" in out and "--set split=merged" in out
    for name, kind in (("0", "cat"), ("1", "cat"), ("2", "dog")):
        image(tmp_path / "own" / kind / f"{name}.png")
    (tmp_path / "own/dog/2.png").write_bytes(b"no image")
    code, out, _ = fedloom("data", "check", "own", "--on-bad-file", "skip")
    assert code == 0 and "note: no sample of dog is left." in out


def test_options_that_cannot_be_used(fedloom, tmp_path) -> None:
    np.savez(tmp_path / "a.npz", **WHOLE)
    assert "--clients is for a partition" in fedloom("data", "show", "a.npz", "--clients", 3)[2]
    assert (
        "clients = 0" in fedloom("data", "show", "a.npz", "--partition", "iid", "--clients", 0)[2]
    )
    assert "--out wants the name of a .png" in fedloom("data", "picture", "a.npz", "--out", "p")[2]
    assert (
        fedloom("data", "picture", "a.npz", "--out", "new/p.png")[0] == 0
        and (tmp_path / "new/p.png").exists()
    )
    assert (
        "cannot write a.npz/p.png" in fedloom("data", "picture", "a.npz", "--out", "a.npz/p.png")[2]
    )
    assert (
        "asked for twice"
        in fedloom("data", "check", "digits4", "--set", 'only_classes=["1","1"]')[2]
    )
    code, out, _ = fedloom("data", "check", "digits4", "--set", "only_domains=photo, street")
    assert code == 0 and "2 domains" in out


def test_a_fitting_model_is_chosen_for_folders_too(tmp_path) -> None:
    from fedloom.engine.config import build

    np.savez(tmp_path / "a.npz", **WHOLE)
    assert build({"data": str(tmp_path)}).model == "mlp"
    for k, part in enumerate(("train", "test")):
        (tmp_path / "pfl" / part).mkdir(parents=True)
        np.savez(tmp_path / "pfl" / part / "0.npz", data={"x": VECTORS + k, "y": LABELS})
    (tmp_path / "pfl" / "config.json").write_text('{"num_clients": 1, "num_classes": 3}')
    assert build({"data": str(tmp_path / "pfl"), "partition": "natural"}).model == "mlp"
