"""Settings that fedloom did not always have.

At their defaults they are no part of a config's hash, so that the folders of older runs keep their
names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LATER = (
    "standardise",
    "networks",
    "hold_out",
    "adapter",
    "adapting",
    "new_clients",
    "clock",
    "schedule.metric",
    "schedule.select",
    "schedule.edges",
    "schedule.eval_clients",
    "schedule.eval_all",
    "training.channels_last",
    "training.compiled",
    "training.class_weights",
    "training.keep_optimizer",
    "training.eval_stats",
    "training.frozen_once",
    "source.label_column",
    "source.site_column",
    "source.group_column",
)
# Options of partitions and models, each with the value that is the same as not having it, and the
# only model to which it came later, if others always had it.
LATER_OPTIONS = (
    ("partitioning.volume", "geometric", None),
    ("network.projection", None, None),
    ("network.frozen", False, "pretrained"),
)


def forget_later(body: dict[str, Any], usual: Mapping[str, Any]) -> None:
    """Take later settings out of a config's values where they are as `usual`."""
    for name in LATER:
        section, _, key = name.rpartition(".")
        table = body
        before: Any
        if section:
            table, before = body[section], usual[section][key]
        elif name == "standardise":
            before = False  # to standardise nothing is what there was before
        else:
            before = usual[key]
        if table[key] == before:
            del table[key]
    for name, value, model in LATER_OPTIONS:
        section, _, key = name.rpartition(".")
        if body[section].get(key) == value and model in (None, body["model"]):
            body[section] = {other: kept for other, kept in body[section].items() if other != key}
