import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedloom.core.errors import FedloomError
from fedloom.data.federation import Dataset
from fedloom.data.stress import image_noise, label_noise, nonsense


def made(n: int = 4000, classes: int = 5, x: Tensor | None = None) -> Dataset:
    return Dataset(
        name="made",
        x=torch.full((n, 1, 4, 4), 128, dtype=torch.uint8) if x is None else x,
        y=torch.arange(n) % classes,
        domain=torch.zeros(n, dtype=torch.int64),
        test=torch.arange(n) % 4 == 3,
        classes=tuple(f"class {c}" for c in range(classes)),
        domains=("one",),
    )


@pytest.mark.parametrize(
    ("kind", "form"),
    [("digits", r"[0-9]{3,5}"), ("alphanumeric", r"(?=.*[0-9])(?=.*[a-z])[0-9a-z]{5}")],
)
def test_nonsense(kind: str, form: str) -> None:
    data = made(classes=1000)
    new = nonsense(data, kind, 3)
    assert len(set(new.classes)) == 1000 and all(re.fullmatch(form, c) for c in new.classes)
    assert {len(c) for c in new.classes} == ({3, 4, 5} if kind == "digits" else {5})
    assert replace(new, classes=data.classes) == data  # nothing else changed
    assert nonsense(data, kind, 3).classes == new.classes != nonsense(data, kind, 4).classes
    again = nonsense(new, kind, 3)
    assert not set(again.classes) & set(new.classes)  # never a name that was there


def test_label_noise_share_and_spread() -> None:
    data = made(40_000)
    new = label_noise(data, 0.3, 1)
    changed = new.y != data.y
    assert not changed[data.test].any()
    assert int(changed.sum()) == 9000  # 0.3 of 30000, all of them really different
    assert new.y.dtype == data.y.dtype and int(new.y.min()) >= 0 and int(new.y.max()) < 5
    steps = torch.bincount((new.y - data.y)[changed] % 5, minlength=5)
    assert steps[0] == 0 and (steps[1:] - 2250).abs().max() < 200  # every other class alike
    from_class = torch.bincount(data.y[changed], minlength=5)
    assert (from_class - 1800).abs().max() < 200
    assert torch.equal(data.y, torch.arange(40_000) % 5)  # the original is left alone
    assert new.x is data.x


def test_label_noise_seed_and_ends() -> None:
    data = made()
    assert torch.equal(label_noise(data, 0, 1).y, data.y)
    assert (label_noise(data, 1, 1).y != data.y).equal(~data.test)
    half, more = label_noise(data, 0.5, 1).y, label_noise(data, 0.8, 1).y
    assert torch.equal(half, label_noise(data, 0.5, 1).y)
    assert not torch.equal(half, label_noise(data, 0.5, 2).y)
    wrong = half != data.y
    assert torch.equal(half[wrong], more[wrong])


def test_label_noise_in_maps_counts_pixels() -> None:
    maps = torch.zeros(8, 10, 10, dtype=torch.int64)
    data = replace(made(8, 3, torch.zeros(8, 1, 10, 10, dtype=torch.uint8)), y=maps)
    new = label_noise(data, 0.25, 0)
    assert int((new.y != 0).sum()) == 150 and not new.y[data.test].any()


@pytest.mark.parametrize(
    ("kind", "mean", "std", "beyond"),
    # `beyond`: the share of noise further than 0.1 = 2 scales from its centre 0 (both ways for the
    # first two).
    [
        ("gaussian", 0.0, 0.05, 0.0455),
        ("laplace", 0.0, 0.0707, 0.1353),
        ("exponential", 0.05, 0.05, 0.1353),
    ],
)
def test_image_noise_statistics(kind: str, mean: float, std: float, beyond: float) -> None:
    for data, unit, step in (
        (made(x=torch.full((4000, 1, 4, 4), 128, dtype=torch.uint8)), 255, 1 / 255),
        (made(x=torch.full((4000, 20), 0.5)), 1, 0.0),
    ):
        new = image_noise(data, kind, seed=2)
        assert torch.equal(new.x[data.test], data.x[data.test])
        assert new.x.dtype == data.x.dtype
        clean = 0.9 * data.x[~data.test].to(torch.float64) / unit
        noise = new.x[~data.test].to(torch.float64) / unit - clean
        assert abs(float(noise.mean()) - mean) < 0.001 + step / 20
        assert abs(float(noise.std()) - std) < 0.0015
        assert abs(float((noise.abs() > 0.1).double().mean()) - beyond) < 0.006 + step
        if kind == "exponential":
            assert float(noise.min()) >= -step
        assert not torch.equal(noise[0], noise[1500])  # samples differ, also far apart
        assert float(data.x.to(torch.float64).std()) == 0  # the original is left alone
        assert torch.equal(new.x, image_noise(data, kind, seed=2).x)
        assert not torch.equal(new.x, image_noise(data, kind, seed=3).x)


def test_image_noise_clips_images_only() -> None:
    black = made(x=torch.zeros(4000, 1, 4, 4, dtype=torch.uint8))
    noisy = image_noise(black, "gaussian", 0.1, 0.05).x[~black.test]
    assert (
        abs(float((noisy == 0).double().mean()) - 0.52) < 0.03 and int(noisy.max()) < 90
    )  # below 0 is 0, no wrap
    white = made(x=torch.full((4000, 1, 4, 4), 255, dtype=torch.uint8))
    noisy = image_noise(white, "gaussian", 0.0, 0.05).x[~white.test]
    assert abs(float((noisy == 255).double().mean()) - 0.52) < 0.03 and int(noisy.min()) > 165
    vectors = made(x=torch.zeros(4000, 20, dtype=torch.float64))
    noisy = image_noise(vectors, "gaussian", 0.1, 2.0).x
    assert float(noisy.min()) < -4 and float(noisy.max()) > 4
    assert torch.equal(image_noise(white, "laplace", 0.0, 0.0).x, white.x)
    half = image_noise(white, "laplace", 0.5, 0.0).x[~white.test]
    assert (half == 128).all()  # 127.5, rounded


def test_errors() -> None:
    data = made(40)
    with pytest.raises(
        FedloomError, match=r"unknown kind of nonsense 'digit'; did you mean 'digits'\?"
    ):
        nonsense(data, "digit", 0)  # type: ignore[arg-type]
    with pytest.raises(
        FedloomError, match=r"unknown kind of noise 'gausian'; did you mean 'gaussian'\?"
    ):
        image_noise(data, "gausian")  # type: ignore[arg-type]
    with pytest.raises(FedloomError, match=r"must lie between 0 and 1, got 1\.5"):
        label_noise(data, 1.5)
    with pytest.raises(FedloomError, match="where there is only one class"):
        label_noise(made(40, 1), 0.5)
    with pytest.raises(
        FedloomError,
        match=r"a coefficient from 0 to 1 and a scale of 0 or more, got -0\.1 and 0\.05",
    ):
        image_noise(data, "gaussian", -0.1)
    with pytest.raises(
        FedloomError, match="made: only images and dense vectors of floats can be made noisy"
    ):
        image_noise(made(40, x=torch.zeros(40, 7, dtype=torch.int64)), "gaussian")
