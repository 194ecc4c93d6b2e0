"""A pretend accelerator, for device tests on machines that have none.

Its tensors hold real numbers in the CPU's memory, so results have the CPU's bits. But they say that
they are elsewhere, and what would fail on a real accelerator fails here: an operation that mixes
them with the CPU's tensors, a generator of the CPU that draws for them, `.numpy()`. It counts the
kernels that a real device would launch, the transfers, and how often the host waits for a result.

    with pretend() as counts:
        fedloom.run("fedavg", device="pretend")

It stands on an experimental interface of torch (a PrivateUse1 backend in Python), so it works with
the versions in `KNOWN` only; `reason_missing` says why it cannot be used. Import this module before
anything is trained: torch counts the devices when it first computes a gradient. From then on
`torch.accelerator` knows no other accelerator in this process. So if the environment variable
`FEDLOOM_DEVICE` names a real one for tests, there is no pretend one.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..core import device as devices
from ..core.device import Device
from ..core.errors import FedloomError

KNOWN = ("2.13",)  # versions of torch
NAME = "pretend"
NAMED = "FEDLOOM_DEVICE"  # the environment variable that names a real device
_aten = torch.ops.aten
_COPIES = (_aten._to_copy, _aten.copy_, _aten._foreach_copy_)
# These allocate memory or change how a tensor is looked at; a real device launches nothing.
_NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach"}
_NO_KERNEL |= {"_unsafe_view", "_reshape_alias", "alias", "lift_fresh"}
# The size of what these return depends on values, which the host has to wait for.
_WAITING = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal"}
_WAITING |= {"_local_scalar_dense", "is_nonzero", "bincount", "repeat_interleave"}


@dataclass
class Counts:
    """What a real device would have been asked to do."""

    kernels: int = 0
    to_device: int = 0  # tensors copied from the host
    to_host: int = 0  # tensors copied back; the host waits for each
    waits: int = 0  # other waits of the host for a value: `.item()`, a mask, a branch

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self._all(), other._all(), strict=True)))

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*(a - b for a, b in zip(self._all(), other._all(), strict=True)))

    def copy(self) -> Counts:
        """The counts as they are now."""
        return Counts(*self._all())

    def _all(self) -> tuple[int, ...]:
        return self.kernels, self.to_device, self.to_host, self.waits


class _State:
    """What this process knows of the device: whether it is open, its counts and its generator."""

    depth = 0  # how many contexts are open
    counts = Counts()
    generator = torch.Generator()
    late: bool | None = None  # whether the module was imported too late; None: not tried yet
    doubles = True  # whether the device has 64-bit floats
    library: object = None  # rules that hold for as long as this object exists


class _Module:
    """What `torch.cuda` is to CUDA."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return _State.depth > 0

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_device_name(self, device: object = None) -> str:
        return "pretend accelerator"

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: object = None) -> Tensor:
        return _State.generator.get_state()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        _State.generator.set_state(state)

    def manual_seed(self, seed: int) -> None:
        _State.generator.manual_seed(seed)

    manual_seed_all = manual_seed


@dataclass(frozen=True)
class Pretend(Device):
    """The pretend accelerator as a device of fedloom."""

    type: str = NAME
    index: int | None = 0

    @property
    def keeps_layouts(self) -> bool:
        """It computes as the CPU does, to the same bits."""
        return True

    @contextmanager
    def opened(self) -> Iterator[None]:
        """While it is open, this process has the device."""
        with pretend():
            yield


def named_device() -> str | None:
    """The real device on which tests are to compute, if somebody names one."""
    return os.environ.get(NAMED) or None


def reason_missing() -> str | None:
    """Why the pretend accelerator cannot be used here; None: it can."""
    if named_device():
        return f"{NAMED} names a real device"
    version = ".".join(torch.__version__.split(".")[:2])
    if version not in KNOWN:
        return f"the pretend accelerator works with torch {', '.join(KNOWN)}, this is {version}"
    if _State.late is None:
        with _opened():
            _State.late = not _computes_gradients()
    if _State.late:
        return "something was trained in this process before fedloom.testing.pretend was imported"
    return None


@contextmanager
def pretend() -> Iterator[Counts]:
    """While it is open, torch has the device `pretend`; yields its counts."""
    missing = reason_missing()
    if missing:
        raise FedloomError(f"{missing}.")
    with _opened() as counts:
        yield counts


@contextmanager
def without_doubles() -> Iterator[None]:
    """While it is open, the device has no 64-bit floats, like `mps`."""
    _State.doubles = False
    devices.WITHOUT_DOUBLES.add(NAME)
    try:
        yield
    finally:
        _State.doubles = True
        devices.WITHOUT_DOUBLES.discard(NAME)


@contextmanager
def _opened() -> Iterator[Counts]:
    only_cpu = torch._C._only_lift_cpu_tensors()
    # Without this, `torch.tensor([1], device="pretend")` asks for a kernel that is not there.
    torch._C._set_only_lift_cpu_tensors(True)
    _State.depth += 1
    _State.counts = _State.counts if _State.depth > 1 else Counts()
    try:
        with _Mode():
            yield _State.counts
    finally:
        _State.depth -= 1
        torch._C._set_only_lift_cpu_tensors(only_cpu)


def _computes_gradients() -> bool:
    """Whether torch knew the device when it started its threads for gradients."""
    weight = torch.ones(1, device=NAME, requires_grad=True)
    try:
        (2 * weight).sum().backward()
    except RuntimeError:
        return False
    return True


def _register() -> None:
    """Make the device known to torch; once per process."""
    from torch.utils import backend_registration as registration

    class Hook(registration._DummyPrivateUse1Hook):
        """Tells torch that the device is there only while it is open."""

        def is_available(self) -> bool:
            return _State.depth > 0

    registration._setup_privateuseone_for_python_backend(
        NAME, backend_module=_Module(), hook=Hook()
    )
    # Autocast has no rules for such a device; without this it refuses to be entered.
    library = torch.library.Library("_", "IMPL")
    library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _State.library = library


class Elsewhere(Tensor):
    """A tensor that says it is on the device; `numbers` holds them."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Elsewhere:
        made: Elsewhere = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
            requires_grad=False,
        )
        made.numbers = inner
        return made

    def __init__(self, inner: Tensor) -> None:
        pass

    def tolist(self) -> Any:
        """A real device allows this: the values are copied, and the host waits."""
        _State.counts.waits += 1
        return self.numbers.tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"a tensor on {NAME} has no numpy array; {_where()}")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Elsewhere({self.numbers!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return _execute(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Sees every operation, also those that only name the device."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, so torch need not load its compiler, which takes seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return _execute(func, args, kwargs or {})


def _execute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Do an operation with the inner tensors; what comes out is where it would be."""
    leaves = _leaves(args)
    if kwargs:
        leaves += _leaves(kwargs.values())
    ours = [x for x in leaves if isinstance(x, Elsewhere)]
    target = kwargs.get("device")
    if not ours and (target is None or torch.device(target).type != NAME):
        return func(*args, **kwargs)
    _refuse_mixtures(func, leaves, ours)
    stays = _goes_to_device(func, args, target, bool(ours))
    if stays and kwargs.get("generator") is not None:
        raise RuntimeError(f"{func}: a generator of the cpu draws for {NAME}; {_where()}")
    _count(func, args, ours, stays)
    inner = {name: _mapped(_inner, x) for name, x in kwargs.items()}
    if target is not None:
        inner["device"] = torch.device("cpu")
    if torch.Tag.nondeterministic_seeded in func.tags:
        with _own_randomness():
            out = func(*_mapped(_inner, args), **inner)
    else:
        out = func(*_mapped(_inner, args), **inner)
    if not stays:
        return out
    same = {id(x.numbers): x for x in ours}
    return _mapped(lambda x: _outer(x, same), out)


def _leaves(args: Iterable[Any]) -> list[Any]:
    """All values among the arguments of an operation, of which some may be lists.

    Torch's own functions for trees take any trees, and half of a test's time.
    """
    leaves: list[Any] = []
    for x in args:
        if isinstance(x, (list, tuple)):
            leaves += _leaves(x)
        else:
            leaves.append(x)
    return leaves


def _mapped(function: Callable[[Any], Any], x: Any) -> Any:
    """The same arguments or results, each value mapped by a function."""
    if isinstance(x, list):
        return [_mapped(function, part) for part in x]
    if isinstance(x, tuple):
        return tuple([_mapped(function, part) for part in x])
    return function(x)


def _inner(x: Any) -> Any:
    return x.numbers if isinstance(x, Elsewhere) else x


def _outer(x: Any, same: Mapping[int, Elsewhere]) -> Any:
    """A result as a tensor of the device; what was changed in place is the tensor that it was."""
    if not isinstance(x, Tensor):
        return x
    if id(x) in same:
        return same[id(x)]
    if x.dtype == torch.float64 and not _State.doubles:
        raise TypeError(f"{NAME} has no 64-bit floats; {_where()}")
    return Elsewhere(x)


def _refuse_mixtures(func: Any, leaves: Sequence[Any], ours: Sequence[Tensor]) -> None:
    """As on a real device, only single numbers of the CPU may meet tensors of the device."""
    if not ours or func.overloadpacket in _COPIES:
        return
    for x in leaves:
        if isinstance(x, Tensor) and not isinstance(x, Elsewhere) and x.dim():
            raise RuntimeError(
                f"{func}: a tensor of shape {tuple(x.shape)} on the cpu meets one on {NAME}; "
                f"{_where()}"
            )


def _goes_to_device(func: Any, args: Sequence[Any], target: Any, ours: bool) -> bool:
    """Whether the result is on the device."""
    if func.overloadpacket is _aten.copy_:
        return isinstance(args[0], Elsewhere)
    if func.overloadpacket is _aten._foreach_copy_:
        return isinstance(args[0][0], Elsewhere)
    if target is not None:
        return torch.device(target).type == NAME
    return ours


def _count(func: Any, args: Sequence[Any], ours: Sequence[Tensor], stays: bool) -> None:
    counts, name = _State.counts, func.overloadpacket.__name__
    moved = _moved(func, args, bool(ours), stays)
    if moved:
        if stays:
            counts.to_device += moved
        else:
            counts.to_host += moved
        return
    if name in _WAITING or _masked(name, args):
        counts.waits += 1
    if name not in _NO_KERNEL and not func.is_view:
        counts.kernels += 1


def _moved(func: Any, args: Sequence[Any], ours: bool, stays: bool) -> int:
    """How many tensors go from host to device, or back."""
    kind = func.overloadpacket
    if kind is _aten._to_copy:
        return int(ours != stays)
    if kind is _aten.copy_:
        return int(isinstance(args[0], Elsewhere) != isinstance(args[1], Elsewhere))
    if kind is _aten._foreach_copy_:
        pairs = zip(args[0], args[1], strict=True)
        return sum(isinstance(a, Elsewhere) != isinstance(b, Elsewhere) for a, b in pairs)
    return 0


def _masked(name: str, args: Sequence[Any]) -> bool:
    """Whether an operation picks elements by a mask, so that only values tell how many."""
    if name not in ("index", "index_put_", "index_put"):
        return False
    masks = [x for x in args[1] if isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8)]
    return bool(masks)


@contextmanager
def _own_randomness() -> Iterator[None]:
    """The device draws from a generator of its own, as real ones do."""
    outside = torch.get_rng_state()
    torch.set_rng_state(_State.generator.get_state())
    try:
        yield
    finally:
        _State.generator.set_state(torch.get_rng_state())
        torch.set_rng_state(outside)


def _where() -> str:
    """The line of somebody's code that asked for this: the innermost outside of torch."""
    torch_folder = str(Path(torch.__file__).parent)
    for frame in reversed(traceback.extract_stack(sys._getframe(1))):
        if frame.filename != __file__ and not frame.filename.startswith(torch_folder):
            return f"at {frame.filename}, line {frame.lineno}: {frame.line}"
    return "at an unknown line"


if not named_device() and ".".join(torch.__version__.split(".")[:2]) in KNOWN:
    _register()
    devices.KINDS[NAME] = Pretend
