"""A ready Flower app as a folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ...core.errors import FedloomError
from ...core.files import write_atomic
from ...engine.config import Config
from .settings import Settings, flat

PROJECT = """# A Flower app: this file describes the run, fedloom carries it out.
# `flwr run .` simulates it on this machine; `flwr run . NAME` runs it on the federation NAME of
# $FLWR_HOME/config.toml. See fedloom's docs/flower.md.
[project]
name = "{name}"
version = "1.0.0"
description = "{method} by fedloom"
license = "Apache-2.0"
# Flower installs nothing at the sites: fedloom must be there, in the same version everywhere.
dependencies = ["fedloom[flower]"]

[tool.flwr.app]
publisher = "fedloom"

[tool.flwr.app.components]
serverapp = "fedloom.cli.serverapp:app"
clientapp = "fedloom.executors.flower.client:app"

# Every setting of the run (docs/settings.md) and of the federation (docs/flower.md). Any of them
# can be changed for one run: flwr run . --run-config "schedule.rounds=20 training.lr=0.01".
# A setting with an empty text has no value.
[tool.flwr.app.config]
"""


def write_app(folder: Path, config: Config, settings: Settings) -> Path:
    """Write the app for a run; returns its file."""
    path = folder / "pyproject.toml"
    if path.exists():
        raise FedloomError(f"{path} is there already; choose another folder.")
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:32]
    lines = []
    section = ""
    for key, value in flat(config, settings).items():
        table, dot, field = key.rpartition(".")
        if dot and table != section:
            section = table
            lines += ["", f"[tool.flwr.app.config.{table}]"]
        lines.append(f"{field} = {json.dumps(value, ensure_ascii=False)}")
    head = PROJECT.format(name=name or "fedloom-app", method=Path(config.method).stem)
    text = head + "\n".join(lines) + "\n"
    write_atomic(path, text.encode())
    return path
