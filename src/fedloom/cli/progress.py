"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
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

from ..engine.engine import Engine

MINUTE = 60.0


class Watch:
    """A callback for one run, or for a whole grid of runs one after another."""

    def __init__(self, console: Console, rounds: int, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.label, self._before, self._encoded = "", 0, 0
        self._said = time.monotonic()
        self.live = console.is_terminal and not quiet
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
        """How many rounds there will be, where that is not known at the start."""
        self._bar.update(self._task, total=rounds)

    def begin(self, label: str, before: int = 0) -> None:
        """A run starts; the runs before it have `before` rounds."""
        self.label, self._before = label, before
        self._bar.update(self._task, description=label, completed=before)

    def note(self, text: str) -> None:
        """Say something beside the bar."""
        if not self.quiet:
            self.console.print(text, highlight=False, soft_wrap=True)

    def encoding(self, done: int, total: int) -> None:
        """Show how far a frozen encoder has got."""
        if self.live:
            self._bar.update(
                self._task, accuracy=f"encoding {done}/{total}" if done < total else ""
            )
        elif not self.quiet and done * 10 // total > self._encoded * 10 // total:
            self.console.print(f"encoding {done}/{total}", highlight=False)
        self._encoded = done

    def after_client(self, engine: Engine, done: int, total: int) -> None:
        """Show how far a round has got; in a log, once a minute."""
        if self.live:
            self._bar.update(self._task, clients=f"client {done}/{total}" if done < total else "")
        elif not self.quiet and time.monotonic() - self._said > MINUTE:
            self._say(f"round {engine.round}/{engine.schedule.rounds}  client {done}/{total}")

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        self.console.print(
            f"{self.label}  {text}" if self.label else text, highlight=False, soft_wrap=True
        )

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        """Show a round's accuracies."""
        said = accuracy_line(record) if record else ""
        if self.live:
            self._bar.update(self._task, completed=self._before + engine.round)
            if said:
                self._bar.update(self._task, accuracy=said)
        elif said and not self.quiet:
            self._say(f"round {engine.round}/{engine.schedule.rounds}  {said}")


def accuracy_line(record: dict[str, Any]) -> str:
    """A round's accuracies in a few words."""
    said = []
    for name in ("personal", "common"):
        if record.get(name):
            said.append(f"{name} {100 * record[name]['accuracy_mean']:.1f} %")
    return "  ".join(said) or "no test samples"
