import copy

import pytest
import torch
from torch import nn

from fedloom.core.errors import FedloomError
from fedloom.core.roles import Roles, at_rest, frozen_in, twin
from fedloom.models import Split, Task, build

torch.set_num_threads(1)

BATCH_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


class Net(nn.Module):
    """Small, with a buffer of its own and two kinds of normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1))
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4, bias=False))
        self.head = nn.Linear(4, 2)


def resnet18() -> Split:
    return build("resnet18", Task((3, 32, 32), 10), width=4, stem="small")


def test_everything_is_shared_by_default() -> None:
    model = Net()
    roles = Roles(model)
    assert list(roles.of) == list(model.state_dict())
    assert set(roles.of.values()) == {"shared"}
    assert roles.names("shared") == list(model.state_dict())
    assert roles.names("private") == roles.names("frozen") == []
    assert {"scale", "norm.running_mean", "norm.num_batches_tracked"} <= set(
        roles.names("shared")
    ), "buffers too"


def test_private_by_module() -> None:
    model = Net()
    roles = Roles(model, private=[model.head])
    assert roles.names("private") == ["head.weight", "head.bias"]
    assert roles.names("shared") == [n for n in model.state_dict() if not n.startswith("head.")]
    assert Roles(model, private=iter([model.head])).of == roles.of, "any iterable will do"


def test_a_module_claims_all_that_is_inside_it() -> None:
    model = Net()
    roles = Roles(model, private=[model.inner], frozen=[model.first])
    inside = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight"]
    assert roles.names("private") == [f"inner.{n}" for n in inside]
    assert roles.names("frozen") == ["first.weight", "first.bias"]
    assert Roles(model, private=[model]).names("private") == list(model.state_dict())


def test_private_by_type() -> None:
    model = Net()
    roles = Roles(model, private=[nn.Linear])
    assert roles.names("private") == [
        "first.weight",
        "first.bias",
        "inner.0.weight",
        "inner.0.bias",
        "inner.2.weight",
        "head.weight",
        "head.bias",
    ]
    assert Roles(model, private=[nn.BatchNorm1d]).names("private") == [
        f"norm.{n}" for n in BATCH_NORM
    ]


def test_a_type_includes_its_subtypes_and_may_be_absent() -> None:
    model = Net()
    parent = nn.modules.batchnorm._BatchNorm
    assert Roles(model, private=[parent]).names("private") == [f"norm.{n}" for n in BATCH_NORM]
    assert Roles(model, private=[nn.BatchNorm3d]).names("private") == []


def test_frozen_by_type_and_by_module() -> None:
    model = Net()
    roles = Roles(model, private=[model.norm], frozen=[nn.LayerNorm, model.head])
    assert roles.names("frozen") == ["inner.1.weight", "inner.1.bias", "head.weight", "head.bias"]
    assert roles.names("private") == [f"norm.{n}" for n in BATCH_NORM]
    assert len(roles.names("shared")) == len(model.state_dict()) - 4 - 5


def test_all_batch_norms_of_a_resnet18() -> None:
    model = resnet18()
    roles = Roles(model, private=[nn.BatchNorm2d])
    blocks = [f"body.features.stage{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)]
    layers = ["body.features.bn"]
    layers += [f"{block}.{bn}" for block in blocks for bn in ("bn1", "bn2")]
    layers += [f"body.features.stage{stage}.0.shortcut.1" for stage in (2, 3, 4)]
    assert len(layers) == len(set(layers)) == 20
    assert set(roles.names("private")) == {f"{layer}.{n}" for layer in layers for n in BATCH_NORM}
    assert len(roles.names("private")) == 100
    affine = [n for n in roles.names("private") if n in dict(model.named_parameters())]
    buffers = [n for n in roles.names("private") if n in dict(model.named_buffers())]
    assert (len(affine), len(buffers)) == (40, 60)
    shared = roles.names("shared")
    assert len(shared) == 22, "20 convolutions, the head's weight and bias"
    assert (
        sum(
            n.endswith(("conv.weight", "conv1.weight", "conv2.weight", "shortcut.0.weight"))
            for n in shared
        )
        == 20
    )
    assert shared[-2:] == ["head.weight", "head.bias"]
    assert not set(shared) & set(dict(model.named_buffers()))
    assert roles.names("frozen") == []


def test_names_keep_the_models_order() -> None:
    model = resnet18()
    order = list(model.state_dict())
    claims = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)][::-1]
    for roles in (
        Roles(model, private=claims, frozen=[model.head]),
        Roles(model, frozen=[nn.Linear], private=claims),
    ):
        for role in ("shared", "private", "frozen"):
            names = roles.names(role)  # type: ignore[arg-type]
            assert names == sorted(names, key=order.index)
        assert sorted(roles.of) == sorted(order)
        assert [len(roles.names(r)) for r in ("shared", "private", "frozen")] == [20, 100, 2]  # type: ignore[arg-type]


def test_a_name_decides_nothing() -> None:
    class Trap(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.Linear(2, 2)
            self.bn1 = nn.Conv2d(1, 1, 1)
            self.BatchNorm2d = nn.LayerNorm(2)
            self.subnet = nn.ModuleDict({"bnorm": nn.GroupNorm(1, 2), "plain": nn.BatchNorm2d(2)})
            self.head = nn.ModuleDict({"head": nn.Linear(2, 2)})
            self.header = nn.Linear(2, 2)

    model = Trap()
    assert Roles(model, private=[nn.BatchNorm2d]).names("private") == [
        f"subnet.plain.{n}" for n in BATCH_NORM
    ]
    assert Roles(model, private=[model.head]).names("private") == [
        "head.head.weight",
        "head.head.bias",
    ]


def test_both_private_and_frozen_is_an_error_that_names_the_tensor() -> None:
    model = Net()
    with pytest.raises(FedloomError, match=r"'head\.weight' cannot be both private and frozen"):
        Roles(model, private=[model.head], frozen=[model.head])
    with pytest.raises(FedloomError, match=r"'inner\.2\.weight' cannot be both"):
        Roles(model, private=[model.inner[2]], frozen=[model.inner])
    with pytest.raises(FedloomError, match=r"'norm\.weight' cannot be both"):
        Roles(model, frozen=[model.norm], private=[nn.BatchNorm1d])


def test_one_role_may_be_given_twice() -> None:
    model = Net()
    twice = Roles(
        model, private=[model.inner, model.inner[0], nn.LayerNorm], frozen=[model.head, model.head]
    )
    assert twice.of == Roles(model, private=[model.inner], frozen=[model.head]).of


@pytest.mark.parametrize("role", ["private", "frozen"])
def test_a_module_of_another_model_is_an_error(role: str) -> None:
    model = Net()
    for stranger in (nn.Linear(4, 2), Net().head, copy.deepcopy(model.head)):
        with pytest.raises(
            FedloomError, match="a Linear that is given a role is not part of the model"
        ):
            Roles(model, **{role: [model.norm, stranger]})  # type: ignore[arg-type]


def test_a_module_with_two_names_is_private_under_both() -> None:
    """What is private must not leave the client under its other name."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
            self.b = nn.Sequential(nn.Linear(2, 2), self.a[1])

    model = Twice()
    expected = [f"{side}.1.{n}" for side in ("a", "b") for n in BATCH_NORM]
    assert Roles(model, private=[nn.BatchNorm1d]).names("private") == expected
    assert Roles(model, private=[model.a[1]]).names("private") == expected


# -- what the owner has frozen --------------------------------------------------------------------


def half_frozen() -> Net:
    """A network with a frozen layer, a frozen BatchNorm, and a frozen weight beside its bias."""
    model = Net()
    model.first.requires_grad_(False)
    model.norm.requires_grad_(False)
    model.head.weight.requires_grad_(False)
    return model


def test_what_the_owner_froze_is_frozen_whatever_a_method_says() -> None:
    model = half_frozen()
    expected = ["first.weight", "first.bias", *(f"norm.{n}" for n in BATCH_NORM), "head.weight"]
    assert frozen_in(model) == expected, "a BatchNorm's statistics too, but no buffer beside it"
    for private in ([], [model], [model.norm, model.head], [nn.BatchNorm1d]):
        assert Roles(model, private=private).names("frozen") == expected
    assert Roles(model, private=[model.head]).names("private") == ["head.bias"]
    assert Roles(model).also(model, private=[model]).names("frozen") == expected
    assert frozen_in(Net()) == []


def test_a_parameter_that_comes_twice_is_frozen_under_both_names() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2), "c": nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    model["a"].requires_grad_(False)
    assert frozen_in(model) == ["a.weight", "a.bias", "b.weight"]


def test_modules_at_rest_are_the_largest_that_are_frozen() -> None:
    model = half_frozen()
    assert at_rest(model, set(frozen_in(model))) == [model.first, model.norm]
    assert at_rest(model, []) == []
    model.inner.requires_grad_(False)
    assert at_rest(model, set(frozen_in(model))) == [model.first, model.norm, model.inner]
    model.requires_grad_(False)
    assert at_rest(model, set(frozen_in(model))) == [model]


def test_a_twin_shares_what_is_frozen_and_nothing_else() -> None:
    model = half_frozen()
    other = twin(model)
    assert [p.requires_grad for p in other.parameters()] == [
        p.requires_grad for p in model.parameters()
    ]
    theirs = other.state_dict()
    shared = [n for n, t in model.state_dict().items() if t.data_ptr() == theirs[n].data_ptr()]
    assert shared == frozen_in(model)
    other.requires_grad_(True)
    assert not model.first.weight.requires_grad, "the parameter is another one"
    assert twin(model, ["inner.0.weight"]).state_dict()["inner.0.weight"].data_ptr() == (
        model.inner[0].weight.data_ptr()
    )
