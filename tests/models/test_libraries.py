"""timm and torchvision themselves, where they are installed; test_by_name.py has stand-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedloom
from fedloom import deploy
from fedloom.adapters import adapt
from fedloom.adapters.factors import factors
from fedloom.client.cutting import find
from fedloom.core.device import CPU
from fedloom.core.errors import FedloomError
from fedloom.core.roles import frozen_in
from fedloom.models import Task, build

torch.set_num_threads(1)

IMAGES = Task((3, 32, 32), 4, mean=(0.5,) * 3, std=(0.25,) * 3)
VITS = {"torchvision": "vit_b_16", "timm": "vit_tiny_patch16_224"}
LAST = {"torchvision": "encoder.layers.encoder_layer_11", "timm": "blocks.11"}


def library(name: str) -> Any:
    """The package, or a reason why the test is skipped."""
    return pytest.importorskip(
        f"{name}.models", reason=f"{name} is not installed, or is for another torch",
        exc_type=(ImportError, RuntimeError),  # type: ignore[arg-type]
    )  # fmt: skip


def network(name: str, kind: str, **options: Any) -> Any:
    """A network with random weights; a ViT of torchvision takes images of one size only."""
    library(name)
    size = None if (name, kind) == ("torchvision", "vit_b_16") else 64
    return build(f"{name}:{kind}", IMAGES, pretrained=False, size=size, **options)


@pytest.mark.parametrize("kind", ["resnet18", "mobilenet_v3_small", "googlenet"])
def test_torchvision_finds_body_and_head(kind: str, tmp_path: Path) -> None:
    """Under the library's own head, the body gives the library's own scores."""
    models = library("torchvision")
    torch.manual_seed(0)
    own = models.get_model(kind, weights=None, init_weights=False) if kind == "googlenet" else (
        models.get_model(kind, weights=None)
    )  # fmt: skip
    torch.save(own.state_dict(), tmp_path / "own.pth")
    model: Any = build(f"torchvision:{kind}", IMAGES, weights=str(tmp_path / "own.pth"), size=64)
    model.eval(), own.eval()
    heads = [m for m in own.modules() if isinstance(m, nn.Linear)]
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        seen = model.body.preprocess.from_floats(x)
        expected = own(seen)
        features = model.body((x - 0.5) / 0.25)
        scores = [head(features) for head in heads if head.in_features == model.width]
    assert any(torch.allclose(one, expected, atol=1e-5) for one in scores if one.shape[1] == 1000)
    usual = models.get_model_weights(kind).DEFAULT.transforms()
    assert tuple(usual.mean) == model.body.preprocess.mean
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 4)


def test_torchvision_sees_images_as_its_transforms_make_them() -> None:
    models = library("torchvision")
    model: Any = build("torchvision:resnet18", IMAGES, pretrained=False)
    x = torch.rand(2, 3, 32, 32)
    wanted: Tensor = models.get_model_weights("resnet18").DEFAULT.transforms()(x)
    seen = model.body.preprocess.from_floats(x)
    assert seen.shape == wanted.shape == (2, 3, 224, 224)
    assert (seen - wanted).abs().mean() < 0.02


def test_a_head_of_convolutions_is_refused() -> None:
    library("torchvision")
    with pytest.raises(FedloomError, match="no linear head"):
        build("torchvision:squeezenet1_1", IMAGES, pretrained=False)


@pytest.mark.parametrize("kind", ["resnet18", "vit_tiny_patch16_224", "mobilenetv3_small_100"])
def test_timm_finds_body_and_head(kind: str, tmp_path: Path) -> None:
    timm = library("timm")
    torch.manual_seed(0)
    sized = {"img_size": 64} if kind.startswith("vit") else {}
    own = timm.create_model(kind, pretrained=False, **sized).eval()
    model = network("timm", kind).eval()
    model.body.network.load_state_dict(own.state_dict(), strict=False)
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        seen = model.body.preprocess.from_floats(x)
        assert seen.shape == (2, 3, 64, 64)
        expected = own(seen)
        torch.testing.assert_close(
            own.get_classifier()(model.body((x - 0.5) / 0.25)), expected, atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("timm", "resnet18"),
        ("timm", "vit"),
        ("torchvision", "resnet18"),
        pytest.param("torchvision", "vit", marks=pytest.mark.slow),
    ],
)
def test_where_the_frozen_part_ends(name: str, kind: str) -> None:
    model = network(name, VITS[name] if kind == "vit" else kind)
    end = LAST[name] if kind == "vit" else "layer4.1"
    for tensor, parameter in model.body.named_parameters():
        parameter.requires_grad_(tensor.startswith(f"network.{end}."))
    cut = find(model, set(frozen_in(model)), torch.randn(2, 3, 32, 32), CPU)
    assert cut is not None and cut.at == f"network.{end}"


@pytest.mark.parametrize("name", ["timm", "torchvision"])
def test_prompts_stand_beside_a_vit(name: str) -> None:
    model = adapt(network(name, VITS[name]), "prompt", tokens=3)
    learning = {n for n, p in model.named_parameters() if p.requires_grad}
    assert learning == {"body.network.prompts", "head.weight", "head.bias"}
    x = torch.randn(2, 3, 32, 32)
    sample: Any = model.eval().body(x)
    with torch.no_grad():
        assert not torch.allclose(sample, model.body.network.network(
            model.body.preprocess.from_floats(x * model.body.std + model.body.mean)
        ), atol=1e-6)  # fmt: skip
    sample[:, 0].sum().backward()
    prompts: Any = model.body.network.prompts
    assert prompts.grad.abs().max() > 0
    whole: Any = network("timm", "vit_tiny_patch16_224") if name == "timm" else None
    if whole is not None:
        whole.body.network.global_pool = "avg"
        with pytest.raises(FedloomError, match="whose feature is the class token"):
            adapt(whole, "prompt")


def test_factors_stand_beside_a_vit_of_timm() -> None:
    model = network("timm", "vit_tiny_patch16_224").eval()
    x = torch.randn(2, 3, 32, 32)
    before = model(x)
    adapted = adapt(model, "lora", rank=4)
    assert len(factors(adapted)) == 12
    torch.testing.assert_close(adapted(x), before, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["timm", "torchvision"])
def test_a_run_and_its_export(name: str, tmp_path: Path) -> None:
    library(name)
    run = fedloom.run(
        "fedavg", "digits4", model=f"{name}:resnet18", pretrained=False, frozen=True, rounds=2,
        clients=4, limit_train=4, limit_test=4, out=tmp_path / "run", **{"network.size": 32},
    )  # fmt: skip
    assert run.metrics[-1]["floats"]["up"] == 512 * 10 + 10
    served = deploy.trained(tmp_path / "run")
    module, _ = deploy.load(deploy.export(served, tmp_path / "exported"))
    rows = torch.arange(12)
    with torch.no_grad():
        told = module(served.raw.take(rows))
    expected = served.predict(served.worker.samples(rows))
    torch.testing.assert_close(told, expected, atol=1e-5, rtol=1e-5)
