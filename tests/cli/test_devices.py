"""`--device`: what it says, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedloom.core import device as devices
from fedloom.core.device import CPU
from fedloom.engine.folder import Run
from fedloom.report.entries import RunData
from fedloom.report.sections import settings as settings_section
from fedloom.testing.pretend import Pretend, pretend, reason_missing

Call = Callable[..., tuple[int, str, str]]
RUN = ("--clients", 4, "--rounds", 1, "--model", "linear", "--set", "steps=1", "--no-report")


@pytest.fixture(autouse=True)
def only_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda: [CPU])


@pytest.mark.parametrize(
    "command",
    [
        ("run", "fedavg"),
        ("compare", "fedavg"),
        ("encode", "--data", "digits4", "--encoder", "efficientnet-lite0"),
        ("predict", "model", "photo.png"),
    ],
)
def test_a_device_that_is_not_there_is_refused_before_any_work(
    command: tuple[str, ...], fedloom: Call, tmp_path: Path
) -> None:
    code, out, err = fedloom(*command, "--device", "cdua")
    assert code == 2 and not out
    sentence = "there is no device 'cdua' on this machine; there is cpu; did you mean 'cuda'?"
    assert sentence in err and len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir()), "nothing was written"


def test_auto_says_where_it_computes_if_it_computes(fedloom: Call) -> None:
    code, out, err = fedloom("run", "fedavg", *RUN, "--out", "run", "--device", "auto")
    assert code == 0, err
    assert "computing on cpu" in out
    code, out, _ = fedloom("run", "fedavg", *RUN, "--out", "run", "--device", "auto")
    assert code == 0 and "nothing was computed" in out and "computing on" not in out


def test_a_report_computes_only_its_views(fedloom: Call) -> None:
    code, _, err = fedloom("report", ".", "--device", "cpu")
    assert code == 2 and "--device is for --views" in err


def test_an_app_names_the_device_of_its_simulation(fedloom: Call, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    code, _, _ = fedloom("flower", "init", "app", "fedavg", "--clients", 2, "--device", "cuda:0")
    assert code == 0
    assert 'device = "cuda:0"' in (tmp_path / "app" / "pyproject.toml").read_text()


@pytest.mark.skipif(reason_missing() is not None, reason=str(reason_missing()))
def test_a_run_goes_on_on_another_device_and_says_so(
    fedloom: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fedloom("run", "fedavg", *RUN, "--out", "run")
    monkeypatch.setattr(devices, "available", lambda: [CPU, Pretend()])
    with pretend():
        code, out, err = fedloom(
            "resume", "run", "--rounds", 2, "--device", "pretend", "--no-report"
        )
    assert code == 0, err
    assert "fedavg: computed on cpu so far, from now on pretend:0" in out
    lines = (tmp_path / "run" / "timing.jsonl").read_text().splitlines()
    assert [json.loads(line)["device"] for line in lines] == ["cpu", "pretend:0"]
    page = RunData.of(Run.load(tmp_path / "run"))
    assert settings_section._device(page) == ["device cpu, then pretend:0 (pretend accelerator)"]
