"""`Cut`: a place in a network before which all is frozen, and how to go on from there.

What a network does is code of its own, which cannot be entered in the middle. So it is called as
ever, but its frozen modules before the cut give zeros in the right shape, which costs nothing, and
the module at the cut is given what was kept in place of what becomes of the zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..core import private_torch
from ..core.errors import FedloomError

Forward = Callable[..., Any]


@contextmanager
def replaced(module: Any, function: Callable[..., Any]) -> Iterator[None]:
    """While it is open, a module calls `function(its own forward, *given, **named)`."""
    before = vars(module).get("forward")
    own = module.forward
    module.forward = partial(function, own)
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


@dataclass
class Cut:
    """Names in a body: the module at the cut, and the frozen ones before it.

    `places` say which of what the module is given is kept, counted through all nested values.
    """

    at: str
    skipped: tuple[str, ...]
    places: tuple[int, ...]
    # What the modules before give for inputs of some shapes, as empty tensors.
    _known: dict[Any, Any] = field(default_factory=dict, repr=False)

    def blank(self, name: str, own: Forward, *given: Any, **named: Any) -> Any:
        """What a module before the cut gives, with zeros for numbers."""
        key = (name, *(_told(leaf) for leaf in private_torch.flatten((given, named))[0]))
        if key not in self._known:
            with torch.no_grad():
                self._known[key] = private_torch.mapped(_emptied, own(*given, **named))
        return private_torch.mapped(_zeros, self._known[key])

    def entering(self, given: Any) -> list[Tensor]:
        """Those of what the module at the cut is given that are kept: one tensor, however often."""
        leaves, _ = private_torch.flatten(given)
        return [leaves[place] for place in self.places]

    def with_kept(self, kept: Tensor, given: Any) -> Any:
        """What the module at the cut is given, with what is kept in its places."""
        leaves, structure = private_torch.flatten(given)
        for place in self.places:
            leaves[place] = kept
        return private_torch.unflatten(leaves, structure)


class _Reached(BaseException):
    """The module at the cut was called; no error, and not to be caught as one."""


class Before(nn.Module):
    """A body up to a cut: samples -> what enters the module there."""

    def __init__(self, body: nn.Module, cut: Cut) -> None:
        super().__init__()
        self.body, self.cut = body, cut

    def forward(self, x: Tensor) -> Tensor:
        reached: list[Tensor] = []

        def stop(own: Forward, *given: Any, **named: Any) -> Any:
            reached.extend(self.cut.entering((given, named)))
            raise _Reached

        with replaced(self.body.get_submodule(self.cut.at), stop):
            try:
                self.body(x)
            except _Reached:
                return reached[0]
        raise _elsewhere(self.cut)


class Behind(nn.Module):
    """A body from a cut on: samples -> features, with what enters the module there at hand."""

    def __init__(self, body: nn.Module, cut: Cut, kept: Tensor) -> None:
        super().__init__()
        self.body, self.cut, self.kept = body, cut, kept

    def forward(self, x: Tensor) -> Any:
        reached: list[bool] = []

        def enter(own: Forward, *given: Any, **named: Any) -> Any:
            reached.append(True)
            if self.cut.entering((given, named))[0].shape != self.kept.shape:
                raise _Reached
            given, named = self.cut.with_kept(self.kept, (given, named))
            return own(*given, **named)

        with ExitStack() as stack:
            for name in self.cut.skipped:
                module = self.body.get_submodule(name)
                stack.enter_context(replaced(module, partial(self.cut.blank, name)))
            stack.enter_context(replaced(self.body.get_submodule(self.cut.at), enter))
            try:
                features = self.body(x)
            except _Reached:  # texts that are shorter together than those with which this was kept
                features = None
        if not reached:
            raise _elsewhere(self.cut)
        return self.body(x) if features is None else features


def _elsewhere(cut: Cut) -> FedloomError:
    return FedloomError(
        f"the network passes its module '{cut.at}' by for some samples, so what is frozen before "
        "it cannot be kept: say --set frozen_once=false."
    )


def _told(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.dtype
    return leaf if isinstance(leaf, int | float | str | bool) else type(leaf).__name__


def _emptied(leaf: Any) -> Any:
    """A tensor's shape, type and device, in a tensor that holds a single number."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.new_zeros(()).expand(leaf.shape)


def _zeros(leaf: Any) -> Any:
    """Zeros of its own, since somebody may write to them."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.new_zeros(leaf.shape)
