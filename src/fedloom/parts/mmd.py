"""Maximum mean discrepancy: how far apart two batches of features are as distributions."""

from __future__ import annotations

import torch
from torch import Tensor


def squared_mmd(a: Tensor, b: Tensor, kernels: int = 5) -> Tensor:
    """The squared MMD of two batches of equal size, with a sum of Gaussian kernels.

    Their bandwidths are spaced by factors of 2 around the mean squared distance within the joint
    batch, which counts as a constant. Equal batches have a discrepancy of 0.
    """
    joint = torch.cat([a, b])
    n = len(joint)
    apart = (joint[:, None] - joint[None]).square().sum(2)
    middle = (apart.detach().sum() / (n * (n - 1))).clamp(min=1e-12)
    scales = 2.0 ** (torch.arange(kernels) - kernels // 2)
    kernel = torch.stack([(-apart / (middle * s)).exp() for s in scales]).sum(0)
    m = len(a)
    return kernel[:m, :m].mean() + kernel[m:, m:].mean() - 2 * kernel[:m, m:].mean()


def smooth_mmd(a: Tensor, b: Tensor) -> Tensor:
    """The squared MMD of two batches of equal size, with Gaussian kernels of four fixed widths.

    The kernels are exp(-|x - y|^2 / 2v) with v of 10, 15, 20 and 50.
    """
    joint = torch.cat([a, b])
    apart = (joint[:, None] - joint[None]).square().sum(2)
    kernel = torch.stack([(-0.5 * apart / v).exp() for v in (10.0, 15.0, 20.0, 50.0)]).sum(0)
    m = len(a)
    return kernel[:m, :m].mean() + kernel[m:, m:].mean() - 2 * kernel[:m, m:].mean()
