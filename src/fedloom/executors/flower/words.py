"""Texts that go from one side to the other: short, plain, and without a site's paths."""

from __future__ import annotations

import re
from collections.abc import Mapping

LONGEST = 300  # characters of a text that the other side wrote
LONGEST_NAME = 64  # characters of a name that the other side chose

# An absolute path: a slash (or a drive) that follows nothing which could be part of a name, such as
# the slash of 'model/head.bias' does.
_PATH = re.compile(r"(?<![\w.)\]*>-])(?:~|[A-Za-z]:)?[/\\][^\s'\"`,;]+")


def cut(text: object, length: int = LONGEST) -> str:
    """A stranger's text as one line of printable characters, cut at a length."""
    start = str(text)[: 2 * length]
    line = " ".join("".join(c if c.isprintable() else " " for c in start).split())
    return line if len(line) <= length else line[: length - 4] + " ..."


def without_paths(text: str, places: Mapping[str, str]) -> str:
    """A text in which every path is replaced.

    `places` maps paths to words for them. Other absolute paths become `<path>`.
    """
    for path, words in sorted(places.items(), key=lambda item: -len(item[0])):
        if len(path) > 1:
            text = text.replace(path, words)
    return _PATH.sub("<path>", text)
