"""Preprocessing, names, and what an encoder promises."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fedloom.core.errors import FedloomError
from fedloom.encoders import IMAGE, TEXT, Encoder, Preprocess, image, images
from fedloom.encoders.base import load_weights, package, remembered


def picture(n: int = 3, channels: int = 3, height: int = 20, width: int = 20) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (n, channels, height, width), generator=g, dtype=torch.uint8)


def own(seed: int = 0, dim: int = 4) -> Encoder:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(3 * 64, dim))
    return Encoder("own", dim, Preprocess(8), lambda: net)


@pytest.mark.parametrize(("resample", "number"), [("bilinear", 2), ("bicubic", 3)])
def test_scaling_is_pillows(resample, number) -> None:
    x = picture(1)
    ours = Preprocess(13, resample=resample)(x)[0]
    theirs = np.asarray(
        Image.fromarray(x[0].permute(1, 2, 0).numpy()).resize((13, 13), resample=number),
        dtype=float,
    )
    assert (
        np.abs((ours.permute(1, 2, 0).numpy() * 0.5 + 0.5) * 255 - theirs).max() <= 1.01
    )  # one grey level


def test_centre_crop_and_normalisation() -> None:
    x = picture(2, height=20, width=30)
    done = Preprocess(10, (0.1, 0.2, 0.3), (1.0, 2.0, 4.0), edge=20)(x)
    cut = x[:, :, 5:15, 10:20].float() / 255
    wanted = (cut - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor([1.0, 2.0, 4.0])[
        :, None, None
    ]
    assert torch.allclose(done, wanted, atol=1e-6)


def test_grey_becomes_rgb() -> None:
    done = Preprocess(8)(picture(2, channels=1))
    assert done.shape == (2, 3, 8, 8) and torch.equal(done[:, 0], done[:, 2])


@pytest.mark.parametrize(
    "bad",
    [
        torch.zeros(2, 3, 8, 8),
        torch.zeros(3, 8, 8, dtype=torch.uint8),
        torch.zeros(2, 3, 0, 8, dtype=torch.uint8),
    ],
)
def test_what_is_no_image_is_named(bad) -> None:
    with pytest.raises(FedloomError, match=r"images of bytes .* of shape"):
        Preprocess(8)(bad)
    with pytest.raises(FedloomError, match="1 or 3 channels"):
        Preprocess(8)(picture(channels=2))
    with pytest.raises(FedloomError, match="no 64x64 centre"):
        Preprocess(64, edge=32)(picture())


def test_an_encoder_is_frozen_in_evaluation_mode_and_deterministic() -> None:
    encoder = own()
    x = picture()
    assert torch.equal(encoder.encode(x), encoder.encode(x))  # there is dropout in it
    assert not encoder.encode(x).requires_grad and not any(
        p.requires_grad for p in encoder.module.parameters()
    )


def test_the_hash_is_of_the_weights() -> None:
    assert own(0).hash == own(0).hash != own(1).hash


def test_a_wrong_width_is_an_error() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 5))
    with pytest.raises(FedloomError, match="should give 4 numbers per image"):
        Encoder("own", 4, Preprocess(8), lambda: net).encode(picture())


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(FedloomError, match="did you mean 'vit-mini'"):
        image("vit-minni")
    with pytest.raises(FedloomError, match="unknown encoder"):
        images("vit-mini,nothing-like-it")
    with pytest.raises(FedloomError, match="needs something after the colon"):
        image("hf:")
    with pytest.raises(FedloomError, match="registered already"):
        IMAGE.register("vit-mini")(lambda: None)
    assert {"hash", "minilm", "glove", "hf:"} <= set(TEXT.names())


def test_a_missing_package_names_its_extra() -> None:
    with pytest.raises(
        FedloomError, match=r"the thing is not installed; `pip install 'fedloom\[encoders\]'`"
    ):
        package("no_such_package_anywhere", "encoders", "the thing")


def test_weights_that_do_not_fit_are_named() -> None:
    net, good = nn.Linear(2, 3), nn.Linear(2, 3).state_dict()
    with pytest.raises(FedloomError, match="lack bias"):
        load_weights(net, {"weight": good["weight"]}, "w.pth")
    with pytest.raises(FedloomError, match="bring other"):
        load_weights(net, {**good, "other": torch.zeros(1)}, "w.pth")
    with pytest.raises(
        FedloomError, match=r"tensor bias in w.pth has shape \(4,\), the network wants \(3,\)"
    ):
        load_weights(net, {**good, "bias": torch.zeros(4)}, "w.pth")


def test_a_file_is_looked_into_again_only_once_it_has_changed(tmp_path, monkeypatch) -> None:
    looks = []

    @remembered
    def length(file: Path, unit: int = 1) -> int:
        looks.append(file)
        return len(file.read_bytes()) // unit

    file = tmp_path / "weights"
    with pytest.raises(FileNotFoundError):
        length(file)
    looks.clear()
    file.write_bytes(b"1234")
    assert [length(file), length(file), length(file, 2), length(file, 2)] == [4, 4, 2, 2]
    assert len(looks) == 2
    os.utime(file, ns=(0, 0))  # another file of the same length
    assert length(file) == 4 and len(looks) == 3
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "weights").write_bytes(b"12345")
    monkeypatch.chdir(tmp_path)
    assert length(Path("weights")) == 4
    monkeypatch.chdir(tmp_path / "here")
    assert length(Path("weights")) == 5
