"""What clients may do to prototypes before they send them, and what it is worth.

`perturb` = gaussian, laplace or exponential is FedPCL's own trial: C becomes (1 - shrink) C +
noise. It blurs, and it promises nothing. `perturb` = dp is a Gaussian mechanism: each prototype is
cut to length `bound`, then every number gets normal noise of deviation `spread`. Whatever a
client's inputs are, a prototype moves by at most 2 bound, so (epsilon, delta) follows from spread /
(2 bound) and from how many prototypes were sent, by an accountant of `dp-accounting`.

What the promise covers: all inputs of a client, exchanged for any others, against whoever sees what
it sends. A bound by single samples (2 bound / n for a mean of n) would be wrong here: the network
below the mean has been trained on the same samples, and moves with them. What it does not cover:
which classes a client owns and how many samples of each, which are sent as they are. The noise
comes from the run's seed, so it hides nothing from those who know the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.errors import FedloomError
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


def epsilon(multiplier: float, releases: int, delta: float) -> float:
    """Epsilon of `releases` Gaussian mechanisms with noise `multiplier` times the sensitivity."""
    if not releases:
        return 0.0
    accounting = accountant()
    spent = accounting.rdp.RdpAccountant().compose(accounting.GaussianDpEvent(multiplier), releases)
    return float(spent.get_epsilon(delta))


def accountant() -> Any:
    """The package that does the sums."""
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise FedloomError(
            "dp-accounting, which works out epsilon, is not installed; "
            "`pip install 'fedloom[privacy]'` brings it."
        ) from None
    return dp_accounting


def account(promise: tuple[float, float], releases: Sequence[int]) -> dict[str, Any]:
    """The epsilon of each client of a run, by the number of prototypes that it sent."""
    multiplier, delta = promise
    known = {n: epsilon(multiplier, n, delta) for n in set(releases)}
    return {
        "mechanism": "gaussian",
        "noise_multiplier": multiplier,
        "delta": delta,
        "releases": list(releases),
        "epsilon": [known[n] for n in releases],
        "epsilon_max": max(known.values(), default=0.0),
    }
