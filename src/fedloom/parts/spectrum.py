"""Spectra of images: amplitude carries style, phase carries content."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.stages import Piece


def amplitude(x: Tensor) -> Tensor:
    """The amplitude of every frequency of each channel of images (N x channels x h x w)."""
    return torch.fft.fft2(x).abs()


def with_amplitude(x: Tensor, target: Tensor, mean_only: bool = False) -> Tensor:
    """The images with the amplitudes `target` and their own phases; with `mean_only` at the zero
    frequency only, which sets the mean of a positive image to target[0, 0] / (height * width)
    and changes nothing else.
    """
    spectrum = torch.fft.fft2(x)
    amplitudes = spectrum.abs()
    wanted = target.expand_as(amplitudes)
    if mean_only:
        wanted = amplitudes.clone()
        wanted[..., 0, 0] = target[..., 0, 0]
    return torch.fft.ifft2(torch.polar(wanted, spectrum.angle())).real


class CommonAmplitude(Piece):
    """Standardised images with the amplitudes `target`, set on a scale from 0 to 1.

    On another scale a mean may be negative, and the sign would count as phase.
    """

    settings = ("mean_only",)
    undecided = 0.01  # images that lack a frequency: its phase is noise, and gets an amplitude
    target: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, target: Tensor, mean: Tensor, std: Tensor, mean_only: bool) -> None:
        super().__init__()
        self.mean_only = mean_only
        self.register_buffer("target", target)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        plain = x * self.std + self.mean
        return (with_amplitude(plain, self.target, self.mean_only) - self.mean) / self.std


def low_amplitudes(x: Tensor, half: int) -> Tensor:
    """The amplitudes of the 2 half + 1 lowest frequencies along both sides of images."""
    return torch.fft.fftshift(amplitude(x), dim=(-2, -1))[..., *_window(x, half)]


def exchanged(x: Tensor, low: Tensor, own: Tensor) -> Tensor:
    """The images with `own` of their amplitudes and 1 - `own` of those given, at low frequencies.

    `low` is what `low_amplitudes` gives of other images, `own` a number per image.
    """
    spectrum = torch.fft.fftshift(torch.fft.fft2(x), dim=(-2, -1))
    amplitudes = spectrum.abs()
    part = (..., *_window(x, low.shape[-1] // 2))
    amplitudes[part] = low.lerp(amplitudes[part], own.view(-1, 1, 1, 1))
    mixed = torch.polar(amplitudes, spectrum.angle())
    return torch.fft.ifft2(torch.fft.ifftshift(mixed, dim=(-2, -1))).real


def _window(x: Tensor, half: int) -> tuple[slice, slice]:
    """Where the lowest frequencies are once the zero frequency is in the middle."""
    rows, columns = x.shape[-2] // 2, x.shape[-1] // 2
    return slice(rows - half, rows + half + 1), slice(columns - half, columns + half + 1)
