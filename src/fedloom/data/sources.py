"""Data sets by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from ..errors import unknown
from . import digits4
from .federation import Dataset


def cache_folder() -> Path:
    """Where made and decoded data are kept: `FEDLOOM_CACHE`, or `fedloom` in the user's cache folder."""
    base = (
        os.environ.get("FEDLOOM_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedloom"
    )
    return Path(base)


def _digits4() -> Dataset:
    """Four digit domains (handwritten, photo, printed, street), 1200 + 300 images each, 32x32x3, made offline."""
    arrays = digits4.load(cache_folder())
    xs, ys, domains, tests = [], [], [], []
    for d, domain in enumerate(digits4.DOMAINS):
        for part in ("train", "test"):
            x = torch.from_numpy(arrays[f"{domain}_x_{part}"])
            xs.append(x)
            ys.append(torch.from_numpy(arrays[f"{domain}_y_{part}"]))
            domains.append(torch.full((len(x),), d))
            tests.append(torch.full((len(x),), part == "test"))
    return Dataset(
        name="digits4",
        x=torch.cat(xs),
        y=torch.cat(ys),
        domain=torch.cat(domains),
        test=torch.cat(tests),
        classes=tuple(str(c) for c in range(10)),
        domains=digits4.DOMAINS,
    )


DATASETS: dict[str, Callable[[], Dataset]] = {"digits4": _digits4}


def load(name: str) -> Dataset:
    """The data set of that name."""
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]()
