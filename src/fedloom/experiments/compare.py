"""Several methods and seeds on the same federation: one leaderboard, one page.

Local and FedAvg are always among the methods. Every method is scored before and after local training, so FedAvg with
local fine-tuning needs no run of its own: it is FedAvg's `after` models. In round t each client received the average of
round t-1 and trained it on its own data, which is what fine-tuning is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from ..client.training import Training
from ..core.files import write_atomic
from ..core.version import __version__
from ..engine.config import Config
from ..engine.folder import Run
from ..metrics.fairness import compared, worst_share
from ..metrics.summary import summarise_run
from ..report import render_comparison
from .flops import flops_per_round
from .plan import Cell, Dealer, Display, Logs, carry_out, plan
from .statistics import ALPHA, paired_tests
from .values import mean_and_std, value_at

ALWAYS = ("local", "fedavg")  # what every method has to be measured against
TUNED = "fedavg-tuned"  # not `fedavg-ft`, a method of its own, which tunes the newest average rather than the one before
MACHINE = (
    "seconds",
    "seconds_to_target",
    "peak_rss_mb",
)  # figures that another computer, or a resumed run, changes


def with_references(methods: Sequence[str]) -> list[str]:
    """The methods asked for, each once, and those that are always run."""
    return list(dict.fromkeys((*methods, *ALWAYS)))


def compare(
    configs: Sequence[Config],
    out: Path,
    watch: Display,
    title: str,
    target: float | None = None,
    logs: Logs | None = None,
    report: bool = True,
) -> dict[str, Any]:
    """Carry out what is missing of a plan, then write `leaderboard.json`, `leaderboard.md` and `report.html`.

    Each run lives in a folder named after its method, seed and config hash, so a finished one is found again and an
    interrupted one goes on. Without `report`, only the comparison gets a page, not each run. `target` is an accuracy; None takes what clients reach alone.
    """
    dealer = Dealer()
    cells = carry_out(configs, out, watch, dealer, logs, report=report)
    board = leaderboard(cells, title, target, _flops(cells, out, dealer))
    write_atomic(out / "leaderboard.json", json.dumps(board, indent=1).encode())
    write_atomic(out / "leaderboard.md", markdown(board).encode())
    write_atomic(
        out / "report.html",
        render_comparison([c.run for c in cells if c.run], board, title).encode(),
    )
    return board


def _own_training(given: Mapping[str, Training]) -> dict[str, str]:
    """By method, what it trains with in place of what FedAvg (or the first) does, because its paper says so."""
    usual = given.get("fedavg", next(iter(given.values()))).model_dump()
    notes = {}
    for name, training in given.items():
        own = {key: value for key, value in training.model_dump().items() if value != usual[key]}
        if own:
            said = ", ".join(
                f"{key} = {value} (others: {usual[key]})" for key, value in own.items()
            )
            notes[name] = f"trained as in its paper, {said}; --set gives everybody the same."
    return notes


def leaderboard(
    cells: Sequence[Cell],
    title: str,
    target: float | None = None,
    flops: Mapping[str, float | None] | None = None,
) -> dict[str, Any]:
    """The whole comparison as plain values: a row per method (best first), tests between methods, the list of runs."""
    runs = {
        c.name: {d.config.seed: d.run for d in cells if d.name == c.name and d.run} for c in cells
    }
    flops = dict(flops or {})
    notes: dict[str, str] = {}
    if runs.get("fedavg") and "fedavg-ft" not in runs:  # the method itself says more
        runs[TUNED] = {seed: finetuned(run) for seed, run in runs["fedavg"].items()}
        flops[TUNED] = flops.get("fedavg")
        notes[TUNED] = _how_tuned(runs["fedavg"])
    notes |= _own_training({c.name: c.config.training for c in cells})
    alone = runs.get("local", {})
    for name, own in runs.items():
        for seed, run in own.items():
            if name != "local" and seed in alone and run.federation == alone[seed].federation:
                run.summary["better_than_local"] = compared(run.clients, alone[seed].clients)
    reached = [
        v for r in alone.values() if (v := value_at(r.summary, COLUMNS["personal"])) is not None
    ]
    said = "given"
    if target is None and reached:
        target, said = mean(reached), "what local reaches"
    rows = []
    for name, own in runs.items():
        failed = [
            {"seed": c.config.seed, "error": c.error} for c in cells if c.name == name and c.error
        ]
        row = {"method": name, "seeds": sorted(own), "failed": failed, "note": notes.get(name)}
        rows.append(
            row
            | _averaged(
                [
                    figures(own[s], target) | {"flops_per_round": flops.get(name)}
                    for s in sorted(own)
                ]
            )
        )
    rows.sort(key=lambda r: (r["personal"] is None, -(r["personal"] or 0.0)))
    first = next((r for own in runs.values() for r in own.values()), None)
    config = cells[0].config
    return {
        "title": title,
        "settings": {
            "data": config.data,
            "partition": config.partition,
            "model": config.model,
            "clients": len(first.federation["clients"]) if first else config.clients,
            "rounds": config.schedule.rounds,
            "seeds": sorted({c.config.seed for c in cells}),
            "methods": list(dict.fromkeys(c.name for c in cells)),
            "target": target,
            "target_is": said if target is not None else None,
            "significance": ALPHA,
            "machine_dependent": list(MACHINE),
            "fedloom": __version__,
            "torch": torch.__version__,
        },
        "rows": rows,
        "tests": paired_tests(
            {n: {s: r.clients for s, r in own.items()} for n, own in runs.items() if own}
        ),
        "runs": [
            {
                "method": c.name,
                "seed": c.config.seed,
                "folder": c.folder.name,
                "status": c.status,
                "error": c.error,
            }
            for c in cells
        ],
    }


def finetuned(run: Run) -> Run:
    """FedAvg's run seen as FedAvg with local fine-tuning: its headline models are those after local training."""
    unknown = {
        "personal": None,
        "common": None,
    }  # which round validation would choose was not scored
    metrics = [
        {**m, "personal": m["after"], "common": None, "validation": unknown} for m in run.metrics
    ]
    summary = {
        **run.summary,
        **summarise_run(metrics, run.timing),
        "stage": "after",
        "better_than_local": None,
    }
    return replace(run, metrics=metrics, summary=summary)


def _how_tuned(runs: Mapping[int, Run]) -> str:
    """What the row of fine-tuned FedAvg is, and for whom it does not hold."""
    said = "FedAvg's models after each client's local training, from the runs of fedavg"
    last = [(r, r.metrics[-1]) for r in runs.values() if r.metrics]
    away = max(
        (len(r.federation["clients"]) - m["participants"] + len(m["lost"]) for r, m in last),
        default=0,
    )
    return (
        f"{said}; {away} clients did not train in the last round and count untuned."
        if away
        else f"{said}."
    )


def figures(run: Run, target: float | None) -> dict[str, Any]:
    """One run's columns."""
    found: dict[str, Any] = {name: value_at(run.summary, path) for name, path in COLUMNS.items()}
    found["worst_decile"] = worst_share(run.clients)
    found |= dict.fromkeys(("rounds_to_target", "bytes_to_target", "seconds_to_target"))
    for m in run.metrics if target is not None else ():
        if m["personal"] and m["personal"]["accuracy_mean"] >= target:
            found["rounds_to_target"] = m["round"]
            found["bytes_to_target"] = sum(m["bytes_total"].values())
            found["seconds_to_target"] = sum(
                t["seconds"] for t in run.timing if t["round"] <= m["round"]
            )
            break
    found["domains"] = {d: v["last"] for d, v in run.summary.get("domains", {}).items()}
    return found


def _averaged(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean over seeds, and std (ddof 1) where there are several, of every column and domain."""
    row: dict[str, Any] = {}
    for name in (*COLUMNS, *EXTRA):
        row[name], row[f"{name}_std"] = mean_and_std([r[name] for r in runs])
    domains = {
        d: mean_and_std([r["domains"].get(d) for r in runs]) for r in runs for d in r["domains"]
    }
    row["domains"] = {d: value for d, (value, _) in domains.items()}
    row["domains_std"] = {d: std for d, (_, std) in domains.items()}
    row["target_reached"] = sum(r["rounds_to_target"] is not None for r in runs)
    return row


def _flops(cells: Sequence[Cell], out: Path, dealer: Dealer) -> dict[str, float | None]:
    """Each method's operations per round, measured once and kept in `flops.json`, by run folder."""
    path = out / "flops.json"
    kept: dict[str, float | None] = json.loads(path.read_bytes()) if path.exists() else {}
    found: dict[str, float | None] = {}
    for cell in cells:
        if cell.run and cell.name not in found:
            if cell.folder.name not in kept:
                kept[cell.folder.name] = flops_per_round(cell.run, dealer(cell.config))
            found[cell.name] = kept[cell.folder.name]
    write_atomic(path, json.dumps(kept, indent=1).encode())
    return found


COLUMNS = {
    "personal": "personal.accuracy_mean.last",
    "personal_best_by_validation": "personal.accuracy_mean.best_by_validation",
    "personal_best": "personal.accuracy_mean.best",
    "common": "common.accuracy.last",
    "common_best_by_validation": "common.accuracy.best_by_validation",
    "common_best": "common.accuracy.best",
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
EXTRA = (
    "worst_decile",
    "rounds_to_target",
    "bytes_to_target",
    "seconds_to_target",
    "flops_per_round",
)
# heading, column, factor, decimals
ACCURACY = [
    ("personal, last", "personal", 100, 1),
    ("personal, by validation", "personal_best_by_validation", 100, 1),
    ("personal, best", "personal_best", 100, 1),
    ("common, last", "common", 100, 1),
    ("common, by validation", "common_best_by_validation", 100, 1),
    ("common, best", "common_best", 100, 1),
    ("worst client", "worst_client", 100, 1),
    ("worst decile", "worst_decile", 100, 1),
    ("better than alone", "better_than_local", 100, 0),
    ("gain over alone", "gain_over_local", 100, 1),
]
SPREAD = [
    ("domain average", "domain_avg", 100, 1),
    ("domain std", "domain_std", 100, 1),
    ("σ type", "sigma_type", 100, 1),
    ("σ client", "sigma_client", 100, 1),
]
COST = [
    ("MB up/round", "bytes_up_per_round", 1e-6, 2),
    ("MB down/round", "bytes_down_per_round", 1e-6, 2),
    ("GFLOP/round", "flops_per_round", 1e-9, 1),
    ("rounds to target", "rounds_to_target", 1, 1),
    ("MB to target", "bytes_to_target", 1e-6, 1),
    ("seconds to target", "seconds_to_target", 1, 0),
    ("seconds", "seconds", 1, 0),
    ("peak memory MB", "peak_rss_mb", 1, 0),
]


def cell(
    row: Mapping[str, Any], column: str, factor: float, decimals: int, spread: bool, gap: str = " "
) -> str:
    """A figure as text, on request with its spread over seeds if there is one."""
    value, std = row[column], row[f"{column}_std"] if spread else None
    text = "-" if value is None else f"{value * factor:.{decimals}f}"
    if column.endswith("_to_target") and 0 < row["target_reached"] < len(row["seeds"]):
        return f"{text} ({row['target_reached']} of {len(row['seeds'])} seeds)"
    return f"{text} ±{gap}{std * factor:.{decimals}f}" if std is not None else text


def markdown(board: Mapping[str, Any]) -> str:
    """The leaderboard as Markdown: accuracy, domains, cost, tests, failures."""
    rows, facts = board["rows"], board["settings"]
    domains = list(dict.fromkeys(d for r in rows for d in r["domains"]))
    many = len(facts["seeds"]) > 1
    seeds = ", ".join(map(str, facts["seeds"]))
    lines = [
        f"# {board['title']}",
        "",
        f"{facts['clients']} clients, {facts['rounds']} rounds, model {facts['model']}, seed{'s' * many} {seeds}; "
        f"fedloom {facts['fedloom']}, torch {facts['torch']}.",
        "",
        "## Accuracy (%)",
        "",
        *_table(rows, ACCURACY),
        "",
        "`personal`: mean accuracy of the clients' own models; `common`: of the one model for all. `last` is the last "
        "round, `by validation` the round chosen on validation data, `best` the round that is best on test data and "
        "therefore optimistic; all other figures are of the last round. Worst decile: mean of the worst tenth of the "
        "clients. Better than alone: share of clients above their accuracy under `local`; gain: the mean difference, "
        "in points."
        + (" ± is the std over seeds (ddof 1)." if many else ""),
        "",
        "## Domains (%) and spreads (points)",
        "",
        *_table([r | {f"domain {d}": r["domains"].get(d) for d in domains}
                 | {f"domain {d}_std": r["domains_std"].get(d) for d in domains} for r in rows],
                [*((d, f"domain {d}", 100, 1) for d in domains), *SPREAD]),
        "",
        "Domain std has ddof 1; σ type (over domains) and σ client (over clients) have ddof 0. All of the last round.",
        "",
        "## Cost",
        "",
        *_table(rows, COST, spreads=False),
        "",
        _on_target(facts) + " GFLOP: matrix products and convolutions of all participants' local training in a round, "
        "counted once per method. Seconds and memory depend on the machine.",
    ]  # fmt: skip
    notes = [f"- {r['method']}: {r['note']}" for r in rows if r["note"]]
    failed = [f"- {r['method']}, seed {f['seed']}: {f['error']}" for r in rows for f in r["failed"]]
    tests = [f"- {text}" for text in sentences(board)]
    for title, found in (("Tests", tests), ("Notes", notes), ("Failed runs", failed)):
        lines += ["", f"## {title}", "", *found] if found else []
    return "\n".join(lines) + "\n"


def sentences(board: Mapping[str, Any]) -> list[str]:
    """The tests in words: the first method against every other, then every method against local."""
    order = [r["method"] for r in board["rows"] if r["personal"] is not None]
    wanted = [{order[0], m} for m in order[1:]] + [{"local", m} for m in order[1:]] if order else []
    by_pair = {frozenset((t["a"], t["b"])): t["sentence"] for t in board["tests"]}
    return list(dict.fromkeys(by_pair[frozenset(w)] for w in wanted if frozenset(w) in by_pair))


def _on_target(facts: Mapping[str, Any]) -> str:
    if facts["target"] is None:
        return "No target accuracy."
    return (
        f"Target: personal accuracy {100 * facts['target']:.1f} % ({facts['target_is']}); MB to it count both "
        "directions, means are over the seeds that reach it."
    )


def _table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[tuple[str, str, float, int]],
    spreads: bool = True,
) -> list[str]:
    lines = [["method", *(name for name, *_ in columns)], ["---"] + ["---:"] * len(columns)]
    lines += [[r["method"], *(cell(r, c, f, d, spreads) for _, c, f, d in columns)] for r in rows]
    return [f"| {' | '.join(line)} |" for line in lines]


__all__ = ["compare", "leaderboard", "markdown", "plan", "with_references"]
