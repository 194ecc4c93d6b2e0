"""What a run that promises differential privacy has spent of it: epsilon for each client.

The promise is that of a Gaussian mechanism, and an accountant of `dp-accounting` adds up what its
releases cost. `Promise` in core/method.py says what one mechanism hides.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..core.errors import FedloomError
from ..core.method import Promise
from .distribution import MANY


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


def epsilon(multiplier: float, releases: int, delta: float, rate: float = 1.0) -> float:
    """Epsilon of `releases` Gaussian mechanisms whose noise is `multiplier` times their
    sensitivity.

    With a `rate` below 1, whoever is protected takes part in each of them by chance, at that rate.
    """
    if not releases:
        return 0.0
    accounting = accountant()
    event = accounting.GaussianDpEvent(multiplier)
    if rate < 1:
        event = accounting.PoissonSampledDpEvent(rate, event)
    # It logs which orders of its bound it could not use; the bound holds without them.
    absl = logging.getLogger("absl")
    level = absl.level
    absl.setLevel(logging.ERROR)
    try:
        spent = accounting.rdp.RdpAccountant().compose(event, releases)
        return float(spent.get_epsilon(delta))
    finally:
        absl.setLevel(level)


def account(
    promise: Promise, releases: Sequence[int], rates: Sequence[float] | None = None
) -> dict[str, Any]:
    """The epsilon of each client of a run, from the number of mechanisms that it took part in.

    `rates` are the clients' chances to take part; without them they always do. Very many clients
    are not listed: there is an entry for each case, and `clients` says how many are in it.
    """
    cases = list(zip(releases, rates or [1.0] * len(releases), strict=True))
    clients = Counter(cases)  # many clients are alike, and accounting is slow
    spent = {case: epsilon(promise.multiplier, case[0], promise.delta, case[1]) for case in clients}
    told = cases if len(cases) <= MANY else sorted(clients)
    spending = {
        "mechanism": "gaussian",
        "noise_multiplier": promise.multiplier,
        "delta": promise.delta,
        "releases": [count for count, _ in told],
        "epsilon": [spent[case] for case in told],
        "epsilon_max": max(spent.values(), default=0.0),
    }
    if promise.each != "class":
        spending |= {"each": promise.each, "rates": [rate for _, rate in told]}
    if told is not cases:
        spending["clients"] = [clients[case] for case in told]
    return spending
