"""Callbacks that pass every round's figures on to TensorBoard, MLflow or Weights & Biases.

Each is an extra (`pip install 'fedloom[tensorboard]'`, `[mlflow]`, `[wandb]`) that is imported only
when a user names it. They only read: a run has the same numbers with and without them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from .core.errors import FedloomError, unknown
from .engine.config import Config
from .engine.engine import Callback, Engine
from .engine.folder import Run


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """A line of metrics as flat names (`personal/accuracy_mean`, `loss/ce`) and numbers."""
    figures: dict[str, float] = {}
    for who in ("personal", "common"):
        for name, value in (record.get(who) or {}).items():
            if isinstance(value, int | float):
                figures[f"{who}/{name}"] = float(value)
    for name, value in (record.get("personal") or {}).get("domains", {}).items():
        figures[f"domains/{name}"] = value
    for name, value in record["validation"].items():
        if value is not None:
            figures[f"validation/{name}"] = value
    for name, value in record["loss"].items():
        figures[f"loss/{name}"] = value
    for direction, count in record["bytes_total"].items():
        figures[f"bytes/{direction}"] = float(count)
    return figures


def costs(line: Mapping[str, Any]) -> dict[str, float]:
    """A line of timing as flat names (`time/seconds`, `time/clients`, `memory/peak_mb`)."""
    figures = {"time/seconds": line["seconds"], "memory/peak_mb": line["peak_rss_mb"]}
    for who, seconds in line["spent"].items():
        figures[f"time/{who}"] = seconds
    return figures


class _Figures:
    """What all loggers log of a round: its cost and, if it was evaluated, its metrics."""

    _under_way: Run | None = None

    def before_run(self, run: Run, images: Any) -> None:
        """Remember the run, which has the timing of each round before a logger is called."""
        self._under_way = run

    def figures(self, record: Mapping[str, Any] | None) -> dict[str, float]:
        """The figures of the round that has just ended."""
        numbers: dict[str, float] = {}
        if self._under_way and self._under_way.timing:
            numbers |= costs(self._under_way.timing[-1])
        if record:
            numbers |= scalars(record)
        return numbers


def settings(config: Config) -> dict[str, str]:
    """A config as flat names and texts: `training.lr`."""
    flat: dict[str, Any] = {}
    for name, value in config.model_dump(mode="json").items():
        if isinstance(value, dict):
            for key, inner in value.items():
                flat[f"{name}.{key}"] = inner
        else:
            flat[name] = value
    return {name: str(value) for name, value in flat.items() if value is not None}


class Logger(Callback, Protocol):
    """A callback that is closed when the run is over."""

    def close(self, failed: bool) -> None:
        """Finish the log; `failed` says that the run did not reach its end."""
        ...


class TensorBoard(_Figures):
    """Event files in the folder `tensorboard` of a run."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._module = _module("torch.utils.tensorboard", "tensorboard")
        self._config = config
        self._folder = folder / "tensorboard"
        self._writer: Any = None

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        """Write a round's figures."""
        if self._writer is None:
            # An interrupted run computes the rounds after its checkpoint again, so drop what it
            # wrote about them.
            self._writer = self._module.SummaryWriter(str(self._folder), purge_step=engine.round)
            self._writer.add_text("config", f"```toml\n{self._config.toml()}```", 0)
        for name, value in self.figures(record).items():
            self._writer.add_scalar(name, value, engine.round)
        self._writer.flush()

    def close(self, failed: bool) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class MLflow(_Figures):
    """A run of the MLflow experiment `fedloom`, at MLFLOW_TRACKING_URI; resuming continues it."""

    def __init__(self, config: Config, folder: Path, experiment: str = "fedloom") -> None:
        self._client = _module("mlflow", "mlflow").MlflowClient()
        self._run = self._unfinished_run(config, folder, experiment)

    def _unfinished_run(self, config: Config, folder: Path, experiment: str) -> str:
        """The id of the run that this folder left unfinished, or of a new one."""
        existing = self._client.get_experiment_by_name(experiment)
        place = existing.experiment_id if existing else self._client.create_experiment(experiment)
        tags = {"fedloom.hash": config.hash(), "fedloom.folder": folder.name}
        query = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        for run in self._client.search_runs([place], query):
            if run.info.status != "FINISHED":
                self._client.update_run(run.info.run_id, status="RUNNING")
                return str(run.info.run_id)
        new = self._client.create_run(place, tags=tags, run_name=folder.name).info.run_id
        for name, value in settings(config).items():
            self._client.log_param(new, name, value[:500])
        return str(new)

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        """Log a round's figures, with the round as their step."""
        for name, value in self.figures(record).items():
            self._client.log_metric(self._run, name, value, step=engine.round)

    def close(self, failed: bool) -> None:
        """Record how the run ended."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


class WandB(_Figures):
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
        self._run.log(self.figures(record), step=engine.round)

    def close(self, failed: bool) -> None:
        """Record how the run ended."""
        self._run.finish(exit_code=int(failed))


LOGGERS = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


@contextmanager
def logging_to(names: Sequence[str], config: Config, folder: Path) -> Iterator[list[Callback]]:
    """The loggers of these names for one run; they are closed at its end, even if it fails."""
    for name in names:
        if name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
    if names:
        folder.mkdir(parents=True, exist_ok=True)
    loggers: list[Callback] = []
    with ExitStack() as stack:
        for name in names:
            logger = LOGGERS[name](config, folder)
            stack.push(_closing(logger))
            loggers.append(logger)
        yield loggers


def _closing(logger: Logger) -> Callable[..., None]:
    """What an exit stack calls at the end, with the type of the exception if there is one."""

    def close(kind: type[BaseException] | None, *_: Any) -> None:
        logger.close(kind is not None)

    return close


def _module(name: str, extra: str) -> Any:
    """Import a logger's package; the error names the extra that brings it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise FedloomError(
            f"logging to {extra} needs an extra: pip install 'fedloom[{extra}]'."
        ) from None
