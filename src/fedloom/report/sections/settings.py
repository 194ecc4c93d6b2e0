"""Each method's complete configuration, and the versions and the device it ran with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomli_w

from ..entries import AFTER, RunData
from ..page import Page
from . import section


@section("settings", "Settings", order=110)
def settings(page: Page) -> str | None:
    """Texts to copy."""
    if not page.entries:
        return None
    configs = []
    for entry in page.entries:
        if entry.runs and entry.method != AFTER:
            config = entry.runs[0].config
            given = config.get("toml")
            if not isinstance(given, str):
                given = config_text(config)
            configs.append((entry, given))
    versions: dict[str, list[str]] = {}
    for run in page.runs:
        recorded = run.summary.get("versions")
        if isinstance(recorded, Mapping) and recorded:
            lines = [f"{name} {version}" for name, version in recorded.items()]
            lines += _device(run)
            versions.setdefault("\n".join(lines), []).append(f"{run.method} seed {run.seed}")
    return page.render("settings.html.j2", configs=configs, versions=versions)


def _device(run: RunData) -> list[str]:
    """A line with the device that computed a run, and before it those that began the run.

    Runs of earlier versions say nothing about it.
    """
    recorded = run.summary.get("device")
    if not isinstance(recorded, Mapping):
        return []
    last = recorded.get("name")
    before = dict.fromkeys(line["device"] for line in run.timing if "device" in line)
    names = [str(name) for name in before if name != last]
    names.append(f"{last} ({recorded.get('title')})")
    return [f"device {', then '.join(names)}"]


def config_text(config: Mapping[str, Any]) -> str:
    """A configuration as TOML; what is None, which TOML does not have, is left out."""
    return tomli_w.dumps(_without_none(config)).strip()


def _without_none(config: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            kept[key] = _without_none(value)
        elif value is not None:
            kept[key] = value
    return kept
