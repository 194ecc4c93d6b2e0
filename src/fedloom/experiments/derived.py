"""Figures that a table derives from its runs: how alike prototypes are, and what a round costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median

from torch import Tensor

from ..data.described import listed, number_of
from ..engine.folder import Run
from ..engine.setup import last_checkpoint
from ..report.side import side_figure
from .flops import flops_per_round
from .plan import Cell, Dealer

Cells = Sequence[tuple[str, Cell]]  # each with its row


def compare_prototypes(cells: Cells, reference: str) -> None:
    """Add to each run's summary how similar its class prototypes are to those of a row, by domain.

    The similarity of two clients is the mean over classes of the inner products of their
    prototypes, as the server last received them; over the domains, a run's figures are scaled to
    sum to 1. The runs of the row `reference` itself get none.
    """
    prototypes = {}
    for row, cell in cells:
        if cell.run:
            prototypes[row, cell.config.seed] = _received(cell.run)
    for row, cell in cells:
        seed = cell.config.seed
        if cell.run and row != reference and (reference, seed) in prototypes:
            products = prototypes[row, seed] * prototypes[reference, seed]
            similar = products.sum(2).mean(1)
            shares = (similar / similar.sum()).tolist()
            domains = [client["domain"] for client in listed(cell.run.federation)]
            cell.run.summary["similarity"] = dict(zip(domains, shares, strict=True))


def _received(run: Run) -> Tensor:
    """Every client's prototypes at the end of a finished run."""
    checkpoint, _ = last_checkpoint(run)
    assert checkpoint.server is not None
    return checkpoint.server.tensor("every")


def count_costs(cells: Cells, reference: str, dealer: Dealer) -> None:
    """Add to each run's summary what a round costs.

    That is the numbers and megabytes that all clients send up, the floating-point operations of
    local training, and the time of a round without evaluation, also relative to the row
    `reference`.
    """
    seconds = {}
    for row, cell in cells:
        if cell.run:
            seconds[row, cell.config.seed] = _seconds(cell)
    for row, cell in cells:
        if cell.run is None:
            continue
        summary = cell.run.summary
        floats = (summary["floats"] or {}).get("up", 0) * number_of(cell.run.federation)
        count = partial(flops_per_round, cell.run, dealer(cell.config))
        flops = side_figure(f"the FLOP count of {cell.name}", count, None)
        time = seconds[row, cell.config.seed]
        cost = {
            "upload": floats / 1e7,
            "megabytes": summary["bytes"]["up"]["per_round"] / 1e6,
            "flops": None,
            "seconds": time,
            "ratio": None,
        }
        if flops is not None:
            cost["flops"] = flops / 1e10
        base = seconds.get((reference, cell.config.seed))
        if time and base:
            cost["ratio"] = time / base
        summary["cost"] = cost


def _seconds(cell: Cell) -> float | None:
    """The median time of the rounds without evaluation."""
    assert cell.run is not None
    evaluated = {record["round"] for record in cell.run.metrics}
    times = []
    for line in cell.run.timing:
        if line["round"] not in evaluated:
            times.append(line["seconds"])
    if not times:
        return None
    return median(times)
