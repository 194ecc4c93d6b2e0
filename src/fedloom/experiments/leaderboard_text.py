"""The leaderboard as text: cells, tables in Markdown, and what there is to say in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..metrics.registry import DEFAULT, Metric, headline
from ..report import tuning
from ..report.verdict import counted
from .leaderboard import class_metrics, metric_columns

MOST_CLASSES = 20  # with more classes than this, a table of classes would be too wide to read
Columns = Sequence[tuple[str, str, float, int]]

# heading, column, factor, decimals
ACCURACY = [
    ("personal", "personal", 100, 1),
    ("personal, last", "personal_last", 100, 1),
    ("personal, best", "personal_best", 100, 1),
    ("common", "common", 100, 1),
    ("common, last", "common_last", 100, 1),
    ("common, best", "common_best", 100, 1),
    ("worst client", "worst_client", 100, 1),
    ("worst decile", "worst_decile", 100, 1),
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
    ("simulated seconds to target", "simulated_to_target", 1, 1),
    ("seconds", "seconds", 1, 0),
    ("peak memory MB", "peak_rss_mb", 1, 0),
]


ROUND = (
    "Figures are of the round chosen on validation data, and of the last round where a method has "
    "no validation data."
)


def gain_columns(metric: Metric) -> Columns:
    """How many clients are better off than alone, and by how much in the headline metric."""
    return [
        ("better than alone", "better_than_local", 100, 0),
        ("gain over alone", "gain_over_local", metric.factor, metric.decimals),
    ]


def cell(
    row: Mapping[str, Any], column: str, factor: float, decimals: int, spread: bool, gap: str = " "
) -> str:
    """A figure as text, on request with its spread over seeds if there is one."""
    value = row[column]
    text = "-"
    if value is not None:
        text = f"{value * factor:.{decimals}f}"
    reached, seeds = row["target_reached"], len(row["seeds"])
    if column.endswith("_to_target") and 0 < reached < seeds:
        return f"{text} ({reached} of {seeds} seeds)"
    std = row[f"{column}_std"]
    if not spread or std is None:
        return text
    return f"{text} ±{gap}{std * factor:.{decimals}f}"


def markdown(board: Mapping[str, Any]) -> str:
    """The leaderboard as Markdown: metrics, classes, domains, cost, tests, remarks, failures."""
    facts = board["settings"]
    lines = [f"# {board['title']}", "", *_verdict(board), _facts(facts)]
    sections = [_accuracy_section(board), _metrics_section(board)]
    if facts["metric"] != DEFAULT:
        sections.reverse()  # the headline comes first
    for metric in class_metrics():
        sections.append(_class_section(board, metric))
    sections += [_domain_section(board["rows"]), _cost_section(board), _tuning_section(board)]
    for section in sections:
        if section:
            lines += ["", *section]
    lists = {
        "Tests": sentences(board),
        "Remarks": remarks(board),
        "Notes": _notes(board),
        "Failed runs": failures(board),
    }
    for title, texts in lists.items():
        if texts:
            lines += ["", f"## {title}", ""]
        for text in texts:
            lines.append(f"- {text}")
    return "\n".join(lines) + "\n"


def _verdict(board: Mapping[str, Any]) -> list[str]:
    """The conclusion, which comes first; nothing if there is none."""
    verdict = board.get("verdict")
    if not verdict:
        return []
    return [f"**{verdict['line']}** {' '.join(verdict['more'])}", ""]


def _facts(facts: Mapping[str, Any]) -> str:
    seeds = f"seed {facts['seeds'][0]}"
    if len(facts["seeds"]) > 1:
        seeds = f"seeds {', '.join(map(str, facts['seeds']))}"
    return (
        f"{facts['clients']} clients, {counted(facts['rounds'], 'round')}, model {facts['model']}, "
        f"{seeds}; fedloom {facts['fedloom']}, torch {facts['torch']}."
    )


def _notes(board: Mapping[str, Any]) -> list[str]:
    """What is special about a method's runs."""
    texts = []
    for row in board["rows"]:
        if row["note"]:
            texts.append(f"{row['method']}: {row['note']}")
    return texts


def _accuracy_section(board: Mapping[str, Any]) -> list[str]:
    gains = gain_columns(headline(board["settings"]["metric"]))
    table = _table(board["rows"], [*ACCURACY, *gains])
    for reference in board["references"]:
        value = f"{100 * reference['value']:.1f}"
        blanks = ["-"] * (len(ACCURACY) + len(gains) - 1)
        table.append(table_line([reference["label"].lower(), value, *blanks]))
    text = (
        "`personal`: mean accuracy of the clients' own models; `common`: of the one model for all. "
        f"{ROUND} `last` is the last round, `best` the one that is best on test data and therefore "
        "optimistic. Worst decile: mean of the worst tenth of the clients. Better than alone: "
        f"share of clients with a better {headline(board['settings']['metric']).in_a_sentence} "
        "than under `local`; gain: the mean difference, positive if the method is better."
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
    text = "Means over clients of their own models."
    for metric in chosen:
        columns.append((_heading(metric), metric.name, metric.factor, metric.decimals))
        text += f" {metric.label}: {uncapped(metric.explanation)}"
    return ["## Other metrics", "", *_table(board["rows"], columns), "", text]


def _heading(metric: Metric) -> str:
    if metric.unit == "percent":
        return f"{metric.label} (%)"
    return metric.label


def _class_section(board: Mapping[str, Any], metric: Metric) -> list[str]:
    """A metric that has a value for each class, unless there are too many classes to read."""
    classes = board["settings"]["classes"]
    rows = []
    for row in board["rows"]:
        means = row["classes"].get(metric.name)
        if means:
            stds = row["classes_std"][metric.name]
            rows.append(_widened(row, range(len(means)), means, stds))
    if not rows or len(classes) > MOST_CLASSES:
        return []
    columns = []
    for number, name in enumerate(classes):
        columns.append((str(name), f"column {number}", metric.factor, metric.decimals))
    text = f"{metric.explanation} Clients use their own models."
    return [f"## {_heading(metric)}", "", *_table(rows, columns), "", text]


def _widened(
    row: Mapping[str, Any], names: Iterable[Any], means: Sequence[Any], stds: Sequence[Any]
) -> dict[str, Any]:
    """The row with a column for each name, which `_table` then finds as `column NAME`."""
    wide = dict(row)
    for name, mean, std in zip(names, means, stds, strict=True):
        wide[f"column {name}"] = mean
        wide[f"column {name}_std"] = std
    return wide


def _domain_section(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row["domains"])
    widened = []
    for row in rows:
        means = list(map(row["domains"].get, names))
        stds = list(map(row["domains_std"].get, names))
        widened.append(_widened(row, names, means, stds))
    columns = [(name, f"column {name}", 100.0, 1) for name in names]
    return [
        "## Domains (%) and spreads (points)",
        "",
        *_table(widened, [*columns, *SPREAD]),
        "",
        "Domain std has ddof 1; σ type (over domains) and σ client (over clients, each with "
        "its domain's accuracy, or with its own if there are not two domains) have ddof 0.",
    ]


def _cost_section(board: Mapping[str, Any]) -> list[str]:
    text = (
        f"{_on_target(board['settings'])} GFLOP: matrix products and convolutions of all "
        "participants' local training in a round, counted once per method. Seconds and memory "
        "depend on the machine."
    )
    return ["## Cost", "", *_table(board["rows"], COST, spreads=False), "", text]


def _tuning_section(board: Mapping[str, Any]) -> list[str]:
    """What was tuned, and what each method got; nothing if nothing was."""
    tuned = board.get("tuning")
    if not tuned:
        return []
    table = [table_line(tuning.HEADINGS), table_line(["---"] * len(tuning.HEADINGS))]
    for line in tuning.lines(tuned):
        table.append(table_line(line))
    return ["## Tuning", "", tuning.summary(tuned), "", *table, "", tuning.BUDGET]


def remarks(board: Mapping[str, Any]) -> list[str]:
    """What the metrics point out, as sentences: a model that predicts one class, say."""
    texts = []
    for row in board["rows"]:
        for remark in row["remarks"]:
            texts.append(f"{row['method']} {remark}.")
    return texts


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
    """The tests in words: the first method against every other, then all against the reference."""
    order = [row["method"] for row in board["rows"] if row["personal"] is not None]
    by_pair = {}
    for test in board["tests"]:
        by_pair[frozenset((test["a"], test["b"]))] = test["sentence"]
    texts = []
    for first in (*order[:1], board["settings"]["against"]):
        for method in order:
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


def _table(rows: Sequence[Mapping[str, Any]], columns: Columns, spreads: bool = True) -> list[str]:
    headings = [heading for heading, *_ in columns]
    lines = [table_line(["method", *headings]), table_line(["---"] + ["---:"] * len(columns))]
    for row in rows:
        figures = []
        for _, name, factor, digits in columns:
            figures.append(cell(row, name, factor, digits, spreads))
        lines.append(table_line([row["method"], *figures]))
    return lines


def table_line(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"
