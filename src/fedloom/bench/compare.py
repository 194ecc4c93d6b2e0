"""Several methods and seeds on the same federation, one table and one page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ..config import Config, build
from ..progress import Watch
from ..report import render
from ..runs import Run, better_than_local, execute
from ..state import write_atomic


def configs(
    methods: Sequence[str], seeds: Sequence[int], given: Mapping[str, Any], changes: Mapping[str, Any]
) -> list[Config]:
    """One config per method and seed. A change `fedprox.mu` concerns that method only."""
    made = []
    for method in methods:
        own = {k: v for k, v in changes.items() if k.split(".")[0] not in methods}
        own |= {k.split(".", 1)[1]: v for k, v in changes.items() if k.split(".")[0] == method}
        made += [build({**given, "method": method, "seed": seed}, own) for seed in seeds]
    return made


def compare(plan: Sequence[Config], out: Path, watch: Watch, title: str) -> list[Run]:
    """Carry out what is missing of a plan, then write `leaderboard.json`, `leaderboard.md` and `report.html`.

    Each run lives in a folder named after its method, seed and config hash, so a finished one is found again and an
    interrupted one goes on.
    """
    runs: list[Run] = []
    for i, config in enumerate(plan):
        folder = out / f"{Path(config.method).stem}-s{config.seed}-{config.hash()[:8]}"
        watch.begin(f"{config.method} seed {config.seed}", before=sum(c.schedule.rounds for c in plan[:i]))
        runs.append(execute(config, out=folder, callbacks=[watch]))
    alone = {r.config.seed: r for r in runs if r.config.method == "local"}
    for r in runs:
        if r.config.seed in alone and r.config.method != "local":
            r.summary["better_than_local"] = better_than_local(r, alone[r.config.seed])
    rows = leaderboard(runs)
    several = len({r.config.seed for r in runs}) > 1
    pages = [r.data(f"{r.config.method}, seed {r.config.seed}" if several else r.config.method) for r in runs]
    write_atomic(out / "leaderboard.json", json.dumps(rows, indent=1).encode())
    write_atomic(out / "leaderboard.md", markdown(rows).encode())
    write_atomic(out / "report.html", render(pages, title).encode())
    return runs


def leaderboard(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row per method: the mean over seeds (and the std, ddof 1, where there are several), best first."""
    rows = []
    for method in dict.fromkeys(r.config.method for r in runs):
        own = [r.summary for r in runs if r.config.method == method]
        row: dict[str, Any] = {"method": method, "seeds": [s["seed"] for s in own]}
        for name, path in COLUMNS.items():
            values = [v for s in own if (v := _at(s, path)) is not None]
            row[name] = mean(values) if values else None
            row[f"{name}_std"] = stdev(values) if len(values) > 1 else None
        rows.append(row)
    return sorted(rows, key=lambda r: -(r["personal"] or 0.0))


COLUMNS = {
    "personal": "personal.accuracy_mean.last",
    "personal_best_by_validation": "personal.accuracy_mean.best_by_validation",
    "personal_best": "personal.accuracy_mean.best",
    "common": "common.accuracy.last",
    "domain_avg": "domain_avg.last",
    "domain_std": "domain_std.last",
    "sigma_type": "sigma_type.last",
    "sigma_client": "sigma_client.last",
    "worst_client": "worst_client.last",
    "better_than_local": "better_than_local.share",
    "gain_over_local": "better_than_local.mean_gain",
    "bytes_up_per_round": "bytes.up.per_round",
    "bytes_down_per_round": "bytes.down.per_round",
    "seconds": "seconds",
    "peak_rss_mb": "peak_rss_mb",
}
# heading, heading where there is little room, column, factor, decimals
SHOWN = [
    ("personal %", "personal", "personal", 100, 1),
    ("by validation %", "by val.", "personal_best_by_validation", 100, 1),
    ("common %", "common", "common", 100, 1),
    ("domain std", "std", "domain_std", 100, 1),
    ("worst client %", "worst", "worst_client", 100, 1),
    ("better than alone %", "better", "better_than_local", 100, 0),
    ("gain over alone", "gain", "gain_over_local", 100, 1),
    ("MB up/round", "MB up", "bytes_up_per_round", 1e-6, 1),
    ("seconds", "time", "seconds", 1, 0),
]
LEGEND = (
    "In percent. personal: mean accuracy of the clients' own models after the last round (by val.: in the round chosen "
    "on validation data); common: of the one model for all; std: spread over domains; worst: worst client; better: "
    "share of clients better off than alone (local); gain: mean gain over alone, in points. MB up: all uploads of a "
    "round. time: seconds."
)


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row of the leaderboard as text."""
    shown = [str(row["method"])]
    for _, _, name, factor, decimals in SHOWN:
        value, spread = row[name], row.get(f"{name}_std")
        text = "-" if value is None else f"{value * factor:.{decimals}f}"
        shown.append(f"{text} ± {spread * factor:.{decimals}f}" if spread is not None else text)
    return shown


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The leaderboard as a Markdown table."""
    head = ["method", *(name for name, *_ in SHOWN)]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *(cells(row) for row in rows)]
    note = (
        "Accuracies are of the last round; `by validation` is the round chosen on validation data. "
        "± is the std over seeds (ddof 1)."
    )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{note}\n"


def _at(values: Mapping[str, Any], path: str) -> float | None:
    found: Any = values
    for key in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found
