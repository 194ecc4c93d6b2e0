"""Updates: how far a client's parameters moved, for servers that work on differences."""

from __future__ import annotations

from ..core.local import Local
from ..core.payload import Payload
from ..core.tree import Tree


def difference(before: Tree, local: Local) -> Payload:
    """What the client has trained: `delta` = w_k - w over parameters, and its shared `buffers`.

    Buffers (BatchNorm's statistics) have no gradient: no sign, norm or direction of an update is to
    see them.
    """
    after, moving = local.tree("shared"), local.parameters()
    names = [n for n in after if n in moving]
    return Payload(delta=after.only(names) - before.only(names), buffers=after.without(names))


def moved(w: Tree, step: Tree, buffers: Tree) -> Tree:
    """The model `w` after a step of its parameters, with new buffers."""
    return w | (w.only(step) + step) | buffers
