"""Low-rank factors beside the layers of any network."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedloom
from fedloom.adapters import adapt, factors, merge, refuse_uncalled
from fedloom.core.errors import FedloomError
from fedloom.models import Split, Task, build, split

IMAGES, VECTORS = Task((3, 16, 16), 4), Task((12,), 4)
NETWORKS = {
    "cnn": (IMAGES, {}),
    "resnet10": (IMAGES, {"width": 4}),
    "mlp": (VECTORS, {"hidden": [8, 8]}),
}


class Attentive(nn.Module):
    """Torch's own transformer: it computes with the weights of its layers and never calls some."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


class Reading(nn.Module):
    """It never calls its first layer: it reads the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.inner.weight, self.inner.bias)


def network(name: str) -> tuple[Split, Tensor]:
    """A network in evaluation mode, and samples for it."""
    torch.manual_seed(1)
    if name == "transformer":
        return split(Attentive()).eval(), torch.randn(5, 3, 8)
    task, options = NETWORKS[name]
    return build(name, task, **options).eval(), torch.randn(5, *task.shape)


def need_peft() -> None:
    """Skip the test where peft is not installed."""
    pytest.importorskip("peft", reason="peft is not installed: pip install 'fedloom[peft]'")


def trained(model: Split, x: Tensor) -> Split:
    """The network after some steps, in evaluation mode."""
    steps = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.3)
    for _ in range(4):
        steps.zero_grad()
        F.cross_entropy(model(x), torch.tensor([0, 1, 2, 3, 0])).backward()
        steps.step()
    return model


@pytest.mark.parametrize("name", [*NETWORKS, "transformer"])
def test_it_starts_as_the_frozen_network_and_ends_as_a_plain_one(name: str) -> None:
    """With B = 0 nothing changes; trained and merged it predicts the same, to 1e-5."""
    model, x = network(name)
    before, tensors = model(x), copy.deepcopy(model.state_dict())
    adapted = adapt(copy.deepcopy(model), "lora", rank=2, targets=("all",))
    assert torch.allclose(adapted(x), before, atol=1e-6)
    assert len(factors(adapted)) >= 2
    after = trained(adapted, x)(x)
    assert (after - before).abs().max() > 1e-2, "nothing was learnt"
    merged = merge(copy.deepcopy(adapted))
    assert not factors(merged)
    assert merged.state_dict().keys() == tensors.keys()
    assert torch.allclose(merged(x), after, atol=1e-5)
    assert torch.equal(adapted(x), after), "what was merged is a copy"


@pytest.mark.parametrize("name", [*NETWORKS, "transformer"])
def test_only_factors_and_head_are_trained(name: str) -> None:
    model, x = network(name)
    adapted = trained(adapt(copy.deepcopy(model), "lora", rank=2), x)
    first, now = model.state_dict(), merge(copy.deepcopy(adapted)).state_dict()
    pairs = factors(adapted)
    learning = {n for n, p in adapted.named_parameters() if p.requires_grad}
    assert learning == {n for pair in pairs for n in (pair.a, pair.b)} | {
        "head.weight",
        "head.bias",
    }
    changed = [n for n in first if n.startswith("body.") and not torch.equal(first[n], now[n])]
    assert len(changed) == len(pairs) > 0
    assert all(n.endswith("weight") for n in changed)


def test_the_first_factors_depend_on_the_seed_only() -> None:
    model, _ = network("mlp")
    torch.manual_seed(5)
    one, two, other = (adapt(copy.deepcopy(model), "lora", seed).state_dict() for seed in (3, 3, 4))
    pair = factors(adapt(copy.deepcopy(model), "lora", 3))[0]
    assert torch.equal(one[pair.a], two[pair.a])
    assert not torch.equal(one[pair.a], other[pair.a])


def test_the_first_factors_do_not_depend_on_the_order_in_memory() -> None:
    model, _ = network("cnn")
    plain = copy.deepcopy(model).to(memory_format=torch.contiguous_format)
    turned = copy.deepcopy(model).to(memory_format=torch.channels_last)
    one, two = (adapt(copy.deepcopy(net), "lora", 3) for net in (plain, turned))
    assert one.body[0].down.weight.stride() != two.body[0].down.weight.stride()
    for pair in factors(one):
        assert torch.equal(one.state_dict()[pair.a], two.state_dict()[pair.a])


def test_the_scale_is_alpha_over_rank() -> None:
    """One layer of weight 1, A = 2, B = 3, alpha = 4, rank 1: the weight is 1 + 4 * 3 * 2."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    model = adapt(Split(layer, nn.Identity(), 1), "lora", rank=1, alpha=4.0)
    nn.init.constant_(model.body.down.weight, 2.0)
    nn.init.constant_(model.body.up.weight, 3.0)
    assert model(torch.ones(1, 1)).item() == 25
    assert merge(model).body.weight.item() == 25


def test_targets_are_the_last_parts_of_names() -> None:
    model, _ = network("cnn")
    names = [n for n, m in model.body.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    adapted = adapt(copy.deepcopy(model), "lora", targets=names[0])
    assert [pair.a for pair in factors(adapted)] == [f"body.{names[0]}.down.weight"]
    with pytest.raises(FedloomError, match="layer for adapter lora"):
        adapt(copy.deepcopy(model), "lora", targets=["queries"])


def test_attention_is_the_usual_target() -> None:
    body = nn.ModuleDict({"q_proj": nn.Linear(4, 4), "v_proj": nn.Linear(4, 4)})
    body["mlp"] = nn.Linear(4, 4)
    model = Split(body, nn.Linear(4, 2), 4)
    found = [pair.a for pair in factors(adapt(model, "lora"))]
    assert found == ["body.q_proj.down.weight", "body.v_proj.down.weight"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 0}, "'rank'"),
        ({"dropout": 1.0}, "'dropout'"),
        ({"by": "nobody"}, "nobody"),
        ({"ranks": 3}, "did you mean 'rank'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(FedloomError, match=words):
        adapt(network("mlp")[0], "lora", **options)


def test_a_body_without_layers_is_refused() -> None:
    with pytest.raises(FedloomError, match="linear layer or a convolution"):
        adapt(build("linear", VECTORS), "lora")


def test_an_adapted_network_can_be_sent_to_another_process() -> None:
    model, x = network("resnet10")
    adapted = trained(adapt(model, "lora"), x)
    again = pickle.loads(pickle.dumps(adapted))
    assert torch.equal(again(x), adapted(x))


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_of_peft_are_the_same(name: str) -> None:
    """They start from the same numbers, learn the same and are merged by the same function."""
    need_peft()
    model, x = network(name)
    ours = adapt(copy.deepcopy(model), "lora", 3, rank=2)
    theirs = adapt(copy.deepcopy(model), "lora", 3, rank=2, by="peft")
    assert [p.scale for p in factors(ours)] == [p.scale for p in factors(theirs)]
    first, same = ours.state_dict(), theirs.state_dict()
    for own, other in zip(factors(ours), factors(theirs), strict=True):
        assert torch.equal(first[own.a], same[other.a])
    assert torch.allclose(trained(ours, x)(x), trained(theirs, x)(x), atol=1e-5)
    plain = merge(theirs)
    assert plain.state_dict().keys() == model.state_dict().keys()
    assert torch.allclose(plain(x), ours(x), atol=1e-5)


def test_layers_of_peft_are_those_named_and_no_others() -> None:
    """The name of one layer here is the end of another's, which can have no factors."""
    need_peft()
    inner = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))
    model = Split(nn.Sequential(nn.Linear(4, 4), inner), nn.Linear(4, 2), 4)
    found = factors(adapt(model, "lora", by="peft"))
    assert [pair.a.partition(".lora_A")[0] for pair in found] == ["body.0", "body.1.1"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (nn.Linear(4, 4), "body is a single layer: say --set by=fedloom"),
        (nn.Sequential(nn.Conv2d(3, 4, 3, dilation=2)), "the dilated convolution '0'"),
        (nn.Sequential(nn.Conv2d(3, 4, 3, padding_mode="reflect")), "than zero"),
        (nn.Sequential(nn.BatchNorm1d(4)), "no factors: .*BatchNorm1d"),
    ],
)
def test_what_layers_of_peft_cannot_do_is_said(body: nn.Module, words: str) -> None:
    need_peft()
    model = Split(body, nn.Linear(4, 2), 4)
    target = "all"
    if isinstance(body, nn.Sequential) and isinstance(body[0], nn.BatchNorm1d):
        target = "0"
    with pytest.raises(FedloomError, match=words):
        adapt(model, "lora", targets=[target], by="peft")


@pytest.mark.parametrize("name", [*NETWORKS, "transformer"])
def test_layers_of_peft_are_refused_where_they_are_not_called(name: str) -> None:
    """Torch's transformer calls its layers in training and reads their weights in evaluation."""
    need_peft()
    model, x = network(name)
    adapted = adapt(model, "lora", rank=2, targets=["all"], by="peft")
    if name != "transformer":
        refuse_uncalled(adapted, x)
        return
    with torch.no_grad():
        for pair in factors(adapted):
            adapted.get_parameter(pair.b).fill_(0.3)
        assert torch.equal(adapted.eval()(x), model(x)), "what makes it necessary"
    words = r"in evaluation .* weight of 'encoder\.layers\.0\.linear1' itself: say --set by=fedloom"
    with pytest.raises(FedloomError, match=words):
        refuse_uncalled(adapted, x)


def test_a_weight_that_is_read_has_our_factors_but_no_dropout() -> None:
    x = torch.randn(3, 12)
    model = adapt(Split(nn.Sequential(Reading()), nn.Linear(6, 4), 6), "lora")
    before = model(x)
    nn.init.ones_(model.get_parameter(factors(model)[0].b))
    assert (model(x) - before).abs().max() > 0.1
    refuse_uncalled(model, x)
    dropping = adapt(Split(nn.Sequential(Reading()), nn.Linear(6, 4), 6), "lora", dropout=0.5)
    with pytest.raises(
        FedloomError, match=r"in training .* of '0\.inner' itself: set dropout to 0"
    ):
        refuse_uncalled(dropping, x)
    transformer, tokens = network("transformer")
    refuse_uncalled(adapt(transformer, "lora", dropout=0.5, targets=["all"]), tokens)


def test_a_run_refuses_factors_that_are_passed_by() -> None:
    model = Split(nn.Sequential(nn.Flatten(), Reading()), nn.Linear(6, 10), 6)
    model.body[1].inner = nn.Linear(3072, 6)
    given = {"data": "digits4", "adapter": "lora", "limit_train": 4, "limit_test": 2}
    with pytest.raises(FedloomError, match=r"computes with the weight of '1\.inner' itself"):
        fedloom.run("fedit", **given, model=model, dropout=0.1)
    need_peft()
    with pytest.raises(FedloomError, match="say --set by=fedloom"):
        fedloom.run("fedit", **given, model=model, by="peft")
