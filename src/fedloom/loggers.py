"""Callbacks that hand every round's figures on to TensorBoard, MLflow or Weights & Biases.

Each is an extra (`pip install 'fedloom[tensorboard]'`, `[mlflow]`, `[wandb]`) and imported when it
is asked for. They only read: a run's numbers are the same with and without them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from .core.errors import FedloomError, unknown
from .engine.config import Config
from .engine.engine import Callback, Engine


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """A line of metrics as flat names (`personal/accuracy_mean`, `loss/ce`) and numbers."""
    found: dict[str, float] = {}
    for who in ("personal", "common"):
        for name, value in (record.get(who) or {}).items():
            if isinstance(value, int | float):
                found[f"{who}/{name}"] = float(value)
    found |= {
        f"domains/{name}": v
        for name, v in (record.get("personal") or {}).get("domains", {}).items()
    }
    found |= {f"validation/{name}": v for name, v in record["validation"].items() if v is not None}
    found |= {f"loss/{name}": v for name, v in record["loss"].items()}
    found |= {f"bytes/{way}": float(n) for way, n in record["bytes_total"].items()}
    return found


def settings(config: Config) -> dict[str, str]:
    """A config as flat names and texts: `training.lr`."""
    flat: dict[str, str] = {}
    for name, value in config.model_dump(mode="json").items():
        inner = (
            {f"{name}.{k}": v for k, v in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
        flat |= {k: str(v) for k, v in inner.items() if v is not None}
    return flat


class Logger(Callback, Protocol):
    """A callback that is closed when the run is over."""

    def close(self, failed: bool) -> None:
        """Finish what was begun; `failed` if the run did not come to its end."""
        ...


class TensorBoard:
    """Event files in the folder `tensorboard` of a run."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._module = _module("torch.utils.tensorboard", "tensorboard")
        self._config, self._folder = config, folder / "tensorboard"
        self._writer: Any = None

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        """Write a round's figures."""
        if self._writer is None:
            # Rounds after the checkpoint of an interrupted run are computed again, so what was
            # written about them is dropped.
            self._writer = self._module.SummaryWriter(str(self._folder), purge_step=engine.round)
            self._writer.add_text("config", f"```toml\n{self._config.toml()}```", 0)
        for name, value in scalars(record).items() if record else ():
            self._writer.add_scalar(name, value, engine.round)
        self._writer.flush()

    def close(self, failed: bool) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class MLflow:
    """A run of the MLflow experiment `fedloom`, at MLFLOW_TRACKING_URI; resuming continues it."""

    def __init__(self, config: Config, folder: Path, experiment: str = "fedloom") -> None:
        self._client = _module("mlflow", "mlflow").MlflowClient()
        found = self._client.get_experiment_by_name(experiment)
        self._experiment = (
            found.experiment_id if found else self._client.create_experiment(experiment)
        )
        tags = {"fedloom.hash": config.hash(), "fedloom.folder": folder.name}
        wanted = " and ".join(f"tags.`{k}` = '{v}'" for k, v in tags.items())
        open_ = [
            r
            for r in self._client.search_runs([self._experiment], wanted)
            if r.info.status != "FINISHED"
        ]
        if open_:
            self._run = open_[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            self._run = self._client.create_run(
                self._experiment, tags=tags, run_name=folder.name
            ).info.run_id
            for name, value in settings(config).items():
                self._client.log_param(self._run, name, value[:500])

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        """Log a round's figures, with the round as their step."""
        for name, value in scalars(record).items() if record else ():
            self._client.log_metric(self._run, name, value, step=engine.round)

    def close(self, failed: bool) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


class WandB:
    """A run of the Weights & Biases project `fedloom`; WANDB_MODE=offline needs no account."""

    def __init__(self, config: Config, folder: Path, project: str = "fedloom") -> None:
        self._run = _module("wandb", "wandb").init(
            project=project,
            name=folder.name,
            id=f"{folder.name}-{config.hash()}",
            resume="allow",
            dir=str(folder),
            config=settings(config),
        )

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        """Log a round's figures, with the round as their step."""
        if record:
            self._run.log(scalars(record), step=engine.round)

    def close(self, failed: bool) -> None:
        """Say how the run ended."""
        self._run.finish(exit_code=int(failed))


LOGGERS = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


@contextmanager
def logging_to(names: Sequence[str], config: Config, folder: Path) -> Iterator[list[Callback]]:
    """The callbacks of these names for one run, closed at its end, whichever way it ends."""
    for name in names:
        if name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
    if names:
        folder.mkdir(parents=True, exist_ok=True)
    opened: list[Callback] = []
    with ExitStack() as stack:
        for name in names:
            logger = LOGGERS[name](config, folder)
            stack.push(lambda kind, error, trace, logger=logger: logger.close(kind is not None))
            opened.append(logger)
        yield opened


def _module(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise FedloomError(
            f"logging to {extra} needs an extra: pip install 'fedloom[{extra}]'."
        ) from None
