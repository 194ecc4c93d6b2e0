"""What a comparison tuned, in words: values, budget, seeds, and what each method got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..metrics.registry import headline
from .figures import ABSENT

SEARCH = {
    "grid": "by trying every combination",
    "random": "by trying combinations at random",
    "tpe": "by Optuna's TPE",
}
BUDGET = (
    "A method tries the settings that it has; what is left of its runs goes to further seeds for "
    "all of its combinations."
)
HEADINGS = ("Method", "chosen", "validation", "runs", "combinations", "seeds")


def summary(tuning: Mapping[str, Any]) -> str:
    """What was tuned, how, with which budget and on which seeds."""
    settings = []
    for name, values in tuning["values"].items():
        settings.append(f"{name} ({', '.join(map(str, values))})")
    runs, rounds = _counted(tuning["trials"], "run"), _counted(tuning["rounds"], "round")
    return (
        f"Tuned on validation data before the comparison: {', '.join(settings)}, "
        f"{SEARCH[tuning['search']]}, with a budget of {runs} of {rounds} for each "
        f"method, on {_seeds(tuning['seeds'])}, which the comparison does not have. "
        f"{headline(tuning['metric']).label} on validation data chose; test data decided nothing."
    )


def _counted(number: int, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    return f"{number} {what}s"


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"seeds {', '.join(map(str, seeds))}"


def settings_text(values: Mapping[str, Any]) -> str:
    """`lr = 0.1, mu = 1`."""
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def got(method: Mapping[str, Any]) -> str:
    """What a method runs with in the comparison."""
    if not method["settings"]:
        return "has none of these settings"
    if method["chosen"] is None:
        return "its own settings, because every trial failed"
    return settings_text(method["chosen"])


def lines(tuning: Mapping[str, Any]) -> list[list[str]]:
    """A line of texts for each method, below `HEADINGS`."""
    metric = headline(tuning["metric"])
    made = []
    for method in tuning["methods"]:
        value = ABSENT
        if method["validation"] is not None:
            value = metric.shown(method["validation"]) + metric.sign
        tried = [row for row in method["rows"] if not row["failed"]]
        failed = len(method["rows"]) - len(tried)
        combinations = f"{len(method['rows'])} of {method['combinations']}"
        if not method["settings"]:
            combinations = ABSENT
        if failed:
            combinations += f", {failed} failed"
        counts = [str(method["trials"]), combinations, str(len(method["seeds"]))]
        made.append([method["method"], got(method), value, *counts])
    return made


def trials(tuning: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """By method, every combination that it tried and its value on validation data, best first."""
    metric = headline(tuning["metric"])
    tables = {}
    for method in tuning["methods"]:
        valued = []
        failed = []
        for row in method["rows"]:
            text = settings_text(row["values"])
            if row["failed"]:
                failed.append((text, f"failed: {row['failed'][0]['error']}"))
            elif row["validation"] is not None:
                shown = metric.shown(row["validation"]) + metric.sign
                if row["validation_std"] is not None:
                    shown += f" ± {metric.shown(row['validation_std'])}"
                valued.append((row["validation"], text, shown))
        valued.sort(key=lambda each: each[0], reverse=metric.higher)
        if valued or failed:
            tables[method["method"]] = [(text, shown) for _, text, shown in valued] + failed
    return tables
