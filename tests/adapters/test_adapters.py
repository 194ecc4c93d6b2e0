"""Adapters as settings of a run: what is trained, what is exported, and what is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedloom
from fedloom.adapters import ADAPTERS, adapt
from fedloom.core.errors import FedloomError
from fedloom.deploy import load
from fedloom.engine.config import build
from fedloom.engine.setup import Trained
from fedloom.models import Task
from fedloom.models import build as build_model

QUICK: dict[str, Any] = {"rounds": 2, "clients": 4, "limit_train": 60, "limit_test": 20}


def test_those_there_are() -> None:
    assert ADAPTERS.names() == ("bitfit", "head", "lora", "prompt")


def learning(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_head_and_bitfit_add_nothing() -> None:
    model = build_model("cnn", Task((3, 16, 16), 4))
    names = [name for name, _ in model.named_parameters()]
    biases = {name for name in names if name.endswith("bias")} | {"head.weight"}
    assert learning(adapt(copy.deepcopy(model), "head")) == {"head.weight", "head.bias"}
    assert learning(adapt(copy.deepcopy(model), "bitfit")) == biases
    assert len(biases) > 3


def test_bitfit_needs_biases() -> None:
    model = build_model("linear", Task((12,), 4))
    with pytest.raises(FedloomError, match="has none"):
        adapt(model, "bitfit")


def test_prompts_stand_beside_a_vit(tiny_vit: Callable[..., Path]) -> None:
    model = build_model("pretrained", Task((3, 32, 32), 4), weights=f"hf:{tiny_vit()}").eval()
    x = torch.randn(2, 3, 32, 32)
    before = model(x)
    adapted = adapt(model, "prompt", tokens=3)
    assert learning(adapted) == {"body.network.prompts", "head.weight", "head.bias"}
    assert adapted.body.network.prompts.shape == (3, 16)
    adapted(x).sum().backward()
    assert adapted.body.network.prompts.grad.abs().max() > 0
    assert not torch.equal(adapted(x), before)


def test_prompts_stand_beside_a_classifier_of_transformers(tiny_vit: Callable[..., Path]) -> None:
    """The same network, read as an encoder, makes the same of the same prompts."""
    folder, x = tiny_vit(), torch.randn(2, 3, 32, 32)
    models = []
    for name, options in ((f"hf:{folder}", {}), ("pretrained", {"weights": f"hf:{folder}"})):
        model = build_model(name, Task((3, 32, 32), 4), **options).eval()
        plain = model.body(x)
        adapted: Any = adapt(model, "prompt", tokens=3)
        assert learning(adapted) == {"body.network.prompts", "head.weight", "head.bias"}
        adapted.body.network.prompts.data.normal_(generator=torch.Generator().manual_seed(0))
        assert not torch.allclose(adapted.body(x), plain, atol=1e-3)
        models.append(adapted)
    features = models[0].body(x)
    torch.testing.assert_close(features, models[1].body(x), atol=1e-5, rtol=1e-5)
    features[:, 0].sum().backward()
    assert models[0].body.network.prompts.grad.abs().max() > 0
    assert not any(module._forward_hooks for module in models[0].modules())


def test_prompts_need_a_transformer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "layer_type": "basic"}
    transformers.ResNetModel(transformers.ResNetConfig(**sizes)).save_pretrained(tmp_path)
    told = {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    with pytest.raises(FedloomError, match="whose feature is the class token; this network takes"):
        adapt(build_model(f"hf:{tmp_path}", Task((3, 32, 32), 4)), "prompt")
    with pytest.raises(FedloomError, match="takes none"):
        adapt(build_model("cnn", Task((3, 16, 16), 4)), "prompt")


def test_a_name_is_corrected_and_an_option_has_its_owner() -> None:
    with pytest.raises(FedloomError, match="did you mean 'lora'"):
        build({"adapter": "lorra"})
    with pytest.raises(FedloomError, match="the adapter lora"):
        build({}, {"alpha": 3})
    config = build({}, {"adapter": "LoRA", "rank": 2})
    assert config.adapter == "lora"
    assert config.adapting["rank"] == 2
    assert build(config.model_dump()) == config


def test_runs_without_an_adapter_keep_their_names() -> None:
    """The setting came later: a config that does not use it has the hash that it always had."""
    assert build({}).hash() == build({"adapter": "none"}).hash()
    assert build({}).hash() != build({"adapter": "head"}).hash()


def test_a_method_on_factors_brings_them() -> None:
    assert build({"method": "fedit"}).adapter == "lora"
    assert build({"method": "fedavg"}).adapter is None


def test_an_export_is_a_plain_network(tmp_path: Path) -> None:
    """It has the tensors that it would have without the adapter, and predicts as the run does."""
    run = fedloom.run("fedavg", "digits4", out=tmp_path / "run", adapter="lora", **QUICK)
    fedloom.export(run.folder, tmp_path / "export")
    exported, description = load(tmp_path / "export")
    assert "adapter" not in description
    trained = Trained.from_folder(run.folder)
    predict = trained.common()
    data = trained.setup.federation.data
    some = torch.arange(8)
    assert torch.allclose(exported(data.take(some)), predict(data.take(some)), atol=1e-5)
    plain = build_model("cnn", Task(tuple(data.x.shape[1:]), len(data.classes)))
    assert {n.removeprefix("stages.") for n in exported.state_dict()} == set(plain.state_dict())


def test_an_export_keeps_its_prompts(tmp_path: Path, tiny_vit: Callable[..., Path]) -> None:
    run = fedloom.run(
        "fedavg", "digits4", out=tmp_path / "run", adapter="prompt", tokens=2,
        model="pretrained", weights=f"hf:{tiny_vit(image_size=32)}", **QUICK,
    )  # fmt: skip
    fedloom.export(run.folder, tmp_path / "export")
    exported, description = load(tmp_path / "export")
    assert description["adapter"] == "prompt"
    trained = Trained.from_folder(run.folder)
    predict = trained.common()
    data = trained.setup.federation.data
    some = torch.arange(8)
    assert torch.allclose(exported(data.take(some)), predict(data.take(some)), atol=1e-5)


def test_a_network_of_the_users_own() -> None:
    """It is adapted as well, and the object that was given stays as it is."""
    own = build_model("mlp", Task((3, 32, 32), 10), hidden=[8])
    before = copy.deepcopy(own.state_dict())
    run = fedloom.run("fedavg", "digits4", model=own, adapter="lora", rank=2, lr=0.001, **QUICK)
    assert run.config.adapter == "lora"
    assert own.state_dict().keys() == before.keys()
    assert all(torch.equal(own.state_dict()[name], before[name]) for name in before)
    with pytest.raises(FedloomError, match="say --adapter lora"):
        fedloom.run("fedit", "digits4", model=own, **QUICK)
