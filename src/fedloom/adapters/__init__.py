"""Adapters: a large network stays as it is, and a little is trained beside it or inside it."""

from .base import ADAPTERS, adapt, doc, options, register
from .factors import Pair, factors, merge, movable
from .reach import refuse_uncalled

__all__ = [
    "ADAPTERS",
    "Pair",
    "adapt",
    "doc",
    "factors",
    "merge",
    "movable",
    "options",
    "refuse_uncalled",
    "register",
]
