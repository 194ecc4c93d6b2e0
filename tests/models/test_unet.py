import pytest
import torch
from torch import nn
from torch.nn import functional

from fedloom.models import Task, build, options


def test_options_and_size() -> None:
    assert options("unet") == {"width": 16, "depth": 3, "norm": True}
    model = build("unet", Task((3, 96, 96), 2))
    assert 60_000 < sum(p.numel() for p in model.parameters()) < 120_000
    assert (
        isinstance(model.head, nn.Conv2d)
        and model.head.weight.shape == (2, 16, 1, 1)
        and model.width == 16
    )


@pytest.mark.parametrize(
    ("shape", "chosen"),
    [
        ((3, 96, 96), {}),
        ((1, 8, 8), {}),
        ((1, 9, 23), {}),
        ((2, 15, 8), {"norm": False, "width": 5}),
        ((3, 7, 2), {"depth": 1}),
        ((1, 33, 16), {"depth": 4, "width": 4}),
    ],
)
def test_every_pixel_has_features_and_scores(
    shape: tuple[int, int, int], chosen: dict[str, int]
) -> None:
    torch.manual_seed(0)
    model = build("unet", Task(shape, 3), **chosen)
    x = torch.randn(4, *shape)
    assert model.body(x).shape == (4, model.width, *shape[1:])
    assert model(x).shape == (4, 3, *shape[1:])
    functional.cross_entropy(model(x), torch.randint(0, 3, (4, *shape[1:]))).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().sum() > 0, key
    model.eval()
    assert torch.equal(model(x), model.head(model.body(x)))


def test_norm_and_bias() -> None:
    for norm in (True, False):
        body = build("unet", Task((1, 16, 16), 2), norm=norm).body
        assert any(isinstance(m, nn.BatchNorm2d) for m in body.modules()) is norm
        assert all((m.bias is None) is norm for m in body.modules() if isinstance(m, nn.Conv2d))


def test_padding_leaves_the_picture_in_place() -> None:
    # Padded by hand, as inside: 13 x 10 becomes 16 x 16 and the same features come out.
    torch.manual_seed(0)
    body = build("unet", Task((1, 13, 10), 2)).body.eval()
    x = torch.randn(2, 1, 13, 10)
    whole = body(functional.pad(x, (0, 6, 0, 3), mode="replicate"))
    assert torch.equal(body(x), whole[:, :, :13, :10])


def test_pixels_see_near_and_far() -> None:
    torch.manual_seed(0)
    body = build("unet", Task((1, 64, 64), 2)).body.eval()
    x = torch.randn(1, 1, 64, 64, requires_grad=True)
    body(x)[0, :, 32, 32].sum().backward()
    assert x.grad is not None
    reach = x.grad[0, 0].abs()
    assert reach[32, 32] > 0 and reach[32, 48:].sum() > 0  # more than 16 pixels away
    fine = x.grad[0, 0, 32, 31:34]
    assert len(set(fine.tolist())) == 3  # the skip joins tell neighbours apart


def test_learns_to_outline() -> None:
    torch.manual_seed(0)
    x = torch.zeros(16, 1, 20, 20)
    y = torch.zeros(16, 20, 20, dtype=torch.int64)
    for i in range(16):
        a, b = i % 4 * 3, i // 4 * 3
        y[i, a : a + 8, b : b + 8] = 1
    x[:, 0] = y + 0.7 * torch.randn(16, 20, 20)  # a pixel alone tells too little
    model = build("unet", Task((1, 20, 20), 2), width=8, depth=2)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(25):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    alone = ((x[:, 0] > 0.5) == (y == 1)).float().mean()
    model.eval()
    right = (model(x).argmax(1) == y).float().mean()
    assert alone < 0.8 and right > 0.95


@pytest.mark.parametrize(
    ("task", "chosen", "sentence"),
    [
        (Task((3, 7, 32), 2), {}, r"'unet' needs images .* of at least 8x8 pixels"),
        (Task((30,), 2), {}, r"'unet' needs images"),
        (
            Task((3, 32, 32), 2),
            {"depth": 0},
            "option 'depth' of model 'unet' must be a positive integer, not 0",
        ),
    ],
)
def test_errors(task: Task, chosen: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build("unet", task, **chosen)
