"""Where a body can be cut so that all before is frozen: found by trying it with two samples.

The body runs once with marks on all that is trained. Modules that are frozen and see nothing marked
could be skipped; the first module that makes something marked out of what they give is where the
body could be cut, or a module inside of it. Whether it can is tried, in training as in evaluation:
nothing marked enters there, and nothing of what is skipped gets past it by another way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ..core import private_torch
from ..core.device import Device
from ..core.roles import at_rest, twin
from .cut import Before, Behind, Cut, Forward, replaced
from .marks import CHANGING, Marks

SKIPPED = "skipped"  # computed of what a frozen module gave
TOLERANCE = 1e-5  # relative to the largest number: sums may be added up in another order
LEAST = 0.05  # share of a body's operations from which on it is worth keeping what they give


def find(model: Any, frozen: Collection[str], x: Tensor, device: Device) -> Cut | None:
    """The last place at which a model's body can be cut; None if there is none that is worth it.

    `x` are two samples as the model wants them. The model stays as it is.
    """
    try:
        return _Trial(model, frozen, x, device).cut()
    except Exception:  # whatever a network does that cannot be followed, it computes as ever
        return None


@dataclass(eq=False)
class _Call:
    """A call of a module that is given what frozen modules made, and nothing that changes."""

    name: str
    inside: list[_Call]  # the calls in which it lies
    places: tuple[int, ...]  # of what frozen modules made, in what it is given
    before: tuple[str, ...]  # the frozen modules that were called before
    changes: bool = False  # whether it gives something that changes


@dataclass
class _Record:
    """The calls of a body's modules, in their order."""

    marks: Marks
    calls: list[_Call] = field(default_factory=list)
    under_way: list[_Call] = field(default_factory=list)
    called: list[str] = field(default_factory=list)
    steady: list[str] = field(default_factory=list)  # frozen ones that give nothing that changes
    unsteady: list[str] = field(default_factory=list)
    within: bool = False  # a frozen module

    def of_frozen(self, name: str, own: Forward, *given: Any, **named: Any) -> Any:
        """Call a frozen module; those that it calls are part of it."""
        if self.within:
            return own(*given, **named)
        self.within = True
        result = own(*given, **named)
        self.within = False
        if CHANGING in self.marks.of(result):
            self.unsteady.append(name)
        else:
            self.steady.append(name)
            self.marks.mark(result, [SKIPPED])
        return result

    def of_other(self, name: str, own: Forward, *given: Any, **named: Any) -> Any:
        """Call another module."""
        self.called.append(name)
        leaves = private_torch.flatten((given, named))[0]
        places = [i for i, leaf in enumerate(leaves) if SKIPPED in self.marks.of(leaf)]
        one_tensor = len({id(leaves[i]) for i in places}) == 1
        if not one_tensor or CHANGING in self.marks.of(leaves):
            return own(*given, **named)
        call = _Call(name, list(self.under_way), tuple(places), tuple(self.steady))
        self.calls.append(call)
        self.under_way.append(call)
        result = own(*given, **named)
        self.under_way.pop()
        call.changes = CHANGING in self.marks.of(result)
        return result

    def cuts(self) -> Iterator[Cut]:
        """Where the body could be cut: the first call at which something changes, or one in it.

        The innermost comes first. A module that is called several times is none.
        """
        chain: list[_Call] = []
        for call in self.calls:
            if call.changes and (not chain or chain[-1] in call.inside):
                chain.append(call)
        for call in reversed(chain):
            if self.called.count(call.name) == 1:
                skipped = [name for name in dict.fromkeys(call.before) if name not in self.unsteady]
                yield Cut(call.name, tuple(skipped), call.places)


class _Tried(Cut):
    """A cut whose zeros are marked."""

    marks: Marks

    def blank(self, name: str, own: Forward, *given: Any, **named: Any) -> Any:
        """Zeros for what a frozen module gives."""
        result = super().blank(name, own, *given, **named)
        self.marks.mark(result, [SKIPPED])
        return result


class _Trial:
    """A copy of a model that shares what is frozen with it, and two samples."""

    def __init__(self, model: Any, frozen: Collection[str], x: Tensor, device: Device) -> None:
        self._model: Any = twin(model, frozen)
        self._x, self._device = x, device
        self._resting = at_rest(self._model, frozen)
        tensors = self._model.state_dict()
        self._changing = [tensor for name, tensor in tensors.items() if name not in frozen]
        moving = {id(t) for t in self._model.state_dict(keep_vars=True).values()}
        unsaved = [b for b in self._model.buffers() if id(b) not in moving]
        self._constant = [tensors[name] for name in frozen] + unsaved

    def cut(self) -> Cut | None:
        """The last cut that is one, if it is worth it."""
        for cut in self._record().cuts():
            if self._holds(cut):
                return cut if self._share(cut) >= LEAST else None
        return None

    def _record(self) -> _Record:
        """The calls of the body's modules while it is trained."""
        body, record = self._model.body, _Record(self._marks())
        frozen = {id(inner) for module in self._resting for inner in module.modules()}
        with ExitStack() as stack, self._mode(training=True):
            for name, module in body.named_modules():
                if id(module) in frozen:
                    stack.enter_context(replaced(module, partial(record.of_frozen, name)))
                elif name:
                    stack.enter_context(replaced(module, partial(record.of_other, name)))
            with record.marks:
                body(self._x)
        return record

    def _marks(self) -> Marks:
        marks = Marks(self._device, self._constant)
        marks.mark(self._changing, [CHANGING])
        return marks

    @contextmanager
    def _mode(self, training: bool) -> Iterator[None]:
        """The model as it is trained or evaluated, drawing the same numbers each time."""
        self._model.train(training)
        for module in self._resting:
            module.eval()
        with torch.set_grad_enabled(training), self._device.seeded(0):
            yield

    def _holds(self, cut: Cut) -> bool:
        """Whether a body can be cut there, in training as in evaluation."""
        trained, evaluated = (self._kept(cut, training) for training in (True, False))
        if trained is None or evaluated is None or not _same(trained, evaluated):
            return False
        return all(self._goes_on(cut, trained, training) for training in (True, False))

    def _kept(self, cut: Cut, training: bool) -> Tensor | None:
        """What enters the module at the cut; None if it depends on something that changes."""
        marks = self._marks()
        with self._mode(training), marks:
            kept = Before(self._model.body, cut)(self._x)
        if CHANGING in marks.of(kept) | marks.looked_at or marks.wrote:
            return None
        return kept.detach() if kept.shape[0] == len(self._x) else None

    def _goes_on(self, cut: Cut, kept: Tensor, training: bool) -> bool:
        """Whether all that is behind the cut depends on what enters there, and not on zeros."""
        body, marks = self._model.body, Marks(self._device)
        with self._mode(training):
            whole = body(self._x)
        tried = _Tried(cut.at, cut.skipped, cut.places)
        tried.marks = marks
        with self._mode(training), marks:
            features = Behind(body, tried, kept.clone())(self._x)
        reached = marks.of((features, self._changing)) | marks.looked_at
        return SKIPPED not in reached and _same(whole, features)

    def _share(self, cut: Cut) -> float:
        """Which share of the body's operations are those before the cut."""
        counts = []
        for module in (Before(self._model.body, cut), self._model.body):
            with self._mode(training=False), FlopCounterMode(display=False) as counter:
                module(self._x)
            counts.append(counter.get_total_flops())
        return counts[0] / counts[1] if counts[1] else 0.0


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two results are the same up to rounding."""
    if a.shape != b.shape:
        return False
    bound = TOLERANCE * max(1.0, float(a.detach().abs().max()))
    return bool((a.detach() - b.detach()).abs().max() <= bound)
