"""Settings that are put together from layers, and what each layer says of itself in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Layer:
    """Settings, and sentences on what they change in the paper's setting beyond their values."""

    given: dict[str, Any] = field(default_factory=dict)
    differs: list[str] = field(default_factory=list)


def layer(*tables: Mapping[str, Any] | None) -> Layer:
    """One layer from tables of a file, the last of which wins; their sentences add up."""
    given: dict[str, Any] = {}
    differs: list[str] = []
    for table in tables:
        if table:
            own = dict(table)
            differs += own.pop("differs", [])
            given = stacked(given, own)
    return Layer(given, differs)


# What each of these is chosen with options of its own, which mean nothing to another choice.
OPTIONS = {"data": "source", "partition": "partitioning", "model": "network"}


def stacked(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Settings put together; a later one wins, and another choice starts without options."""
    result: dict[str, Any] = {}
    for table in tables:
        for choice, options in OPTIONS.items():
            if choice in table and table[choice] != result.get(choice):
                result.pop(options, None)
        result = merged(result, table)
    return result


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values put together; a later one wins."""
    result: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            if isinstance(value, Mapping):
                result[key] = merged(result.get(key, {}), value)
            else:
                result[key] = value
    return result
