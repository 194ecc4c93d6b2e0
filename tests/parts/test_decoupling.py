"""The modules of F2DC: identities, probabilities of the mask, sizes, and places in a network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedloom.core.errors import FedloomError
from fedloom.core.local import Seen
from fedloom.models import Split, Task, build
from fedloom.parts.decoupling import (
    Correction,
    concrete_mask,
    corrections,
    losses,
    most_confident_wrong,
    narrowing,
    with_corrections,
)

OPTIONS = {
    "hidden": 8,
    "depth": 2,
    "sigma": 0.1,
    "noise": "gumbel",
    "random": False,
    "use": "whole",
}


def correction(**changes: object) -> Correction:
    torch.manual_seed(0)
    return Correction(6, 3, **{"maps": True, **OPTIONS, **changes})


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_sizes_are_the_papers() -> None:
    assert count(narrowing(512, 64, 2, maps=True)) == 589_952
    assert count(narrowing(512, 50, 3, maps=True)) == 483_500
    model = build("resnet10", Task((3, 32, 32), 7))
    assert count(model) == 4_901_703
    whole = with_corrections(model, (), 7, **(OPTIONS | {"hidden": 50, "depth": 3}))
    (point,) = corrections(whole)
    assert count(point.head) == 3_591
    assert count(whole) - 4_901_703 == 970_591


def test_parts_add_up() -> None:
    point, f = correction(), torch.rand(5, 6, 4, 4)
    torch.manual_seed(1)
    p = point.parts(f)
    torch.manual_seed(1)
    mask = point.mask(f)
    assert torch.allclose(p["robust"] + p["related"], f, atol=1e-7)
    assert torch.allclose(p["robust"], mask * f, atol=1e-6)
    assert torch.allclose(p["related"], (1 - mask) * f, atol=1e-7)
    assert torch.allclose(p["whole"], p["robust"] + p["corrected"], atol=1e-6)


def test_whole_is_the_feature_and_a_masked_correction() -> None:
    point, f = correction().eval(), torch.rand(5, 6, 4, 4)
    rest = 1 - point.mask(f)
    assert torch.allclose(point(f), f + rest * point.corrector(rest * f), atol=1e-7)


def test_without_correction_nothing_changes() -> None:
    point, f = correction(), torch.rand(5, 6, 4, 4)
    nn.init.zeros_(point.corrector[-1].weight)
    assert torch.equal(point(f), f), "in training, with a random mask"
    assert torch.equal(point.eval()(f), f)


@pytest.mark.parametrize("use", ["whole", "robust", "related", "corrected", "plain"])
def test_use_concerns_evaluation_only(use: str) -> None:
    usual, point, f = correction(), correction(use=use), torch.rand(5, 6, 4, 4)
    torch.manual_seed(2)
    trained = point(f)
    torch.manual_seed(2)
    assert torch.equal(trained, usual(f))
    assert torch.equal(point.eval()(f), point.parts(f)[use])


def test_gumbel_noise_keeps_the_probability() -> None:
    torch.manual_seed(0)
    scores = torch.full((200_000,), 0.7).logit()
    assert (concrete_mask(scores, 0.1, "gumbel") > 0.5).float().mean() == pytest.approx(
        0.7, abs=0.004
    )
    assert (concrete_mask(scores, 0.1, "logistic") > 0.5).float().mean() == pytest.approx(
        0.636, abs=0.004
    )


def test_one_logistic_variable_is_the_difference_of_two_gumbel_ones() -> None:
    """The printed softmax over two noisy logs, beside ours: the same quantiles."""
    torch.manual_seed(0)
    s, n, sigma = torch.tensor(0.3), 200_000, 0.5
    a, b = (-(-torch.rand(n).log()).log() for _ in range(2))
    printed = torch.softmax(torch.stack([(s.log() + a) / sigma, ((1 - s).log() + b) / sigma]), 0)[0]
    ours = concrete_mask(s.logit().expand(n), sigma, "gumbel")
    at = torch.linspace(0.05, 0.95, 19)
    assert torch.allclose(printed.quantile(at), ours.quantile(at), atol=0.01)


def test_the_mask_of_evaluation_is_sharpened() -> None:
    mask = concrete_mask(torch.tensor([0.9, 0.5, 0.1], dtype=torch.float64).logit(), 0.1, None)
    assert 1 - mask[0].item() == pytest.approx(2.868e-10, rel=1e-3)
    assert mask[1].item() == pytest.approx(0.5)
    assert mask[2].item() == pytest.approx(2.868e-10, rel=1e-3)


def test_evaluation_is_not_random_unless_told() -> None:
    f = torch.rand(2, 6, 4, 4)
    fixed, drawn = correction().eval(), correction(random=True).eval()
    assert torch.equal(fixed(f), fixed(f))
    assert not torch.equal(drawn(f), drawn(f))


def test_losses_by_hand() -> None:
    """For equal halves the cosine is 1, so its term is 1 / 0.06.

    A head of zeros gives ln 3 for each cross-entropy.
    """
    point, f = correction(), torch.rand(4, 6, 2, 2)
    nn.init.zeros_(point.head.weight)
    nn.init.zeros_(point.head.bias)
    y, wrong = torch.tensor([0, 1, 2, 0]), torch.tensor([1, 0, 0, 2])
    decouple, correct = losses(point, Seen(f, f), f / 2, y, wrong, 0.06)
    assert decouple.item() == pytest.approx(1 / 0.06 + 2 * 1.0986123, rel=1e-5)
    assert correct.item() == pytest.approx(1.0986123, rel=1e-5)


def test_losses_are_the_printed_ones() -> None:
    """From pooled differences, and from the four maps themselves."""
    point, f = correction(random=True).eval(), torch.rand(4, 6, 3, 3)
    y, wrong = torch.tensor([0, 1, 2, 0]), torch.tensor([1, 0, 0, 2])
    p = point.parts(f)
    ours = losses(point, Seen(f, p["whole"]), p["related"], y, wrong, 0.06)
    plus, minus, star = (p[n].mean((2, 3)) for n in ("robust", "related", "corrected"))
    ce = nn.functional.cross_entropy
    apart = nn.functional.cosine_similarity(plus, minus).mean() / 0.06
    assert torch.allclose(
        ours[0], apart + ce(point.head(plus), y) + ce(point.head(minus), wrong), rtol=1e-5
    )
    assert torch.allclose(ours[1], ce(point.head(star), y), rtol=1e-5)


def test_the_wrong_label_is_the_most_confident_one() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [1.0, 2.0, 2.5]])
    assert most_confident_wrong(logits, torch.tensor([0, 1, 2])).tolist() == [1, 0, 1]
    torch.manual_seed(0)
    y = torch.randint(5, (500,))
    assert (most_confident_wrong(torch.randn(500, 5), y) != y).all()


def plan(model: nn.Module, *points: str) -> list[str]:
    made = with_corrections(model, points, 4, **OPTIONS)
    return [n for n, m in made.named_modules() if isinstance(m, Correction)]


def test_behind_the_last_map() -> None:
    assert plan(build("resnet10", Task((3, 16, 16), 4), width=4)) == ["body.features.correction"]
    assert plan(build("cnn", Task((1, 16, 16), 4), width=4, features=8)) == ["body.5.1"], (
        "the second pooling"
    )
    assert plan(build("mlp", Task((12,), 4), hidden=[6, 5])) == ["body.correction"], (
        "no map: behind the features"
    )
    body = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(), nn.Flatten()
    )
    assert plan(Split(body, nn.Linear(24, 4), 24)) == ["body.3.1"], (
        "what follows the layer, up to the flattening"
    )


@pytest.mark.parametrize("name", ["resnet10", "cnn", "mlp"])
def test_models_still_give_features_and_learn(name: str) -> None:
    options = {
        "mlp": {"hidden": [6]},
        "cnn": {"width": 4, "features": 8},
        "resnet10": {"width": 4},
    }[name]
    model = build(name, Task((1, 16, 16), 4), **options)
    before = model(torch.rand(3, 1, 16, 16)).shape
    made = with_corrections(model, (), 4, **OPTIONS)
    out = made(torch.rand(3, 1, 16, 16))
    assert out.shape == before
    out.sum().backward()
    (point,) = corrections(made)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in point.corrector.parameters())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in point.decoupler.parameters())


def test_several_points() -> None:
    model = build("resnet10", Task((3, 16, 16), 4), width=4)
    found = plan(model, "features.stage2", "features.stage4")
    assert found == ["body.features.stage2.correction", "body.features.stage4.correction"]
    widths = [c.head.in_features for c in corrections(model)]
    assert widths == [8, 32]


def test_a_point_that_is_not_there_is_named() -> None:
    model = build("resnet10", Task((3, 16, 16), 4), width=4)
    with pytest.raises(FedloomError, match=r"'features.stage9'; did you mean 'features.stage"):
        with_corrections(model, ("features.stage9",), 4, **OPTIONS)


def test_a_body_whose_width_cannot_be_told() -> None:
    with pytest.raises(FedloomError, match="cannot tell how many channels"):
        with_corrections(Split(nn.Identity(), nn.Identity(), 3), (), 4, **OPTIONS)
