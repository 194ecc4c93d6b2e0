"""Spectra: what a swap of amplitudes changes and what it keeps."""

import pytest
import torch

from fedloom.parts.spectrum import amplitude, with_amplitude


def images(seed: int = 0) -> torch.Tensor:
    return torch.rand(2, 3, 8, 6, generator=torch.Generator().manual_seed(seed)).double() + 0.1


def test_only_the_mean_changes_at_the_zero_frequency() -> None:
    x, target = images(), amplitude(images(1)).mean(0)
    changed = with_amplitude(x, target, mean_only=True)
    means = changed.mean((2, 3))
    assert means.flatten().tolist() == pytest.approx((target[:, 0, 0] / 48).repeat(2).tolist())
    torch.testing.assert_close(changed - means[:, :, None, None], x - x.mean((2, 3), keepdim=True))


def test_all_amplitudes_are_the_target_and_phases_are_kept() -> None:
    x, target = images(), amplitude(images(1)).mean(0)
    changed = with_amplitude(x, target)
    torch.testing.assert_close(amplitude(changed), target.expand(2, -1, -1, -1))
    turn = torch.fft.fft2(changed).angle() - torch.fft.fft2(x).angle()
    torch.testing.assert_close(torch.cos(turn), torch.ones_like(turn))


def test_own_amplitude_changes_nothing() -> None:
    x = images()
    torch.testing.assert_close(with_amplitude(x[:1], amplitude(x)[0]), x[:1])


def test_a_blank_image_gets_the_amplitudes_without_trouble() -> None:
    assert torch.isfinite(with_amplitude(torch.zeros(1, 1, 8, 8), torch.ones(1, 8, 8))).all()
