"""Spectra of images: amplitude carries style, phase carries content."""

from __future__ import annotations

import torch
from torch import Tensor


def amplitude(x: Tensor) -> Tensor:
    """The amplitude of every frequency of each channel of images (N x channels x h x w)."""
    return torch.fft.fft2(x).abs()


def with_amplitude(x: Tensor, target: Tensor, mean_only: bool = False) -> Tensor:
    """The images with the amplitudes `target` and their own phases; with `mean_only` at the zero
    frequency only, which sets the mean of a positive image to target[0, 0] / (height * width)
    and changes nothing else.
    """
    spectrum = torch.fft.fft2(x)
    own = spectrum.abs()
    wanted = target.expand_as(own)
    if mean_only:
        wanted = own.clone()
        wanted[..., 0, 0] = target[..., 0, 0]
    return torch.fft.ifft2(torch.polar(wanted, spectrum.angle())).real
