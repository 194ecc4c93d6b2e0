"""The papers' settings on real data, end to end, with small models; skipped without the data."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from fedloom.cli.main import main
from fedloom.data.catalogue import locate

RUNS = {
    "pacs": ["--partition", "f2dc", "--model", "resnet10", "--set", "size=32", "--set", "width=4"],
    "digits5": [
        "--partition",
        "dif",
        "--set",
        "dif=10",
        "--set",
        "width=4",
        "--set",
        "features=16",
    ],
    "fashion_mnist": ["--partition", "pathological", "--set", "split=merged", "--model", "linear"],
    "cifar10": [
        "--partition",
        "dirichlet",
        "--set",
        "beta=0.1",
        "--clients",
        "20",
        "--model",
        "linear",
    ],
    "ag_news": ["--partition", "dirichlet", "--set", "words=2000"],
    "amazon_reviews": ["--partition", "domains", "--set", "hidden=[16]"],
    "amazon_reviews_text": ["--partition", "domains", "--set", "words=2000"],
    "flowers102": [
        "--partition",
        "fewshot",
        "--set",
        "size=16",
        "--set",
        "flatten=true",
        "--model",
        "linear",
    ],
    "office10": [
        "--partition",
        "f2dc",
        "--set",
        "size=32",
        "--set",
        "width=4",
        "--set",
        "features=16",
    ],
    "office_caltech_surf": ["--partition", "domains", "--model", "linear"],
    "ph2": ["--partition", "iid", "--clients", "4", "--set", "width=4", "--set", "depth=2"],
}


@pytest.mark.parametrize("name", RUNS)
def test_a_round_end_to_end(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if locate(name) is None:
        pytest.skip(f"{name} is not below FEDLOOM_DATA={os.environ.get('FEDLOOM_DATA')}")
    args = [
        "run",
        "fedavg",
        "--data",
        name,
        *RUNS[name],
        "--rounds",
        "1",
        "--quiet",
        "--out",
        str(tmp_path / "R"),
    ]
    monkeypatch.setattr(sys, "argv", ["fedloom", *args])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    summary = json.loads((tmp_path / "R/summary.json").read_text())
    assert summary["finished"]
    line = json.loads((tmp_path / "R/metrics.jsonl").read_text())
    tested = [accuracy for accuracy in line["clients"]["before"] if accuracy is not None]
    assert summary["personal"]["accuracy_mean"]["last"] == pytest.approx(np.mean(tested))
    if name == "ph2":
        assert {"iou", "dice"} <= set(line["personal"])


def test_the_worked_sizes_of_f2dc_on_real_pacs() -> None:
    if locate("pacs") is None:
        pytest.skip("pacs is not below FEDLOOM_DATA")
    from fedloom.engine.config import build
    from fedloom.engine.setup import deal

    made = deal(build({"data": "pacs", "partition": "f2dc"}, {"size": 32, "validation": 0.0}))
    sizes = sorted((c.domain, len(c.train), len(c.test)) for c in made.clients)
    expected = {
        "photo": (2, 400, 334),
        "art_painting": (3, 492, 408),
        "cartoon": (2, 562, 468),
        "sketch": (3, 943, 785),
    }
    assert sizes == sorted((d, n, t) for d, (count, n, t) in expected.items() for _ in range(count))
    assert all((made.counts(k) > 0).all() for k in range(len(made)))
