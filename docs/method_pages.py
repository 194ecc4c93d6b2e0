"""The layout of a method's page: what papers/ says by hand, and between it what the code says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAPERS = Path(__file__).resolve().parents[1] / "papers"
# The parts of every page, in this order.
PARTS = (
    "What it is for",
    "The algorithm",
    "Symbols",
    "Settings",
    "Deviations",
    "Checked against",
    "Numbers",
)
_PLUGIN = re.compile(r"^\| `\+(\S+)` \|.*\[(\S+)\.md\]", re.MULTILINE)


def described(page: str) -> list[str]:
    """The method that a page of papers/ is about, and the plug-ins, which begin with `+`."""
    from fedloom.core.lookup import names

    listed = _PLUGIN.findall((PAPERS / "README.md").read_text("utf-8"))
    plugged = [f"+{plugin}" for plugin, its_page in listed if its_page == page]
    return [page, *plugged] if page in names() else plugged


def laid_out(page: str, text: str) -> str:
    """A page with all its parts; one that is about nothing that can be run stays as it is."""
    about = described(page)
    if not about:
        return text
    text = _before(text, "The algorithm", f"## What it is for\n\n{_purposes(about)}")
    text = _before(text, "Deviations", f"## Settings\n\n{_settings(about)}")
    text = text.replace("\nChecked against: nothing. ", "\n## Checked against\n\nNothing. ", 1)
    return text.replace("\nChecked against: ", "\n## Checked against\n\n", 1)


def _before(text: str, heading: str, more: str) -> str:
    return text.replace(f"\n## {heading}\n", f"\n{more}\n\n## {heading}\n", 1)


def _class(name: str) -> Any:
    from fedloom.core.lookup import METHODS, PLUGINS

    return PLUGINS.find(name[1:]) if name.startswith("+") else METHODS.find(name)


def _purposes(about: list[str]) -> str:
    """A line for each: what for, what it needs, what it promises."""
    from fedloom.experiments import kinds
    from fedloom.experiments.advise.shortlist import TROUBLES

    lines = []
    for name in about:
        cls = _class(name)
        what = kinds.ADDED[cls.purpose] if name.startswith("+") else kinds.purpose(cls)
        parts = [what]
        if cls.traits.helps:
            parts.append("made for " + ", ".join(TROUBLES[help] for help in cls.traits.helps))
        if kinds.needs(cls):
            parts.append("needs " + ", ".join(map(kinds.meaning, kinds.needs(cls))))
        if kinds.promises(cls):
            parts.append("promises " + "; ".join(kinds.promises(cls)))
        lines.append(f"- `{name}`: {'; '.join(parts)}.")
    return "\n".join(lines)


def _settings(about: list[str]) -> str:
    """The settings of each with their defaults, and the training of its paper."""
    from fedloom.engine.settings import method_rows, plugin_rows, table

    parts = []
    for name in about:
        cls = _class(name)
        rows = plugin_rows(name[1:]) if name.startswith("+") else method_rows(name)
        if len(about) > 1:
            parts.append(f"`{name}`:")
        if rows:
            parts.append("\n".join(table(rows)))
        else:
            parts.append("None of its own.")
        if cls.traits.training:
            listed = ", ".join(f"`{key}={value}`" for key, value in cls.traits.training.items())
            parts.append(f"By default it trains as in its paper: {listed}.")
        if cls.traits.presets:
            listed = ", ".join(f"`preset={preset}`" for preset in cls.traits.presets)
            parts.append(f"Other sets of values: {listed}.")
    return "\n\n".join(parts)
