"""What a run that promises differential privacy has spent of it: epsilon for each client.

The promise is that of a Gaussian mechanism, and an accountant of `dp-accounting` adds up what its
releases cost. `parts/privacy.py` has the mechanism, and says what the promise covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.errors import FedloomError


def accountant() -> Any:
    """The package that does the accounting; it is an extra, so it may be missing."""
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise FedloomError(
            "dp-accounting, which works out epsilon, is not installed; "
            "`pip install 'fedloom[privacy]'` brings it."
        ) from None
    return dp_accounting


def epsilon(multiplier: float, releases: int, delta: float) -> float:
    """Epsilon of `releases` Gaussian mechanisms whose noise is `multiplier` times their
    sensitivity.
    """
    if not releases:
        return 0.0
    accounting = accountant()
    spent = accounting.rdp.RdpAccountant().compose(accounting.GaussianDpEvent(multiplier), releases)
    return float(spent.get_epsilon(delta))


def account(promise: tuple[float, float], releases: Sequence[int]) -> dict[str, Any]:
    """The epsilon of each client of a run, from the number of prototypes that it has sent.

    `promise` is the mechanism's noise multiplier and delta.
    """
    multiplier, delta = promise
    by_releases: dict[int, float] = {}
    for number in releases:
        if number not in by_releases:  # many clients send equally often, and accounting is slow
            by_releases[number] = epsilon(multiplier, number, delta)
    return {
        "mechanism": "gaussian",
        "noise_multiplier": multiplier,
        "delta": delta,
        "releases": list(releases),
        "epsilon": [by_releases[number] for number in releases],
        "epsilon_max": max(by_releases.values(), default=0.0),
    }
