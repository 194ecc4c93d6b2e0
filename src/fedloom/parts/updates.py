"""Updates: how far a client's parameters moved, for servers that work on differences.

What counts as a parameter of an upload is what its claim says (core/claims.py): weights of a model
or changes of weights. BatchNorm's statistics have claims of their own.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..core.claims import CHANGES, MEAN, VARIANCE, WEIGHTS, claim_of
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


def weights(method: type, upload: Payload, statistics: bool = False) -> Tree:
    """What an upload says of the model, by full names: weights, or changes of weights.

    With `statistics`, BatchNorm's running means and variances are there too.
    """
    wanted = [WEIGHTS, CHANGES]
    if statistics:
        wanted += [MEAN, VARIANCE]
    tensors = {}
    for name, value in upload.items():
        floating = isinstance(value, Tensor) and value.is_floating_point()
        if floating and claim_of(method, name) in wanted:
            tensors[name] = upload.tensor(name)
    return Tree(tensors)


def start(method: type, server: Payload, names: Iterable[str]) -> Tree:
    """Where uploads of these names begin: at the server's model, or at 0 for changes of it."""
    starts = {}
    for name in names:
        if claim_of(method, name) == CHANGES:
            starts[name] = torch.zeros(())
        elif name in server:
            starts[name] = server.tensor(name)
        else:  # under another heading, as `buffers/...`
            starts[name] = server.tensor(f"model/{name.partition('/')[2]}")
    return Tree(starts)


def update(method: type, server: Payload, upload: Payload, statistics: bool = False) -> Tree:
    """How far an upload is from the server's model, by the names of its entries."""
    ends = weights(method, upload, statistics)
    starts = start(method, server, ends)
    return Tree((name, end - starts[name]) for name, end in ends.items())


def with_update(method: type, server: Payload, upload: Payload, moved: Tree) -> Payload:
    """The upload that is this far from the server's model."""
    starts = start(method, server, moved)
    return Payload({**upload, **{name: starts[name] + by for name, by in moved.items()}})


def cut(update: Tree, bound: float) -> tuple[Tree, bool]:
    """The update, scaled down to this length if it is longer; whether it was short enough."""
    length = float(update.norm())
    if length > bound:
        return update * (bound / length), False
    return update, length <= bound  # neither is true of NaN


def normal(like: Tree, size: float, rng: torch.Generator) -> Tree:
    """Normal noise of this deviation for each number; the order of names does not matter."""
    draws = {name: torch.randn(like[name].shape, generator=rng) for name in sorted(like)}
    return Tree((name, size * draws[name].to(like[name])) for name in like)


def uncounted(method: type, server: Payload, upload: Payload) -> Payload:
    """The upload with counters of batches as the server has them: they depend on a client's size.

    As a change of weights a counter is 0.
    """
    names = [name for name in upload if name.endswith("num_batches_tracked")]
    starts = start(method, server, names)
    counters = {name: starts[name].to(upload.tensor(name)).clone() for name in names}
    return Payload({**upload, **counters})


def possible(method: type, server: Payload) -> Payload:
    """The server without variances that noise has made negative."""
    mended = {}
    for name in server:
        if claim_of(method, name) == VARIANCE:
            mended[name] = server.tensor(name).clamp(min=0)
    return Payload({**server, **mended})
