"""What is said while a run goes on."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import fedloom
from fedloom.cli import progress
from fedloom.cli.progress import Watch

QUICK = {"clients": 4, "width": 4, "features": 16, "steps": 1, "rounds": 2, "limit_test": 5}


def said(live: bool, quiet: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=live, width=120)
    with Watch(console, 2, quiet) as watch:
        watch.begin("fedavg")
        fedloom.run("fedavg", callbacks=[watch], **QUICK)
        watch._bar.refresh()
    return stream.getvalue()


def test_a_log_has_a_line_for_each_round() -> None:
    lines = said(live=False).splitlines()
    assert [line.split("  ")[1] for line in lines] == ["round 1/2", "round 2/2"]


def test_a_long_round_says_how_far_it_has_got(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MINUTE", -1.0)
    lines = said(live=False).splitlines()
    assert lines[:4] == [f"fedavg  round 1/2  client {k}/4" for k in (1, 2, 3, 4)]
    assert said(live=False, quiet=True) == ""


def test_a_bar_shows_rounds_and_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    real = Watch.after_client

    def noted(self: Watch, *args) -> None:
        real(self, *args)
        if self.live:  # `fedloom.run` has a quiet one of its own
            shown.append(self._bar.tasks[0].fields["clients"])

    monkeypatch.setattr(Watch, "after_client", noted)
    assert "fedavg" in said(live=True)
    assert shown[:4] == ["client 1/4", "client 2/4", "client 3/4", ""]
