"""The commands about encoders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def fedloom(fedloom, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The command line with a cache of its own."""
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    return fedloom


def test_encoders_are_listed(fedloom) -> None:
    code, out, _ = fedloom("encoders", "--json")
    rows = json.loads(out)
    assert code == 0 and len(rows) >= 12
    assert {"vit-mini", "efficientnet-lite0", "hf:PATH", "minilm", "hash", "clip:PATH"} <= {
        r["name"] for r in rows
    }
    assert fedloom("encoders")[0] == 0


def test_encode_run_list_and_clear(fedloom) -> None:
    pytest.importorskip("transformers", reason="the extra 'encoders' is not installed")
    only = ("--set", 'only_domains=["printed"]', "--set", 'only_classes=["0","1"]')
    code, out, err = fedloom("encode", "--data", "digits4", "--encoder", "vit-mini", *only)
    assert code == 0 and "x 192 features of vit-mini" in out, err
    code, out, _ = fedloom("cache", "list")
    assert code == 0 and "1 entries" in out and "vit-mini" in out
    run = (
        "run",
        "fedavg",
        "--data",
        "digits4",
        "--encoder",
        "vit-mini",
        "--model",
        "linear",
        "--partition",
        "iid",
    )
    code, out, err = fedloom(*run, "--clients", 3, "--rounds", 2, *only, "--out", "A")
    assert code == 0 and "round 2/2" in out and "encoding" not in out, err
    assert 'encoder = "vit-mini"' in Path("A/config.toml").read_text()
    assert len(json.loads(fedloom("cache", "list", "--json")[1])) == 1
    assert "unknown encoder in the cache 'vit'" in fedloom("cache", "clear", "--encoder", "vit")[2]
    assert "removed 1 entries" in fedloom("cache", "clear")[1]
    assert "0 entries" in fedloom("cache", "list")[1]


def test_refusals(fedloom) -> None:
    code, _, err = fedloom("encode", "--data", "digits4", "--encoder", "vit-mimi")
    assert code == 2 and "did you mean 'vit-mini'" in err
    code, _, err = fedloom("encode", "--data", "digits4", "--encoder", "hf:nowhere")
    assert code == 2 and "nowhere: no such folder" in err
    code, _, err = fedloom("bench", "encoders", "--what", "probes")
    assert code == 2 and "did you mean 'probe'" in err
