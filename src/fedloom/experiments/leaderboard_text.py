"""The leaderboard as text: cells, tables in Markdown, and what there is to say in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..metrics.registry import DEFAULT
from .leaderboard import metric_columns

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
    value = row[column]
    std = row[f"{column}_std"] if spread else None
    text = "-" if value is None else f"{value * factor:.{decimals}f}"
    if column.endswith("_to_target") and 0 < row["target_reached"] < len(row["seeds"]):
        return f"{text} ({row['target_reached']} of {len(row['seeds'])} seeds)"
    return f"{text} ±{gap}{std * factor:.{decimals}f}" if std is not None else text


def markdown(board: Mapping[str, Any]) -> str:
    """The leaderboard as Markdown: metrics, domains, cost, tests, remarks, failures."""
    facts = board["settings"]
    rows = board["rows"]
    many = len(facts["seeds"]) > 1
    seeds = ", ".join(map(str, facts["seeds"]))
    lines = [
        f"# {board['title']}",
        "",
        f"{facts['clients']} clients, {facts['rounds']} rounds, model {facts['model']}, "
        f"seed{'s' * many} {seeds}; fedloom {facts['fedloom']}, torch {facts['torch']}.",
    ]
    sections = [_accuracy_section(board), _metrics_section(board)]
    if facts["metric"] != DEFAULT:
        sections.reverse()  # the headline comes first
    for section in (*sections, _domain_section(rows), _cost_section(board)):
        if section:
            lines += ["", *section]
    lists = {
        "Tests": sentences(board),
        "Remarks": remarks(board),
        "Notes": [f"{row['method']}: {row['note']}" for row in rows if row["note"]],
        "Failed runs": failures(board),
    }
    for title, texts in lists.items():
        if texts:
            lines += ["", f"## {title}", "", *(f"- {text}" for text in texts)]
    return "\n".join(lines) + "\n"


def _accuracy_section(board: Mapping[str, Any]) -> list[str]:
    table = _table(board["rows"], ACCURACY)
    for reference in board["references"]:
        value = f"{100 * reference['value']:.1f}"
        blanks = ["-"] * (len(ACCURACY) - 1)
        table.append(f"| {' | '.join([reference['label'].lower(), value, *blanks])} |")
    text = (
        "`personal`: mean accuracy of the clients' own models; `common`: of the one model for all. "
        "`last` is the last round, `by validation` the round chosen on validation data, `best` the "
        "round that is best on test data and therefore optimistic; all other figures are of the "
        "last round. Worst decile: mean of the worst tenth of the clients. Better than alone: "
        "share of clients above their accuracy under `local`; gain: the mean difference, in points."
    )
    if len(board["settings"]["seeds"]) > 1:
        text += " ± is the std over seeds (ddof 1)."
    for reference in board["references"]:
        text += f" {reference['label']}: {uncapped(reference['explanation'])}"
    return ["## Accuracy (%)", "", *table, "", text]


def _metrics_section(board: Mapping[str, Any]) -> list[str]:
    """All other metrics, the headline first."""
    chosen = []
    for metric in metric_columns():
        if any(row[metric.name] is not None for row in board["rows"]):
            chosen.append(metric)
    if not chosen:
        return []
    chosen.sort(key=lambda metric: metric.name != board["settings"]["metric"])
    columns = []
    for metric in chosen:
        unit = " (%)" if metric.unit == "percent" else ""
        columns.append((f"{metric.label}{unit}", metric.name, metric.factor, metric.decimals))
    texts = [f"{metric.label}: {uncapped(metric.explanation)}" for metric in chosen]
    text = "Means over clients of their own models in the last round. " + " ".join(texts)
    return ["## Other metrics", "", *_table(board["rows"], columns), "", text]


def _domain_section(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row["domains"]))
    spread_out = []
    for row in rows:
        wide = dict(row)
        for name in names:
            wide[f"domain {name}"] = row["domains"].get(name)
            wide[f"domain {name}_std"] = row["domains_std"].get(name)
        spread_out.append(wide)
    columns = [*((name, f"domain {name}", 100.0, 1) for name in names), *SPREAD]
    return [
        "## Domains (%) and spreads (points)",
        "",
        *_table(spread_out, columns),
        "",
        "Domain std has ddof 1; σ type (over domains) and σ client (over clients) have "
        "ddof 0. All of the last round.",
    ]


def _cost_section(board: Mapping[str, Any]) -> list[str]:
    text = (
        f"{_on_target(board['settings'])} GFLOP: matrix products and convolutions of all "
        "participants' local training in a round, counted once per method. Seconds and memory "
        "depend on the machine."
    )
    return ["## Cost", "", *_table(board["rows"], COST, spreads=False), "", text]


def remarks(board: Mapping[str, Any]) -> list[str]:
    """What the metrics point out, as sentences: a model that predicts one class, say."""
    return [f"{row['method']} {text}." for row in board["rows"] for text in row["remarks"]]


def failures(board: Mapping[str, Any]) -> list[str]:
    """The runs that failed, as sentences."""
    texts = []
    for row in board["rows"]:
        for failed in row["failed"]:
            texts.append(f"{row['method']}, seed {failed['seed']}: {failed['error']}")
    return texts


def uncapped(sentence: str) -> str:
    """The sentence as it reads after a colon."""
    return sentence[0].lower() + sentence[1:]


def sentences(board: Mapping[str, Any]) -> list[str]:
    """The tests in words: the first method against every other, then every method against local."""
    order = [row["method"] for row in board["rows"] if row["personal"] is not None]
    by_pair = {frozenset((test["a"], test["b"])): test["sentence"] for test in board["tests"]}
    texts = []
    for first in (*order[:1], "local"):
        for method in order[1:]:
            sentence = by_pair.get(frozenset((first, method)))
            if sentence and sentence not in texts:
                texts.append(sentence)
    return texts


def _on_target(facts: Mapping[str, Any]) -> str:
    if facts["target"] is None:
        return "No target accuracy."
    return (
        f"Target: personal accuracy {100 * facts['target']:.1f} % ({facts['target_is']}); MB to it "
        "count both directions, means are over the seeds that reach it."
    )


def _table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[tuple[str, str, float, int]],
    spreads: bool = True,
) -> list[str]:
    lines = [["method", *(name for name, *_ in columns)], ["---"] + ["---:"] * len(columns)]
    for row in rows:
        figures = [cell(row, name, factor, digits, spreads) for _, name, factor, digits in columns]
        lines.append([row["method"], *figures])
    return [f"| {' | '.join(line)} |" for line in lines]
