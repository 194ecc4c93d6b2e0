import time

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.errors import FedloomError
from fedloom.data.transforms import augment, crop, flip, resize, rotate, to_rgb

RANDOM = ("crop", "flip", "rotate")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pixels(
    n: int = 64,
    channels: int = 3,
    height: int = 32,
    width: int = 32,
    dtype: torch.dtype = torch.uint8,
) -> Tensor:
    # From 1: a zero can only be what came in from outside.
    return torch.randint(1, 256, (n, channels, height, width), generator=rng(9)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_crop_is_one_window_of_the_padded_image(dtype: torch.dtype) -> None:
    x = pixels(500, 3, 12, 9, dtype)
    got = crop(x, rng(), padding=2)
    assert got.shape == x.shape and got.dtype == dtype and got.is_contiguous()
    padded = F.pad(x, (2, 2, 2, 2))
    seen = set()
    for i in range(len(x)):
        fits = [
            (a, b)
            for a in range(5)
            for b in range(5)
            if torch.equal(got[i], padded[i, :, a : a + 12, b : b + 9])
        ]
        assert len(fits) == 1
        seen.add(fits[0])
    assert len(seen) == 25  # every offset occurs, and each sample has its own


def test_crop_without_padding_changes_nothing() -> None:
    x = pixels(5)
    assert torch.equal(crop(x, rng(), padding=0), x)
    with pytest.raises(FedloomError, match="padding must not be negative, got -1"):
        crop(x, rng(), padding=-1)


def test_flip_mirrors_about_half() -> None:
    x = pixels(1000, 1, 4, 6)
    got = flip(x, rng())
    mirrored = (got == x.flip(3)).flatten(1).all(1)
    same = (got == x).flatten(1).all(1)
    assert (mirrored ^ same).all()
    assert 440 < int(mirrored.sum()) < 560


def test_rotate_by_a_known_angle(monkeypatch: pytest.MonkeyPatch) -> None:
    x = pixels(3, 2, 7, 7)
    monkeypatch.setattr(
        torch, "rand", lambda n, generator: torch.ones(n)
    )  # always the largest angle
    for degrees, turns in ((90, 1), (180, 2), (-90, -1)):
        assert torch.equal(rotate(x, rng(), degrees), torch.rot90(x, turns, (2, 3)))
    # A wide image keeps its proportions: its middle square turns like a square, and zeros come in
    # at both sides.
    wide = pixels(3, 2, 9, 21)
    turned = rotate(wide, rng(), 90)
    assert torch.equal(turned[..., 6:15], torch.rot90(wide[..., 6:15], 1, (2, 3)))
    assert not turned[..., :6].any() and not turned[..., 15:].any()


def test_rotate_angles_and_borders() -> None:
    # A dot at the right end shows the angle of its image.
    x = torch.zeros(2000, 1, 41, 41)
    x[:, :, 20, 36] = 1.0
    got = rotate(x, rng(), 30)[:, 0]
    where = torch.arange(41.0) - 20
    mass = got.sum((1, 2))
    angle = torch.rad2deg(
        torch.atan2(-(got.sum(2) * where).sum(1) / mass, (got.sum(1) * where).sum(1) / mass)
    )
    assert angle.abs().max() < 31 and angle.min() < -28 and angle.max() > 28
    assert abs(float(angle.mean())) < 1.5 and abs(float(angle.std()) - 60 / 12**0.5) < 1
    full = torch.full((200, 1, 16, 16), 255, dtype=torch.uint8)
    turned = rotate(full, rng())
    assert (turned[:, :, 7:9, 7:9] == 255).all()
    assert (turned[:, :, 0, 0] == 0).float().mean() > 0.5


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_determined_by_the_generator(name: str, dtype: torch.dtype) -> None:
    x = pixels(16, dtype=dtype)
    before = x.clone()
    a = augment(x, [name], rng(1))
    assert a.dtype == dtype and a.shape == x.shape
    assert torch.equal(a, augment(x, [name], rng(1)))
    assert not torch.equal(a, augment(x, [name], rng(2)))
    assert torch.equal(x, before)  # the stored samples are not touched
    g = rng(1)
    assert not torch.equal(augment(x, [name], g), augment(x, [name], g))  # each call draws anew
    assert augment(x[:0], [name], rng()).shape == (0, 3, 32, 32)


def test_bytes_and_floats_agree() -> None:
    x = pixels(16)
    for name in RANDOM:
        floats = augment(x.to(torch.float32), [name], rng(3))
        assert (augment(x, [name], rng(3)) - floats).abs().max() <= 0.5


def test_augment_applies_in_order() -> None:
    x = pixels(32)
    g = rng(5)
    assert torch.equal(augment(x, ["flip", "crop"], rng(5)), crop(flip(x, g), g))
    assert not torch.equal(
        augment(x, ["flip", "crop"], rng(5)), augment(x, ["crop", "flip"], rng(5))
    )
    assert augment(x, [], rng()) is x


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_resize(dtype: torch.dtype) -> None:
    x = torch.full((2, 3, 10, 14), 77, dtype=dtype)
    assert torch.equal(resize(x, (5, 28)), torch.full((2, 3, 5, 28), 77, dtype=dtype))
    # Without antialiasing, these stripes would be met or missed; with it they become a quarter
    # grey, but for the edges.
    stripes = torch.zeros(1, 1, 32, 32, dtype=dtype)
    stripes[:, :, :, ::4] = 200
    small = resize(stripes, 8).to(torch.float32)
    assert small.shape == (1, 1, 8, 8)
    assert (small[..., 1:-1] - 50).abs().max() <= 1 and 30 < float(small.min()) <= float(
        small.max()
    ) < 60
    assert resize(x, (10, 14)) is x
    with pytest.raises(FedloomError, match="cannot be resized to 0 x 0 pixels"):
        resize(x, 0)


def test_resize_of_bytes_is_the_rounded_one_of_floats() -> None:
    x = pixels(4)
    assert (resize(x, 13).to(torch.float32) - resize(x.to(torch.float32), 13)).abs().max() <= 1


def test_to_rgb() -> None:
    grey, colour = pixels(4, 1), pixels(4, 3)
    assert (
        torch.equal(to_rgb(grey), torch.cat([grey, grey, grey], 1))
        and to_rgb(grey).dtype == torch.uint8
    )
    assert to_rgb(colour) is colour
    with pytest.raises(
        FedloomError, match="only images of 1 or 3 channels can become RGB, these have 4"
    ):
        to_rgb(pixels(1, 4))


def test_errors() -> None:
    with pytest.raises(
        FedloomError, match=r"unknown augmentation 'rotat'; did you mean 'rotate'\?"
    ):
        augment(pixels(1), ["crop", "rotat"], rng())
    for x, said in (
        (torch.zeros(4, 5), r"but the batch is float32 of shape \(4, 5\)\."),
        (
            torch.zeros(4, 1, 8, 8, dtype=torch.int64),
            r"but the batch is int64 of shape \(4, 1, 8, 8\)\.",
        ),
    ):
        with pytest.raises(FedloomError, match=said):
            augment(x, ["flip"], rng())
        with pytest.raises(FedloomError, match=said):
            to_rgb(x)


def test_fast() -> None:
    x, g = pixels(), rng()
    best = float("inf")
    for _ in range(30):
        start = time.perf_counter()
        augment(x, ["crop", "flip"], g)
        best = min(best, time.perf_counter() - start)
    assert best < 0.002
