"""A real federation on this machine: SuperLink and three SuperNodes as processes, TLS and node authentication."""

import json
import time
from pathlib import Path

import pytest

import fedloom
from fedloom.config import build
from fedloom.executors.flower.app import write_app
from fedloom.executors.flower.settings import Settings

SMALL = {"width": 4, "features": 16, "limit_train": 3, "limit_test": 2, "rounds": 3, "eval_every": 3}


def app(folder: Path, out: Path, method: str, **settings: object) -> Path:
    config = build({"method": method, "clients": 3, "partition": "iid"}, SMALL)
    return write_app(folder, config, Settings(out=str(out), **settings)).parent


@pytest.mark.federation
def test_three_sites_with_tls_and_keys(deployment, tmp_path: Path) -> None:
    start = time.monotonic()
    here = deployment()
    here.link()
    here.register(0, 1, 2)
    for k in range(3):
        here.node(k)
    # Two that must not get in: one whose key nobody registered, one that speaks plain HTTP.
    here.node(3, name="stranger")
    here.node(0, name="plain", plain=True)
    for method in ("fedavg", "fedpcl"):
        out = tmp_path / f"run-{method}"
        run = here.run(app(tmp_path / method, out, method, wait=300, timeout=300), name=method)
        here.until(lambda run=run: run.poll() is not None, 900, method)
        there = fedloom.Run.load(out)
        assert there.finished, here.said(method)
        answers = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
        assert [sorted(a["answered"]) for a in answers if a["kind"] == "client"] == [[0, 1, 2]] * 3
        alone = fedloom.run(method, partition="iid", clients=3, **SMALL)
        assert there.metrics[-1]["personal"] == pytest.approx(alone.metrics[-1]["personal"], abs=1e-5)
    print(f"two runs of three rounds, with all processes: {time.monotonic() - start:.0f} s")
    assert "305" in here.said("stranger"), "a key that was not registered"
    assert "SuperNode ID" not in here.said("stranger")
    assert "Connection attempt failed" in here.said("plain") and "SuperNode ID" not in here.said("plain")
    online = [n for n in json.loads(here.flwr("supernode", "list", "here", "--format", "json"))["nodes"]]
    assert sum(n["status"] == "online" for n in online) == 3
