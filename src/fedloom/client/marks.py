"""`Marks`: what is computed of what, followed through a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import private_torch
from ..core.device import Device

CHANGING = "changing"  # depends on what is trained, or is drawn at random
# Operations that hand values of tensors to Python, or whose values decide about a shape.
LOOKS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors in nested values."""
    return [leaf for leaf in private_torch.flatten(values)[0] if isinstance(leaf, Tensor)]


class Marks(private_torch.Mode):
    """While it is entered, marks of tensors pass on to all that is computed of them.

    A mark belongs to the memory in which a tensor lies, so views of it have it too. Every operation
    of torch is seen, whether it has a gradient or not.
    """

    def __init__(self, device: Device, constant: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._marks: dict[int, set[str]] = {}
        self._kept: list[Tensor] = []  # or their memory could be given to other tensors
        self._constant = {_memory(t) for t in constant}
        self.looked_at: set[str] = set()  # marks of tensors whose values Python has seen
        self.wrote = False  # whether somebody has written to a constant

    def mark(self, values: Any, marks: Iterable[str]) -> None:
        """Give all tensors in some values these marks, beside those that they have."""
        marks = set(marks)
        for tensor in tensors_in(values) if marks else ():
            self._marks.setdefault(_memory(tensor), set()).update(marks)
            self._kept.append(tensor)

    def of(self, values: Any) -> set[str]:
        """The marks of the tensors in some values."""
        found: set[str] = set()
        for tensor in tensors_in(values):
            found |= self._marks.get(_memory(tensor), set())
        return found

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        marks = self.of((args, kwargs))
        before = None
        if torch.Tag.nondeterministic_seeded in func.tags:
            before = self._device.random_state()
        if any(tag in func.tags for tag in LOOKS):
            self.looked_at |= marks
        given = func(*args, **kwargs)
        # Attention could draw numbers for its dropout, and draws none without.
        if before is not None and _differ(before, self._device.random_state()):
            marks.add(CHANGING)
        written = _written(func, args, kwargs)
        self.wrote |= any(_memory(t) in self._constant for t in written)
        self.mark((given, written), marks)
        return given


def _differ(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool:
    return not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def _written(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The tensors to which an operation writes."""
    schema: Any = getattr(func, "_schema", None)
    written = []
    for place, argument in enumerate(schema.arguments if schema else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(args[place] if place < len(args) else kwargs.get(argument.name))
    return tensors_in(written)


def _memory(tensor: Tensor) -> int:
    """The same number for all tensors that lie in the same memory."""
    number: int = tensor.untyped_storage()._cdata
    return number
