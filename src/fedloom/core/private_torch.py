"""What torch keeps to itself and fedloom uses all the same, each with something in its place.

Names that begin with an underscore may change or go with any version of torch. Where one is gone,
the plain way below takes its place: the same numbers, more slowly. Nothing else in the package
touches such a name (a test looks), but for `testing.pretend`, which says with which versions it
works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from torch.nn.modules import batchnorm

    BatchNorm = batchnorm._BatchNorm
    NormBase = batchnorm._NormBase
    from torch.utils import _python_dispatch

    Mode = _python_dispatch.TorchDispatchMode
else:
    BatchNorm = NormBase = nn.Module  # in annotations only

# ------------------------------------------------------------- one call for many tensors


def _one_by_one(operation: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    """An operation for a list of tensors and a list of others, or a number for all of them."""

    def listed(tensors: Sequence[Tensor], others: Any, *more: Any, **named: Any) -> list[Tensor]:
        if not isinstance(others, (list, tuple)):
            others = [others] * len(tensors)
        pairs = zip(tensors, others, strict=True)
        return [operation(a, b, *more, **named) for a, b in pairs]

    return listed


def _unscale(grads: Sequence[Tensor], overflow: Tensor, factor: Tensor) -> None:
    """Multiply gradients by a factor; `overflow` becomes 1 if one is not finite."""
    for grad in grads:
        overflow.copy_(torch.maximum(overflow, (~grad.isfinite()).any().to(overflow.dtype)))
        grad.mul_(factor)


def _update_scale(
    scale: Tensor, calm: Tensor, overflow: Tensor, growth: float, backoff: float, patience: int
) -> None:
    """Lower the scale after an overflow, raise it after enough steps without one."""
    over, full = overflow > 0, calm + 1 == patience
    higher = torch.where((scale * growth).isfinite(), scale * growth, scale)
    scale.copy_(torch.where(over, scale * backoff, torch.where(full, higher, scale)))
    calm.copy_(torch.where(over | full, 0, calm + 1))


def _adamw(
    weights: Sequence[Tensor],
    grads: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    largest: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    **others: bool,
) -> None:
    """A step of AdamW, without its variants."""
    if largest or any(others.values()):
        raise NotImplementedError(f"AdamW with {', '.join(others)} needs torch's own function")
    for w, g, mean, square, step in zip(weights, grads, means, squares, steps, strict=True):
        w.mul_(1 - lr * weight_decay)
        mean.lerp_(g, 1 - beta1)
        square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        size = (square / (1 - beta2**step)).sqrt_().add_(eps)
        w.sub_(lr / (1 - beta1**step) * mean / size)


def _softmax_backward(g: Tensor, logs: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """The gradient of what `log_softmax` was given, from that of its result `logs`."""
    return (g - logs.exp() * g.sum(dim, keepdim=True)).to(dtype)


PLAIN: dict[str, Callable[..., Any]] = {
    "_foreach_add": _one_by_one(torch.add),
    "_foreach_sub": _one_by_one(torch.sub),
    "_foreach_mul": _one_by_one(torch.mul),
    "_foreach_div": _one_by_one(torch.div),
    "_foreach_add_": _one_by_one(Tensor.add_),
    "_foreach_mul_": _one_by_one(Tensor.mul_),
    "_foreach_copy_": _one_by_one(Tensor.copy_),
    "_foreach_lerp_": _one_by_one(Tensor.lerp_),
    "_amp_foreach_non_finite_check_and_unscale_": _unscale,
    "_amp_update_scale_": _update_scale,
    "_fused_adamw_": _adamw,
    "_log_softmax_backward_data": _softmax_backward,
}


def found(name: str) -> Callable[..., Any]:
    """Torch's own function, or what stands in for it."""
    own: Callable[..., Any] = getattr(torch, name, PLAIN[name])
    return own


add = found("_foreach_add")
sub = found("_foreach_sub")
mul = found("_foreach_mul")
div = found("_foreach_div")
add_ = found("_foreach_add_")
mul_ = found("_foreach_mul_")
copy_ = found("_foreach_copy_")
lerp_ = found("_foreach_lerp_")
unscale_ = found("_amp_foreach_non_finite_check_and_unscale_")
update_scale_ = found("_amp_update_scale_")
adamw_ = found("_fused_adamw_")
softmax_backward = found("_log_softmax_backward_data")


# ------------------------------------------------------------------------------ hooks

_FORWARD = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")
_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def _hooked(thing: object, places: Sequence[str]) -> bool | None:
    """Whether one of its dictionaries has a hook; None if torch has no such dictionaries."""
    if not all(hasattr(thing, place) for place in places):
        return None
    return any(getattr(thing, place) for place in places)


def seen(module: nn.Module) -> bool:
    """Whether somebody may see what goes into a module or comes out of it."""
    return _hooked(module, _FORWARD) is not False


def hooked(module: nn.Module) -> bool:
    """Whether a module may have a hook of any kind."""
    return _hooked(module, _FORWARD + _BACKWARD) is not False


def hooked_tensor(tensor: Tensor) -> bool | None:
    """Whether a tensor has a hook on its gradient; None if torch does not tell."""
    return _hooked(tensor, _OF_TENSORS)


# ---------------------------------------------------------------------- kinds of layers


def _kinds(name: str, public: tuple[type[nn.Module], ...]) -> tuple[type[Any], ...]:
    """The class from which these layers inherit, or the layers themselves."""
    base = getattr(torch.nn.modules.batchnorm, name, None)
    return public if base is None else (base,)


_BATCHNORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCENORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
BATCHNORMS: tuple[type[BatchNorm], ...] = _kinds("_BatchNorm", _BATCHNORMS)
# Layers that keep statistics of their batches.
NORMS: tuple[type[NormBase], ...] = _kinds("_NormBase", _BATCHNORMS + _INSTANCENORMS)


# ------------------------------------------------------------------- seeing operations


class PublicMode(TorchFunctionMode):
    """Sees calls of torch's functions from Python; what those call in turn it does not see."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return self.__torch_dispatch__(function, types, args, kwargs)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError


def _mode() -> Any:
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        return PublicMode
    return TorchDispatchMode


if not TYPE_CHECKING:
    Mode = _mode()  # a context whose `__torch_dispatch__` sees every operation


# ------------------------------------------------- values in lists, tuples and dictionaries


def _flatten(tree: Any) -> tuple[list[Any], Any]:
    """The values in a tree of lists, tuples and dictionaries; the tree itself says how they lie."""
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in _flatten(part)[0]], tree
    if isinstance(tree, (list, tuple)):
        return [leaf for part in tree for leaf in _flatten(part)[0]], tree
    return [tree], tree


def _unflatten(leaves: Iterable[Any], structure: Any) -> Any:
    """The tree with other values."""
    return _refilled(structure, iter(leaves))


def _refilled(structure: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(structure, dict):
        return {key: _refilled(part, leaves) for key, part in structure.items()}
    if isinstance(structure, list):
        return [_refilled(part, leaves) for part in structure]
    if isinstance(structure, tuple):
        parts = [_refilled(part, leaves) for part in structure]
        return type(structure)(*parts) if hasattr(structure, "_fields") else tuple(parts)
    return next(leaves)


def _trees() -> tuple[Callable[..., Any], Callable[..., Any]]:
    try:
        from torch.utils._pytree import tree_flatten, tree_unflatten
    except ImportError:
        return _flatten, _unflatten
    return tree_flatten, tree_unflatten


# The values in a tree and its structure; the tree again, of values and structure.
flatten, unflatten = _trees()


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with every value replaced by a function of it."""
    leaves, structure = flatten(tree)
    return unflatten([function(leaf) for leaf in leaves], structure)
