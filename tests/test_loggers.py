"""Real logging to TensorBoard and MLflow, read back with their own readers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedloom.core.errors import FedloomError
from fedloom.engine.config import build
from fedloom.engine.folder import Run
from fedloom.engine.run import execute
from fedloom.loggers import LOGGERS, logging_to, scalars, settings

CONFIG = build(
    {"method": "fedprox", "clients": 4},
    {"rounds": 3, "eval_every": 2, "width": 4, "features": 16, "mu": 0.5, "limit_train": 10},
)


def logged(name: str, folder: Path) -> Run:
    with logging_to([name], CONFIG, folder) as loggers:
        return execute(CONFIG, out=folder, callbacks=loggers)


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed (an extra)")


def test_a_line_of_metrics_as_scalars(tmp_path: Path) -> None:
    run = execute(CONFIG, out=tmp_path / "A")
    found = scalars(run.metrics[-1])
    assert found["personal/accuracy_mean"] == run.metrics[-1]["personal"]["accuracy_mean"]
    assert found["common/accuracy_mean"] == run.metrics[-1]["common"]["accuracy_mean"]
    assert found["bytes/up"] == run.metrics[-1]["bytes_total"]["up"] and "loss/ce" in found
    assert {n for n in found if n.startswith("domains/")} == {
        "domains/handwritten", "domains/photo", "domains/printed", "domains/street",
    }  # fmt: skip
    assert all(isinstance(v, float) for v in found.values())
    assert settings(CONFIG)["hyper.mu"] == "0.5" and settings(CONFIG)["schedule.rounds"] == "3"


def test_tensorboard(tmp_path: Path) -> None:
    needs("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = logged("tensorboard", tmp_path / "A")
    events = EventAccumulator(str(tmp_path / "A/tensorboard"))
    events.Reload()
    timed = {"time/seconds", "time/clients", "time/server", "time/evaluation", "memory/peak_mb"}
    assert set(events.Tags()["scalars"]) == {*scalars(run.metrics[-1]), *timed}
    seconds = events.Scalars("time/seconds")
    assert [p.step for p in seconds] == [1, 2, 3]  # every round takes time
    assert [p.value for p in seconds] == pytest.approx([t["seconds"] for t in run.timing])
    assert events.Scalars("memory/peak_mb")[-1].value > 50
    points = events.Scalars("personal/accuracy_mean")
    assert [p.step for p in points] == [2, 3]  # rounds that were evaluated
    assert [p.value for p in points] == pytest.approx(
        [m["personal"]["accuracy_mean"] for m in run.metrics], rel=1e-6
    )
    plain = execute(CONFIG, out=tmp_path / "B")
    assert plain.metrics == run.metrics  # logging changes nothing


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("mlflow")
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file:{tmp_path / 'mlruns'}")
    run = logged("mlflow", tmp_path / "A")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("fedloom")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED" and found.info.run_name == "A"
    assert (
        found.data.params["hyper.mu"] == "0.5" and found.data.tags["fedloom.hash"] == CONFIG.hash()
    )
    history = client.get_metric_history(found.info.run_id, "personal/accuracy_mean")
    expected = [(m["round"], m["personal"]["accuracy_mean"]) for m in run.metrics]
    assert [(p.step, p.value) for p in history] == expected and len(expected) == 2

    class Stop:
        def after_round(self, engine: object, record: object) -> None:
            raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        logging_to(["mlflow"], CONFIG, tmp_path / "B") as loggers,
    ):
        execute(CONFIG, out=tmp_path / "B", callbacks=[*loggers, Stop()])
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(r.info.status for r in runs) == ["FAILED", "FINISHED"]
    logged("mlflow", tmp_path / "B")  # goes on: the same entry, now finished
    runs = client.search_runs([experiment.experiment_id])
    assert [r.info.status for r in runs] == ["FINISHED"] * 2


def test_wandb_is_called_as_its_manual_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its service is not asked: a stand-in notes the calls."""
    calls: list[tuple] = []

    class Opened:
        def log(self, values: dict, step: int) -> None:
            assert values["time/seconds"] > 0
            calls.append(("log", step, values.get("personal/accuracy_mean")))

        def finish(self, exit_code: int) -> None:
            calls.append(("finish", exit_code))

    module = ModuleType("wandb")
    module.init = lambda **options: calls.append(("init", options)) or Opened()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    run = logged("wandb", tmp_path / "A")
    assert calls[0][1]["resume"] == "allow" and calls[0][1]["config"]["hyper.mu"] == "0.5"
    assert calls[1:] == [
        ("log", 1, None),  # not evaluated
        *(("log", m["round"], m["personal"]["accuracy_mean"]) for m in run.metrics),
        ("finish", 0),
    ]


@pytest.mark.parametrize("name", sorted(LOGGERS))
def test_a_missing_extra_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("torch.utils.tensorboard", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with (
        pytest.raises(FedloomError, match=rf"pip install 'fedloom\[{name}\]'"),
        logging_to([name], CONFIG, tmp_path),
    ):
        pass


def test_an_unknown_logger(tmp_path: Path) -> None:
    with (
        pytest.raises(FedloomError, match="did you mean 'mlflow'"),
        logging_to(["mlflw"], CONFIG, tmp_path),
    ):
        pass
