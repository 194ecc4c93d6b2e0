"""What a person sees during a run: a bar on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import time
from html import escape
from importlib.util import find_spec
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..core.device import find
from ..engine.engine import Engine
from ..engine.folder import Run
from ..metrics.registry import DEFAULT, METRICS

MINUTE = 60.0


class Watch:
    """A callback for one run, or for many runs one after another."""

    def __init__(self, console: Console, rounds: int, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet
        self.live = console.is_terminal and not quiet and not _without_widgets(console)
        self._notebook = NotebookLine()
        self.label = ""
        self._rounds_before = 0
        self._encoded = 0
        self._told = False  # where `auto` computes
        self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]}"),
            TextColumn("{task.fields[clients]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=rounds, accuracy="", clients="")

    def __enter__(self) -> Watch:
        if self.live:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self.live:
            self._bar.stop()

    def total(self, rounds: int) -> None:
        """Set the number of rounds, where it was unknown at the start."""
        self._bar.update(self._task, total=rounds)

    def begin(self, label: str, before: int = 0) -> None:
        """Start on a run; the runs before it have `before` rounds."""
        self.label = label
        self._rounds_before = before
        self._bar.update(self._task, description=label, completed=before)

    def note(self, text: str) -> None:
        """Print a line beside the bar."""
        if not self.quiet:
            self.console.print(text, highlight=False, soft_wrap=True)

    def before_run(self, run: Run, images: object) -> None:
        """Say once where `auto` computes; a run that is there already is not computed."""
        if run.config.execution.device == "auto" and not self._told:
            self._told = True
            self.note(f"computing on {find('auto')[0]}")

    def encoding(self, done: int, total: int) -> None:
        """Show how far a frozen encoder has got; in a log, at every tenth of the work."""
        text = f"encoding {done}/{total}"
        if self.live:
            self._bar.update(self._task, accuracy=_until(done, total, text))
        elif not self.quiet and done * 10 // total > self._encoded * 10 // total:
            self.console.print(text, highlight=False)
        self._encoded = done

    def after_client(self, engine: Engine, done: int, total: int) -> None:
        """Show how far a round has got; in a log, once a minute."""
        text = f"client {done}/{total}"
        if self.live:
            self._bar.update(self._task, clients=_until(done, total, text))
        elif not self.quiet and time.monotonic() - self._last_line > MINUTE:
            self._print_round(engine, text)

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        """Show a round's accuracies."""
        if self.live:
            self._bar.update(self._task, completed=self._rounds_before + engine.round)
        if not record:
            return
        if self.live:
            self._bar.update(self._task, accuracy=accuracy_line(record, engine.schedule.metric))
        elif not self.quiet:
            self._print_round(engine, accuracy_line(record, engine.schedule.metric))

    def _print_round(self, engine: Engine, text: str) -> None:
        self._last_line = time.monotonic()
        parts = [f"round {engine.round}/{engine.schedule.rounds}", text]
        if self.label:
            parts.insert(0, self.label)
        line = "  ".join(parts)
        if self.console.is_jupyter:
            self._notebook.show(line)
        else:
            self.console.print(line, highlight=False, soft_wrap=True)


class NotebookLine:
    """One line below a notebook's cell, which each new line replaces."""

    def __init__(self) -> None:
        self._shown: Any = None

    def show(self, text: str) -> None:
        """Show a line."""
        from IPython.display import HTML, display

        line = HTML(f"<pre>{escape(text)}</pre>")
        if self._shown is None:
            self._shown = display(line, display_id=True)
        else:
            self._shown.update(line)


def _without_widgets(console: Console) -> bool:
    """Whether this is a notebook that cannot show rich's bar."""
    return console.is_jupyter and find_spec("ipywidgets") is None


def _until(done: int, total: int, text: str) -> str:
    """The text while there is something left to do, then nothing."""
    if done < total:
        return text
    return ""


def accuracy_line(record: dict[str, Any], metric: str = DEFAULT) -> str:
    """A round's values of the headline metric in a few words."""
    headline = METRICS.find(metric)
    parts = []
    for name in ("personal", "common"):
        if record.get(name):
            value = headline.shown(record[name].get(headline.key))
            parts.append(f"{name} {value}{headline.sign}")
    if parts and metric != DEFAULT:
        parts.insert(0, metric)
    return "  ".join(parts) or "no test samples"
