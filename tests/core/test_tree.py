import math
import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedloom.core.errors import FedloomError
from fedloom.core.tree import Mean, Tree

torch.set_num_threads(1)

OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv]
SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), max_size=5)


def draw(shapes: list[tuple[int, ...]], seed: int, dtype: torch.dtype = torch.float32) -> Tree:
    """A tree `t0, t1, ...` of normal values, none so small that a division by it explodes."""
    generator = torch.Generator().manual_seed(seed)
    return Tree(
        (f"t{i}", _away(torch.randn(s, generator=generator, dtype=dtype)))
        for i, s in enumerate(shapes)
    )


def _away(tensor: Tensor) -> Tensor:
    return tensor + 0.1 * torch.where(tensor < 0, -1.0, 1.0)


def bits(tensor: Tensor) -> bytes:
    """A tensor's exact content: a -0.0 differs from 0.0, a NaN equals itself."""
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def content(tree: Tree) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    return {name: (t.dtype, tuple(t.shape), bits(t)) for name, t in tree.items()}


def places(tree: Tree) -> set[int]:
    """Where the tree's values lie in memory (empty tensors lie nowhere)."""
    return {t.untyped_storage().data_ptr() for t in tree.values() if t.numel()}


def reordered(tree: Tree, seed: int = 0) -> Tree:
    names = list(tree)
    random.Random(seed).shuffle(names)
    return Tree((n, tree[n]) for n in names)


# -- arithmetic -----------------------------------------------------------------------------
@settings(deadline=None, max_examples=60, derandomize=True)
@given(SHAPES, st.integers(0, 1000), st.sampled_from([torch.float32, torch.float64]))
def test_two_trees_act_tensor_by_tensor(
    shapes: list[tuple[int, ...]], seed: int, dtype: torch.dtype
) -> None:
    a, b = draw(shapes, seed, dtype), draw(shapes, seed + 1, dtype)
    for operate in OPERATORS:
        result = operate(a, b)
        assert isinstance(result, Tree)
        assert list(result) == list(a)
        for name in a:
            assert torch.equal(result[name], operate(a[name], b[name]))
            assert result[name].dtype == dtype


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    SHAPES,
    st.integers(0, 1000),
    st.one_of(st.integers(1, 9), st.floats(0.1, 9.0), st.floats(-9.0, -0.1)),
)
def test_numbers_act_on_every_tensor(
    shapes: list[tuple[int, ...]], seed: int, number: float
) -> None:
    a = draw(shapes, seed)
    for scalar in (number, torch.tensor(float(number))):
        for operate in OPERATORS:
            result = operate(a, scalar)
            assert list(result) == list(a)
            for name in a:
                assert result[name].dtype == torch.float32
                torch.testing.assert_close(
                    result[name], operate(a[name], scalar), rtol=1e-6, atol=1e-6
                )
        assert (scalar * a).equal(a * scalar)
        assert (scalar + a).equal(a + scalar)
    assert (-a).equal(a.map(torch.neg))


def test_a_known_expression() -> None:
    w = Tree({"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(4.0)})
    g = Tree({"w": torch.tensor([10.0, 20.0]), "b": torch.tensor(-8.0)})
    step = w - 0.5 * (g + w) / 2
    assert step.equal(Tree({"w": torch.tensor([-1.75, -3.5]), "b": torch.tensor(5.0)}))
    assert (-w).equal(Tree({"w": torch.tensor([-1.0, -2.0]), "b": torch.tensor(-4.0)}))
    assert sum([w, w, w]).equal(3 * w)  # type: ignore[union-attr]


def test_gradients_flow_through_arithmetic() -> None:
    w = Tree({"w": torch.tensor([1.0, 2.0], requires_grad=True)})
    anchor = Tree({"w": torch.tensor([0.0, 5.0])})
    difference = w - anchor
    (0.5 * difference.dot(difference)).backward()
    assert w["w"].grad is not None
    assert w["w"].grad.tolist() == [1.0, -3.0]


@settings(deadline=None, max_examples=40, derandomize=True)
@given(SHAPES, st.integers(0, 1000))
def test_the_order_of_names_does_not_matter(shapes: list[tuple[int, ...]], seed: int) -> None:
    a, b = draw(shapes, seed), draw(shapes, seed + 1)
    mixed = reordered(b, seed)
    for operate in OPERATORS:
        assert operate(a, mixed).equal(operate(a, b))
        assert operate(mixed, a).equal(operate(b, a))
        assert list(operate(a, mixed)) == list(a), "the left operand's order is kept"
    assert torch.equal(a.dot(mixed), a.dot(b))
    assert a.equal(reordered(a, seed)) and reordered(a, seed).equal(a)


def test_values_are_not_swapped_between_names_of_equal_shape() -> None:
    a = Tree({"x": torch.tensor([1.0]), "y": torch.tensor([2.0])})
    b = Tree({"y": torch.tensor([20.0]), "x": torch.tensor([10.0])})
    assert {n: t.item() for n, t in (a + b).items()} == {"x": 11.0, "y": 22.0}
    assert a.dot(b).item() == 1 * 10 + 2 * 20


# -- what is refused ------------------------------------------------------------------------
def mean(a: Tree, b: Tree) -> Tree:
    both = Mean()
    both.add(a)
    both.add(b)
    return both.value(default=Tree())


COMBINATIONS: list[Callable[[Tree, Tree], Any]] = [*OPERATORS, Tree.dot, mean]


@pytest.mark.parametrize("combine", COMBINATIONS, ids=lambda f: f.__name__)
def test_different_names_are_an_error_that_names_one(combine: Callable[[Tree, Tree], Any]) -> None:
    a = Tree({"body.weight": torch.ones(2), "shared": torch.ones(1)})
    b = Tree({"shared": torch.ones(1), "head.bias": torch.ones(2)})
    for left, right in ((a, b), (b, a)):
        with pytest.raises(
            FedloomError, match=r"different names: 'body\.weight' is in only one of them \(2 such\)"
        ):
            combine(left, right)
    with pytest.raises(FedloomError, match=r"'body\.weight' is in only one of them \(1 such\)"):
        combine(a, a.without(["body.weight"]))


@pytest.mark.parametrize("combine", COMBINATIONS, ids=lambda f: f.__name__)
def test_different_shapes_are_an_error_that_names_the_tensor(
    combine: Callable[[Tree, Tree], Any],
) -> None:
    a = Tree({"fine": torch.ones(2), "odd.weight": torch.ones(2, 3)})
    b = Tree({"odd.weight": torch.ones(3, 2), "fine": torch.ones(2)})
    with pytest.raises(FedloomError, match=r"'odd\.weight' has shape \(3, 2\), expected \(2, 3\)"):
        combine(a, b)


@pytest.mark.parametrize("combine", COMBINATIONS, ids=lambda f: f.__name__)
def test_shapes_that_torch_would_broadcast_are_refused(
    combine: Callable[[Tree, Tree], Any],
) -> None:
    a, b = Tree({"w": torch.ones(2, 3)}), Tree({"w": torch.ones(3)})
    with pytest.raises(FedloomError, match="'w' has shape"):
        combine(a, b)
    with pytest.raises(FedloomError, match="'w' has shape"):
        combine(b, a)


@pytest.mark.parametrize("combine", COMBINATIONS, ids=lambda f: f.__name__)
def test_an_empty_tree_does_not_go_with_a_full_one(combine: Callable[[Tree, Tree], Any]) -> None:
    full = Tree({"w": torch.ones(2)})
    with pytest.raises(FedloomError, match="'w' is in only one of them"):
        combine(full, Tree())
    with pytest.raises(FedloomError, match="'w' is in only one of them"):
        combine(Tree(), full)


def test_a_tree_cannot_be_changed() -> None:
    source = {"w": torch.ones(2)}
    tree = Tree(source)
    with pytest.raises(TypeError):
        tree["w"] = torch.zeros(2)  # type: ignore[index]
    with pytest.raises(TypeError):
        del tree["w"]  # type: ignore[attr-defined]
    source["x"] = torch.ones(1)
    assert list(tree) == ["w"]


# -- operands -------------------------------------------------------------------------------
@pytest.mark.parametrize("shapes", [[(2, 3), (4,), ()], [(1,)], [(0, 2), (3,)]])
def test_operands_are_never_changed_nor_aliased(shapes: list[tuple[int, ...]]) -> None:
    a, b = draw(shapes, 1), draw(shapes, 2)
    before = content(a), content(b)
    neutral = [a + 0, a - 0, a * 1, a / 1, 1 * a, 0 + a]
    others = [operate(a, b) for operate in OPERATORS] + [
        -a,
        a.clone(),
        a.zeros_like(),
        a + a,
        a.map(torch.exp),
    ]
    for result in neutral + others:
        assert not places(result) & (places(a) | places(b))
        for tensor in result.values():
            tensor.fill_(77.0)
    assert (content(a), content(b)) == before
    a.dot(b), a.norm(), a.equal(b), a | b, a.only(a), a.without(a)
    assert (content(a), content(b)) == before


def test_clone_gives_every_tensor_memory_of_its_own() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    tree = Tree({"a": base, "b": base, "c": base.t(), "d": base[1:], "e": torch.ones(1).expand(3)})
    copy = tree.clone()
    assert copy.equal(tree)
    assert len(places(copy)) == 5
    assert not places(copy) & places(tree)
    assert all(
        t.is_contiguous() and t.untyped_storage().nbytes() == t.numel() * 4 for t in copy.values()
    )
    copy["a"].zero_()
    assert copy["b"].sum() == base.sum() == 66


def test_clone_leaves_gradients_behind() -> None:
    tree = Tree({"w": torch.ones(2, requires_grad=True)})
    assert not tree.clone()["w"].requires_grad
    assert tree["w"].requires_grad


# -- dot, norm ------------------------------------------------------------------------------
@settings(deadline=None, max_examples=60, derandomize=True)
@given(SHAPES, st.integers(0, 1000))
def test_dot_and_norm_are_joint_over_all_tensors(shapes: list[tuple[int, ...]], seed: int) -> None:
    a, b = draw(shapes, seed, torch.float64), draw(shapes, seed + 1, torch.float64)
    flat_a = torch.cat([torch.zeros(0, dtype=torch.float64), *(t.reshape(-1) for t in a.values())])
    flat_b = torch.cat([torch.zeros(0, dtype=torch.float64), *(t.reshape(-1) for t in b.values())])
    assert a.dot(b).shape == a.norm().shape == ()
    assert a.dot(b).item() == pytest.approx(torch.dot(flat_a, flat_b).item(), rel=1e-12, abs=1e-12)
    assert a.norm().item() == pytest.approx(
        torch.linalg.vector_norm(flat_a).item(), rel=1e-12, abs=1e-12
    )


def test_norm_is_not_a_sum_of_norms() -> None:
    tree = Tree({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]]), "c": torch.tensor(12.0)})
    assert tree.norm().item() == 13.0
    assert tree.dot(2 * tree).item() == 338.0


# -- structure ------------------------------------------------------------------------------
def test_towards_is_exact_at_both_ends_and_may_differ_by_element() -> None:
    a = Tree({"w": torch.tensor([0.1, 0.7]), "n": torch.tensor(3)})
    b = Tree({"n": torch.tensor(5), "w": torch.tensor([0.3, -0.9])})
    assert a.towards(b, 0.0)["w"].equal(a["w"]) and a.towards(b, 1.0)["w"].equal(b["w"])
    assert a.towards(b, 0.25)["w"].tolist() == pytest.approx([0.15, 0.3])
    assert a.towards(b, 0.25)["n"].equal(torch.tensor(5))
    share = Tree({"n": torch.tensor(0.0), "w": torch.tensor([0.0, 0.5])})
    assert a.towards(b, share)["w"].tolist() == pytest.approx([0.1, -0.1])
    with pytest.raises(FedloomError, match="different names"):
        a.towards(b.only(["w"]), 0.5)
    assert not Tree().towards(Tree(), 0.5)


def test_only_and_without_are_views() -> None:
    tree = draw([(2,), (3,), (4,)], 0)
    some, rest = tree.only(["t2", "t0"]), tree.without(["t2", "t0"])
    assert list(some) == ["t0", "t2"], "in the tree's order"
    assert list(rest) == ["t1"]
    assert all(some[n] is tree[n] for n in some)
    assert rest["t1"] is tree["t1"]
    assert (rest | some).equal(tree)
    assert len(tree.only([])) == 0
    assert list(tree.only(n for n in ("t1",))) == ["t1"], "any iterable of names will do"
    assert list(tree.without(["t1", "never was there"])) == ["t0", "t2"]
    assert list(tree) == ["t0", "t1", "t2"]


def test_only_refuses_an_absent_name() -> None:
    with pytest.raises(FedloomError, match="no tensor named 'tx'"):
        draw([(2,), (3,)], 0).only(["t0", "tz", "tx"])


def test_or_takes_the_right_one() -> None:
    left = Tree({"a": torch.tensor(1.0), "b": torch.tensor(2.0)})
    right = Tree({"b": torch.tensor(20.0), "c": torch.tensor(30.0)})
    both = left | right
    assert isinstance(both, Tree)
    assert {n: t.item() for n, t in both.items()} == {"a": 1.0, "b": 20.0, "c": 30.0}
    assert both["a"] is left["a"] and both["b"] is right["b"]
    assert (left | {"a": torch.tensor(5.0)})["a"].item() == 5.0
    assert left["b"].item() == 2.0 and list(left) == ["a", "b"]


def test_equal_is_exact() -> None:
    tree = Tree({"a": torch.tensor([1.0, 2.0])})
    assert tree.equal(Tree({"a": torch.tensor([1.0, 2.0])}))
    assert not tree.equal(Tree({"a": torch.tensor([1.0, 2.0 + 2.0**-22])}))
    assert not tree.equal(Tree({"b": torch.tensor([1.0, 2.0])}))
    assert not tree.equal(Tree({"a": torch.tensor([[1.0, 2.0]])}))
    assert not tree.equal(Tree()) and not Tree().equal(tree)
    assert not tree.equal(tree | {"b": torch.ones(1)}) and not (tree | {"b": torch.ones(1)}).equal(
        tree
    )


def test_zeros_like_and_map() -> None:
    tree = Tree({"a": torch.ones(2, dtype=torch.float64), "n": torch.tensor(3)})
    zeros = tree.zeros_like()
    assert content(zeros) == content(
        Tree({"a": torch.zeros(2, dtype=torch.float64), "n": torch.tensor(0)})
    )
    assert tree.map(lambda t: t * 10)["n"].item() == 30


def test_empty_trees() -> None:
    empty = Tree()
    for operate in OPERATORS:
        assert len(operate(empty, Tree())) == 0
        assert len(operate(empty, 2.0)) == 0
    assert isinstance(-empty, Tree) and isinstance(2 * empty, Tree)
    assert empty.dot(Tree()).item() == 0.0 and empty.norm().item() == 0.0
    assert empty.dot(Tree()).shape == ()
    assert empty.equal(Tree()) and empty.clone().equal(empty) and empty.zeros_like().equal(empty)
    assert len(empty.only([])) == len(empty.without(["x"])) == 0
    assert (empty | {"a": torch.ones(1)}).equal(Tree({"a": torch.ones(1)}))
    with pytest.raises(FedloomError, match="no tensor named 'x'"):
        empty.only(["x"])


# -- the mean -------------------------------------------------------------------------------
def mean_of(*pairs: tuple[Tree, float]) -> Tree:
    mean = Mean()
    for tree, weight in pairs:
        mean.add(tree, weight)
    return mean.value(default=Tree({"nothing": torch.zeros(1)}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fedavg_toy(dtype: torch.dtype) -> None:
    one, three = (Tree({"w": torch.tensor(v, dtype=dtype)}) for v in (0.59049, 2.22853))
    for pairs in ([(one, 1), (three, 3)], [(three, 3), (one, 1)], [(three, 3e6), (one, 1e6)]):
        assert mean_of(*pairs)["w"].item() == pytest.approx(
            1.81902, abs=1e-6 if dtype == torch.float32 else 1e-12
        )


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    SHAPES.filter(bool),
    st.lists(
        st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.integers(1, 50)), min_size=1, max_size=8
    ),
    st.integers(0, 1000),
)
def test_the_mean_has_its_closed_form(
    shapes: list[tuple[int, ...]], weights: list[float], seed: int
) -> None:
    trees = [draw(shapes, seed + i, torch.float64) for i in range(len(weights))]
    mean = Mean()
    for i, (tree, weight) in enumerate(zip(trees, weights, strict=True)):
        mean.add(reordered(tree, i), weight)
    total = math.fsum(weights)
    assert mean.total == pytest.approx(total, rel=1e-12)
    if total == 0:
        return
    value = mean.value(default=Tree())
    assert value.keys() == trees[0].keys()
    for name in trees[0]:
        expected = sum(w * t[name] for w, t in zip(weights, trees, strict=True)) / total
        torch.testing.assert_close(value[name], expected, rtol=1e-11, atol=1e-11)


def test_weights_default_to_one() -> None:
    mean = Mean()
    for number in (1.0, 2.0, 6.0):
        mean.add(Tree({"w": torch.tensor(number)}))
    assert mean.value(default=Tree())["w"].item() == pytest.approx(3.0, abs=1e-6)
    assert mean.total == 3.0


@pytest.mark.parametrize("weight", [1e-30, 0.1, 1, 3, 1e30])
def test_one_tree_gives_exactly_that_tree(weight: float) -> None:
    odd = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-45, 0.1, 3.4e38])
    tree = Tree(
        {
            "w": odd,
            "d": odd.double() / 3,
            "n": torch.tensor(-7),
            "flag": torch.tensor([True, False]),
        }
    )
    assert content(mean_of((tree, weight))) == content(tree)
    assert content(
        mean_of((tree.zeros_like(), 0), (tree, weight), (tree.zeros_like(), 0))
    ) == content(tree)


def test_equal_trees_give_exactly_that_tree() -> None:
    numbers = random.Random(0)
    for seed in range(30):
        tree = draw([(5, 7), (), (0, 3)], seed, torch.float32 if seed % 2 else torch.float64)
        tree = tree | {"n": torch.tensor(seed), "h": tree["t0"].to(torch.bfloat16)}
        mean = mean_of(*((tree.clone(), numbers.uniform(1e-3, 1e3)) for _ in range(12)))
        assert content(mean) == content(tree)


def test_integers_take_the_largest() -> None:
    def tree(count: int, flags: list[bool], weight: float) -> Tree:
        return Tree(
            {
                "count": torch.tensor(count),
                "flags": torch.tensor(flags),
                "w": torch.tensor([weight]),
            }
        )

    parts = [
        (tree(5, [False, False], 1.0), 1),
        (tree(90, [True, False], 2.0), 1e-3),
        (tree(7, [False, False], 4.0), 100),
    ]
    for order in (parts, parts[::-1], parts[1:] + parts[:1]):
        value = mean_of(*order)
        assert value["count"].item() == 90 and value["count"].dtype == torch.int64
        assert value["flags"].tolist() == [True, False] and value["flags"].dtype == torch.bool
        assert value["w"].item() == pytest.approx((1 + 2e-3 + 400) / 101.001, rel=1e-6)
    assert mean_of(
        (Tree({"n": torch.tensor([-3, 2])}), 1), (Tree({"n": torch.tensor([-5, 4])}), 9)
    )["n"].tolist() == [
        -3,
        4,
    ]
    big = 2**53 + 1  # no float between holds it
    assert (
        mean_of((Tree({"n": torch.tensor(big)}), 1), (Tree({"n": torch.tensor(0)}), 1))["n"].item()
        == big
    )


def test_weight_zero_counts_for_nothing() -> None:
    tree = Tree({"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(1)})
    loud = Tree({"w": torch.tensor([math.nan, 1e30]), "n": torch.tensor(99)})
    assert content(mean_of((loud, 0), (tree, 2), (loud, 0.0), (loud, -0.0), (tree, 3))) == content(
        tree
    )
    mean = Mean()
    mean.add(loud, 0)
    default = Tree({"w": torch.ones(1)})
    assert mean.total == 0.0 and mean.value(default=default) is default


def test_nothing_gives_the_default() -> None:
    default = Tree({"w": torch.ones(1)})
    assert Mean().value(default) is default


@pytest.mark.parametrize("weight", [-1, -1e-300, -math.inf, math.nan])
def test_negative_and_nan_weights_are_refused(weight: float) -> None:
    tree, other = Tree({"w": torch.tensor([1.0])}), Tree({"w": torch.tensor([5.0])})
    mean = Mean()
    for _ in range(2):  # as the first and as a later one
        with pytest.raises(FedloomError, match="weight must not be negative or NaN"):
            mean.add(other, weight)
        mean.add(tree, 2)
    assert mean.value(default=other).equal(tree)
    assert mean.total == 4.0


def test_a_refused_tree_counts_for_nothing() -> None:
    mean = Mean()
    mean.add(Tree({"w": torch.tensor([0.0])}), 1)
    with pytest.raises(FedloomError, match="only one of them"):
        mean.add(Tree({"v": torch.tensor([1.0])}), 100)
    with pytest.raises(FedloomError, match="has shape"):
        mean.add(Tree({"w": torch.ones(2)}), 100)
    mean.add(Tree({"w": torch.tensor([4.0])}), 3)
    assert mean.total == 4.0
    assert mean.value(default=Tree())["w"].item() == 3.0


def test_the_mean_shares_no_memory_with_what_it_was_given() -> None:
    trees = [draw([(3,), (2, 2), ()], i) | {"n": torch.tensor(i)} for i in range(4)]
    before = [content(t) for t in trees]
    mean = Mean()
    mean.add(trees[0], 1)
    first = mean.value(default=Tree())
    assert not places(first) & places(trees[0])
    for tree in trees[1:]:
        mean.add(tree, 1)
    value = mean.value(default=Tree())
    assert not places(value) & set().union(*map(places, trees))
    kept = content(value)
    assert [content(t) for t in trees] == before
    for tree in trees:
        for tensor in tree.values():
            tensor.zero_()
    assert content(value) == kept


def test_the_mean_keeps_no_autograd_history() -> None:
    """Otherwise it would hold on to every tree that ever arrived."""
    mean = Mean()
    for number in (1.0, 2.0, 3.0):
        mean.add(Tree({"w": torch.tensor([number], requires_grad=True)}))
        assert not mean.value(default=Tree())["w"].requires_grad
    assert mean.value(default=Tree())["w"].item() == 2.0
