"""What clients may do to their prototypes before they send them.

FedPCL's authors try noise: a prototype C becomes (1 - shrink) C + noise, and the noise is gaussian,
laplace or exponential. That blurs what is sent, but promises nothing.

A Gaussian mechanism (`perturb=dp`) does promise something. It cuts each prototype to length `bound`
and adds normal noise of deviation `spread` to every number. Whatever a client's inputs are, one
prototype then moves by at most 2 bound, so (epsilon, delta) follows from spread / (2 bound) and
from how many prototypes were sent; `metrics/privacy.py` works it out.

The promise covers all inputs of a client, exchanged for any others, against whoever sees what it
sends. A bound for single samples (2 bound / n for a mean of n) would be wrong here, because the
network below the mean has been trained on the same samples and moves with them. The promise does
not cover which classes a client has, or how many samples of each: these are sent as they are. And
because the noise comes from the run's seed, it hides nothing from those who know the seed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.stress import NOISES


def gaussian_mechanism(
    prototypes: Tensor, bound: float, spread: float, rng: torch.Generator
) -> Tensor:
    """Prototypes, a row each, cut to length `bound`, with normal noise of deviation `spread`."""
    noise = spread * NOISES["gaussian"](prototypes, rng)
    lengths = prototypes.norm(dim=1, keepdim=True)
    return prototypes * (bound / lengths.clamp(min=bound)) + noise


def noised(
    prototypes: Tensor, kind: str, shrink: float, spread: float, rng: torch.Generator
) -> Tensor:
    """(1 - shrink) C + noise, with noise of this kind and size."""
    noise = spread * NOISES[kind](prototypes, rng)
    return (1 - shrink) * prototypes + noise
