"""Torch's private functions, and what stands in for them: the same results both ways."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fedloom.client.fast.dense import touched
from fedloom.core import private_torch
from fedloom.core.errors import FedloomError
from fedloom.core.private_torch import PLAIN, PublicMode
from fedloom.models.base import unhooked

PACKAGE = Path(private_torch.__file__).parents[1]
# It says with which versions of torch it works.
ALLOWED = {"core/private_torch.py", "testing/pretend.py"}


def numbers(seed: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=rng) for shape in [(3, 4), (7,), ()]]


def arguments(name: str, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a function may be called with."""
    first, second = numbers(seed), [t.abs() + 0.1 for t in numbers(seed + 1)]
    if name == "_foreach_lerp_":
        return (first, second, 0.3), {}
    if name in ("_foreach_add", "_foreach_add_", "_foreach_sub"):
        return (first, second), {"alpha": -0.05}
    if name.startswith("_foreach"):
        return (first, second), {}
    if name == "_amp_foreach_non_finite_check_and_unscale_":
        first[0][0, 0] = [1.0, torch.inf, torch.nan][seed % 3]
        return (first, torch.zeros(()), torch.tensor(0.5)), {}
    if name == "_amp_update_scale_":
        scale = torch.tensor([16.0, 3e38][seed % 2])
        calm = torch.tensor(seed % 3, dtype=torch.int32)
        return (scale, calm, torch.tensor(float(seed % 5 == 0)), 2.0, 0.5, 3), {}
    if name == "_log_softmax_backward_data":
        logs = torch.log_softmax(first[0], 1)
        return (second[0], logs, 1, torch.float32), {}
    assert name == "_fused_adamw_"
    steps = [torch.tensor(5.0)] * 3
    options = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8}
    flags = {"amsgrad": False, "maximize": False}
    return (numbers(9), first, numbers(8), second, [], steps), {**options, **flags}


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for part in value for t in tensors(part)]
    return []


@pytest.mark.parametrize("name", sorted(PLAIN))
@pytest.mark.parametrize("seed", range(6))
def test_what_stands_in_gives_the_same(name: str, seed: int) -> None:
    """The results and what is changed in place; but for two formulas to the bit."""
    ours, named = arguments(name, seed)
    own, _ = arguments(name, seed)
    result = tensors(PLAIN[name](*ours, **named))
    wanted = tensors(getattr(torch, name)(*own, **named))
    if name.endswith("_"):
        result, wanted = tensors(ours), tensors(own)
    assert len(result) == len(wanted) > 0
    close = name in ("_fused_adamw_", "_log_softmax_backward_data")
    for a, b in zip(result, wanted, strict=True):
        tolerance = 1e-6 if close else 0.0
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("other", [2.5, torch.tensor(2.5)])
def test_a_number_is_for_all_tensors(other: float | Tensor) -> None:
    for name in ("_foreach_add", "_foreach_sub", "_foreach_mul", "_foreach_div"):
        result = PLAIN[name](numbers(0), other)
        for a, b in zip(result, getattr(torch, name)(numbers(0), other), strict=True):
            assert a.equal(b)


def test_variants_of_adamw_are_refused() -> None:
    given, named = arguments("_fused_adamw_", 0)
    with pytest.raises(NotImplementedError, match="own function"):
        PLAIN["_fused_adamw_"](*given, **{**named, "maximize": True})


def layer_with(hook: str) -> nn.Module:
    layer = nn.Linear(2, 2)
    if hook == "tensor":
        layer.weight.register_hook(lambda g: g)
    elif hook == "accumulated":
        layer.weight.register_post_accumulate_grad_hook(lambda p: None)
    elif hook:
        getattr(layer, f"register_{hook}_hook")(lambda *_: None)
    return layer


MODULES = ["forward", "forward_pre", "full_backward", "full_backward_pre"]


@pytest.mark.parametrize("hook", ["", "tensor", "accumulated", *MODULES])
def test_hooks_are_seen(hook: str) -> None:
    layer = layer_with(hook)
    assert touched(layer) is bool(hook)
    assert private_torch.hooked(layer) is (hook in MODULES)
    assert private_torch.seen(layer) is hook.startswith("forward")
    assert private_torch.hooked_tensor(layer.weight) is (hook in ("tensor", "accumulated"))


def test_where_torch_does_not_tell_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module may have one, so nothing goes past it; a network is not refused for it."""
    for places in ("_FORWARD", "_BACKWARD", "_OF_TENSORS"):
        monkeypatch.setattr(private_torch, places, ("_hooks_of_tomorrow",))
    layer = layer_with("")
    assert private_torch.seen(layer) and private_torch.hooked(layer) and touched(layer)
    assert private_torch.hooked_tensor(layer.weight) is None
    unhooked(layer)


def test_a_network_with_a_hook_is_refused() -> None:
    with pytest.raises(FedloomError, match="has a hook"):
        unhooked(layer_with("tensor"))


@pytest.mark.parametrize("name", ["_BatchNorm", "_NormBase"])
def test_kinds_of_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    public = (nn.BatchNorm1d, nn.BatchNorm2d)
    layers = [nn.BatchNorm1d(2), nn.BatchNorm2d(2)]
    kinds = private_torch._kinds(name, public)
    assert [kind.__name__ for kind in kinds] == [name]
    monkeypatch.delattr(torch.nn.modules.batchnorm, name)
    assert private_torch._kinds(name, public) == public
    for kind in (kinds, public):
        assert all(isinstance(layer, kind) for layer in layers)
        assert not isinstance(nn.GroupNorm(1, 2), kind)


@pytest.mark.parametrize("base", [private_torch.Mode, PublicMode])
def test_operations_are_seen(base: Any) -> None:
    """Each with what came of it, which may be refused."""

    class Largest(base):
        size = 0

        def __torch_dispatch__(
            self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = function(*args, **(kwargs or {}))
            for tensor in tensors(made):
                self.size = max(self.size, tensor.numel())
            return made

    with torch.no_grad(), Largest() as mode:
        nn.Sequential(nn.Linear(3, 50), nn.ReLU(), nn.Linear(50, 2))(torch.zeros(4, 3))
    assert mode.size == 200


class Pair(NamedTuple):
    first: Any
    second: Any


@pytest.mark.parametrize("tree", [1, [], [1, (2, {"a": 3, "b": [4]})], Pair(1, [2]), {"a": None}])
def test_trees_both_ways(tree: Any) -> None:
    own, structure = private_torch.flatten(tree)
    plain, same = private_torch._flatten(tree)
    assert own == plain or tree == {"a": None}  # torch takes None for no value
    for unflatten, leaves, how in (
        (private_torch.unflatten, own, structure),
        (private_torch._unflatten, plain, same),
    ):
        again = unflatten([f"value {leaf}" for leaf in leaves], how)
        assert type(again) in (type(tree), str)
        assert private_torch._flatten(again)[0] == [f"value {leaf}" for leaf in plain]
    assert private_torch.mapped(str, [1, (2,)]) == ["1", ("2",)]


ROUNDS = """
from fedloom.core.lookup import make
from fedloom.testing.small_world import trace

for name in ("fedavg", "scaffold", "fedbn", "ditto", "f2dc", "fedpcl"):
    print(name, trace(make(name), rounds=2))
"""
# A torch of tomorrow, for the time in which fedloom looks for what it has. Torch's own optimisers
# need some of these names, so they come back.
GONE = """
import torch
from torch.nn.modules import batchnorm
from torch.utils import _python_dispatch, _pytree

names = [name for name in dir(torch) if name.startswith(("_foreach_", "_fused_", "_amp_"))]
gone = [(torch, name) for name in [*names, "_log_softmax_backward_data"]]
gone += [(batchnorm, "_BatchNorm"), (batchnorm, "_NormBase")]
gone += [(_python_dispatch, "TorchDispatchMode"), (_pytree, "tree_flatten")]
kept = [(place, name, getattr(place, name)) for place, name in gone]
for place, name in gone:
    delattr(place, name)
from fedloom.core import private_torch
count = sum(private_torch.found(name) is plain for name, plain in private_torch.PLAIN.items())
assert count == len(private_torch.PLAIN)
assert len(private_torch.BATCHNORMS) == 4 and private_torch.Mode is private_torch.PublicMode
assert private_torch.flatten is private_torch._flatten
for place, name, value in kept:
    setattr(place, name, value)
"""


def test_rounds_are_the_same_without_any_of_them() -> None:
    """Whole rounds in a process whose torch lacks them all, and in one that has them."""
    printed = []
    for code in (ROUNDS, GONE + ROUNDS):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.splitlines())
    assert len(printed[0]) == 6 and printed[0] == printed[1]


def private_names(path: Path) -> list[str]:
    """Names of torch with a leading underscore that a file touches."""
    touched = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
            touched += [name for name in names if name.startswith("_")]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            private = node.attr.startswith(("_foreach", "_fused", "_amp", "_log_softmax"))
            hooks = node.attr.endswith("_hooks")
            of_torch = ast.unparse(node.value).split(".")[0] in ("torch", "nn", "F", "_aten")
            if private or hooks or (of_torch and not node.attr.startswith("__")):
                touched.append(node.attr)
    return touched


def test_nothing_else_touches_them() -> None:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        found[name] = private_names(path)
    assert len(found) > 400 and all(found[name] for name in ALLOWED)
    assert not {name: names for name, names in found.items() if names and name not in ALLOWED}
