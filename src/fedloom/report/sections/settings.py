"""Each method's complete configuration, and the versions it ran with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomli_w

from ..entries import TUNED
from ..page import Page
from . import section


@section("settings", "Settings", order=110)
def settings(page: Page) -> str:
    """Texts to copy."""
    configs = []
    for entry in page.entries:
        if entry.runs and entry.method != TUNED:
            config = entry.runs[0].config
            given = config.get("toml")
            if not isinstance(given, str):
                given = config_text(config)
            configs.append((entry, given))
    versions: dict[str, list[str]] = {}
    for run in page.runs:
        recorded = run.summary.get("versions")
        if isinstance(recorded, Mapping) and recorded:
            lines = "\n".join(f"{name} {version}" for name, version in recorded.items())
            versions.setdefault(lines, []).append(f"{run.method} seed {run.seed}")
    return page.render("settings.html.j2", configs=configs, versions=versions)


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
