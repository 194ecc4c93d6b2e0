"""Prompts before a frozen ViT: counts, what is trained and sent, images and cached rows alike."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedloom.core.errors import FedloomError
from fedloom.data.views import WithPixels
from fedloom.models import Split, Task, build
from fedloom.models.vpt import held
from fedloom.parts.customising import Customised, customised

VIT = Callable[..., Path]


def model(
    folder: Path, shape: tuple[int, ...] = (3, 32, 32), classes: int = 4, **options: object
) -> Split:
    torch.manual_seed(0)
    return build("vpt", Task(shape, classes), vit=f"hf:{folder}", **options).eval()


def images(n: int = 5, channels: int = 3) -> Tensor:
    return torch.randint(
        0, 256, (n, channels, 24, 24), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )


def as_floats(x: Tensor) -> Tensor:
    return x.float() / 127.5 - 1


def test_trainable_parameters_are_the_papers(tiny_vit: VIT) -> None:
    """ViT-B's width and sequence.

    One thin layer instead of twelve, for the frozen part is not counted.
    """
    folder = tiny_vit(
        hidden_size=768, num_hidden_layers=1, intermediate_size=8, image_size=224, patch_size=16
    )
    made = model(folder, (3, 224, 224), classes=10)
    assert {n: tuple(t.shape) for n, t in made.state_dict().items()} == {
        "body.prompts": (4, 768), "head.weight": (10, 768), "head.bias": (10,)
    }  # fmt: skip
    assert sum(p.numel() for p in made.parameters()) == 3072 + 7690
    assert sum(p.numel() for p in customised(made, False).parameters()) == 4_733_194
    lengths: list[int] = []
    vit = held(f"hf:{folder}").vit
    handle = vit.model.layernorm.register_forward_hook(
        lambda _m, i, _o: lengths.append(i[0].shape[1])
    )
    x = torch.zeros(2, 3, 224, 224)
    made(x)  # the first pass and the prompted one
    handle.remove()
    assert lengths == [197, 197 + 4]
    assert vit.tokens(x, made.body.body.prompts).extra.shape == (2, 4, 768)


def test_prompts_start_small(tiny_vit: VIT) -> None:
    made = model(tiny_vit(), prompts=500)
    assert made.body.prompts.std().item() == pytest.approx(0.02, rel=0.05)
    assert made.body.prompts.mean().abs().item() < 1e-3


def test_nothing_of_the_frozen_network_is_in_the_model(tiny_vit: VIT) -> None:
    made = model(tiny_vit())
    vit = made.body.frozen.vit
    before = {n: t.clone() for n, t in vit.state_dict().items()}
    made.train()
    assert not vit.training
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.1)
    start = made.body.prompts.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        made(as_floats(images())).logsumexp(1).sum().backward()
        optimizer.step()
    assert not torch.equal(made.body.prompts, start), "prompts are trained"
    assert all(torch.equal(t, before[n]) for n, t in vit.state_dict().items())
    assert copy.deepcopy(made).body.frozen is made.body.frozen, "copies share it"
    sent = pickle.dumps(made)
    assert len(sent) < 10_000, "other processes load it by name"
    again = pickle.loads(sent).eval()
    assert torch.equal(again(as_floats(images())), made.eval()(as_floats(images())))


def test_gc_net_that_says_nothing_is_plain_prompt_tuning(tiny_vit: VIT) -> None:
    made, x = model(tiny_vit()), as_floats(images())
    plain = made(x)
    more = customised(copy.deepcopy(made), False).eval()
    assert not torch.allclose(more(x), plain)
    more.body.net[2].weight.data.zero_()
    more.body.net[2].bias.data.zero_()
    assert torch.equal(more(x), plain)


def test_each_image_moves_its_own_prompts(tiny_vit: VIT) -> None:
    made = customised(model(tiny_vit(), dropout=0.0), False)
    x = as_floats(images())
    whole, alone = made(x), torch.cat([made(row[None]) for row in x])
    assert torch.allclose(whole, alone, atol=1e-5)


def test_the_authors_code_deals_prompts_out(tiny_vit: VIT) -> None:
    """Prompt j of sample b is moved by h of sample (4 b + j) mod B, in training only."""
    made = customised(model(tiny_vit(), dropout=0.0), mixed=True)
    x = as_floats(images())
    body: Customised = made.body
    h = body.prompt(x)
    wanted = torch.stack([torch.stack([h[(4 * b + j) % 5] for j in range(4)]) for b in range(5)])
    assert torch.allclose(body.train()(x), body.body(x, wanted), atol=1e-6)
    assert torch.allclose(body.eval()(x), body.body(x, h[:, None]), atol=1e-6)


def test_rows_with_features_are_read_not_computed(tiny_vit: VIT) -> None:
    folder = tiny_vit()
    name, stored = f"hf:{folder}", images()
    frozen = held(name)
    first = frozen.vit(frozen.preprocess(stored))
    rows = WithPixels(stored, first, frozen.preprocess)
    task = Task(tuple(rows.shape[1:]), 4, encoder=name)
    torch.manual_seed(0)
    made = build("vpt", task).eval()
    x = rows[torch.arange(5)]
    assert torch.equal(made.body.first(x), first)
    close = torch.allclose(made(x), model(folder, (3, 24, 24))(as_floats(stored)), atol=0.01)
    assert close, "an image scaled as bytes and one scaled as numbers differ by rounding"
    assert torch.equal(made.body.first(x + 0), first) and x.shape == (5, 3 * 32 * 32 + 16)


def test_grey_images_and_other_normalisations(tiny_vit: VIT) -> None:
    folder, grey = tiny_vit(), images(channels=1)
    made = model(folder, (1, 24, 24))
    coloured = made(as_floats(grey.expand(-1, 3, -1, -1)))
    assert torch.allclose(made(as_floats(grey)), coloured)
    torch.manual_seed(0)
    other = build("vpt", Task((1, 24, 24), 4, mean=(0.1,), std=(0.3,)), vit=f"hf:{folder}").eval()
    assert torch.allclose(other((grey.float() / 255 - 0.1) / 0.3), coloured, atol=1e-5)


def test_second_derivatives_in_the_image(tiny_vit: VIT) -> None:
    """FedMix asks for them; the fast attention has none."""
    made, x = model(tiny_vit()), as_floats(images()).requires_grad_()
    (slope,) = torch.autograd.grad(made(x).logsumexp(1).sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert made.body.prompts.grad.abs().sum() > 0


def test_dropout_acts_in_training_only(tiny_vit: VIT) -> None:
    made, x = model(tiny_vit(), dropout=0.5), as_floats(images())
    assert torch.equal(made.body(x), made.body(x))
    assert (made.train().body(x) == 0).float().mean() == pytest.approx(0.5, abs=0.2)


def test_what_does_not_fit_is_said(tiny_vit: VIT) -> None:
    name = f"hf:{tiny_vit()}"
    with pytest.raises(FedloomError, match="rows of pixels and features"):
        build("vpt", Task((192,), 4), vit=name)
    with pytest.raises(FedloomError, match="cannot use vit-mini with them"):
        build("vpt", Task((3 * 32 * 32 + 16,), 4, encoder=name), vit="vit-mini")
    with pytest.raises(FedloomError, match="prompts"):
        build("vpt", Task((3, 8, 8), 4), vit=name, prompts=0)
    with pytest.raises(FedloomError, match="dropout"):
        build("vpt", Task((3, 8, 8), 4), vit=name, dropout=1.0)
    with pytest.raises(FedloomError, match="unknown encoder"):
        build("vpt", Task((3, 8, 8), 4), vit="vit-mine")
