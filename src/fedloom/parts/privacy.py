"""What clients may do to prototypes before they send them, and what it is worth.

`perturb` = gaussian, laplace or exponential is FedPCL's own trial: C becomes (1 - shrink) C + noise. It blurs, and it
promises nothing. `perturb` = dp is a Gaussian mechanism: each prototype is cut to length `bound`, then every number
gets normal noise of deviation `spread`. Whatever a client's inputs are, a prototype moves by at most 2 bound, so
(epsilon, delta) follows from spread / (2 bound) and from how many prototypes were sent, by an accountant of
`dp-accounting`.

What the promise covers: all inputs of a client, exchanged for any others, against whoever sees what it sends. A bound
by single samples (2 bound / n for a mean of n) would be wrong here: the network below the mean has been trained on the
same samples, and moves with them. What it does not cover: which classes a client owns and how many samples of each,
which are sent as they are. The noise comes from the run's seed, so it hides nothing from those who know the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from ..core.errors import FedloomError
from ..core.local import Local
from ..core.settings import Positive, Share, setting
from ..data.stress import NOISES


@validated(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Perturbed:
    """Settings and work of a method whose clients send prototypes and nothing else that their inputs decide."""

    perturb: Literal["none", "gaussian", "laplace", "exponential", "dp"] = setting(
        "none",
        "What happens to prototypes before they are sent: nothing, noise, or a Gaussian "
        "mechanism (dp).",
    )
    shrink: Share = setting(0.1, "Of noise: what a prototype loses, (1 - shrink) C + noise.")
    spread: Positive = setting(
        0.05, "Of noise and dp: deviation (gaussian, dp), scale (laplace) or mean (exponential)."
    )
    bound: Positive = setting(1.0, "Of dp: the greatest length of a prototype.")
    failure: Annotated[float, Field(gt=0, lt=1)] = setting(
        1e-5, "Of dp: the delta for which epsilon is told."
    )

    def perturbed(self, prototypes: Tensor, local: Local) -> Tensor:
        """Prototypes, a row each, as they are sent."""
        if self.perturb == "none":
            return prototypes
        kind = "gaussian" if self.perturb == "dp" else self.perturb
        noise = self.spread * NOISES[kind](prototypes, local.rng("perturb"))
        if self.perturb == "dp":
            lengths = prototypes.norm(dim=1, keepdim=True)
            return prototypes * (self.bound / lengths.clamp(min=self.bound)) + noise
        return (1 - self.shrink) * prototypes + noise

    def promise(self) -> tuple[float, float] | None:
        return (self.spread / (2 * self.bound), self.failure) if self.perturb == "dp" else None


def epsilon(multiplier: float, releases: int, delta: float) -> float:
    """Epsilon of so many releases by Gaussian mechanisms, each with noise of `multiplier` times its sensitivity."""
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
            "dp-accounting, which works out epsilon, is not installed; `pip install 'fedloom[privacy]'` brings it."
        ) from None
    return dp_accounting


def account(promise: tuple[float, float], releases: Sequence[int]) -> dict[str, Any]:
    """What a run's promise comes to: epsilon of each client, by the number of prototypes that it sent."""
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
