"""What a metric is, and the registry that every other room reads.

A worker does not send predictions anywhere. For each client it fills in a few *tallies*: short
vectors of counts and sums that add up over samples and over clients. A metric turns the vector of
one tally into one number, so the same function gives a client's value and, from the sum of all
clients' vectors, the value of all samples together. Several metrics may share a tally.

A metric is one function with a decorator, in any file of this package or in a file that another
package names in its entry points (`fedloom.metrics`):

    @metric("error", "Error", COUNTS, "Share of the samples whose class is wrong.", higher=False)
    def error(rows: np.ndarray) -> np.ndarray:
        return 1 - rows[..., 0] / rows[..., 1]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from ..core.errors import FedloomError, unknown
from ..core.registry import Registry

Needs = Literal["predictions", "scores"]
Kind = Literal["classification", "segmentation"]
Domains = Sequence[str | None]

DEFAULT = "accuracy"


class Unit(NamedTuple):
    """How a value is shown: times `factor`, with `decimals` decimals, followed by `sign`."""

    factor: int
    decimals: int
    sign: str


# A plain number gets two decimals more, so that it tells as much as a percentage.
UNITS = {"percent": Unit(100, 1, " %"), "number": Unit(1, 3, "")}


@dataclass(frozen=True)
class Answers:
    """What a predictor says about the samples of several clients.

    Samples stand one client after another; of a map, every pixel is a sample. `owner` numbers the
    client of each sample from 0. `scores` has a row per sample and a column per class, and is None
    for maps.
    """

    predicted: np.ndarray
    labels: np.ndarray
    owner: np.ndarray
    clients: int
    classes: int
    scores: np.ndarray | None = None

    @cached_property
    def sizes(self) -> np.ndarray:
        """How many samples each client has."""
        return np.bincount(self.owner, minlength=self.clients)

    @cached_property
    def right(self) -> np.ndarray:
        """Whether each sample's class is predicted."""
        return self.predicted == self.labels

    @cached_property
    def probabilities(self) -> np.ndarray:
        """The softmax of the scores; a score that is no number has probability 0."""
        if self.scores is None:
            raise FedloomError("maps have no scores to make probabilities from.")
        powers = self.scores - self.scores.max(1, keepdims=True)
        np.exp(powers, out=powers)
        powers /= powers.sum(1, keepdims=True)
        if not np.isfinite(powers.sum()):
            np.nan_to_num(powers, copy=False)
        return powers

    def count(
        self, cells: np.ndarray, number: int, weights: np.ndarray | None = None
    ) -> np.ndarray:
        """How many samples of each client fall into each of `number` cells, or their weight."""
        if self.clients > 1:
            cells = cells + number * self.owner
        rows = np.bincount(cells, weights, minlength=number * self.clients)
        return rows.reshape(self.clients, number)


@dataclass(frozen=True)
class Tally:
    """A vector per client that adds up over samples and over clients.

    `width` says how long it is for a number of classes. `count` makes a row for each client.
    `possible` says whether a row can come from this many samples (or pixels of maps): a server does
    not believe every row that a site of a real federation reports.
    """

    name: str
    needs: Needs
    width: Callable[[int], int]
    count: Callable[[Answers], np.ndarray]
    possible: Callable[[np.ndarray, int], bool] = lambda row, samples: True


Value = Callable[[np.ndarray], np.ndarray]  # rows of a tally -> a number each, NaN where undefined


@dataclass(frozen=True)
class Metric:
    """One figure of merit.

    `value` turns rows of the tally into one number each, `per_class` into one number for each
    class. `headline` says whether `--metric` may name it. `key` names the mean over clients in a
    line of metrics. `reference` marks a figure of the data that a model should beat. `remark` makes
    a sentence of the clients' values where there is something to point out. `figures` replaces the
    usual figures of a line of metrics by others.
    """

    name: str
    label: str
    tally: Tally
    explanation: str
    value: Value | None = None
    per_class: Value | None = None
    headline: bool = True
    applies: tuple[Kind, ...] = ("classification",)
    higher: bool = True
    unit: Literal["percent", "number"] = "percent"
    reference: bool = False
    key: str = ""
    remark: Callable[[np.ndarray], str | None] | None = None
    figures: Callable[[np.ndarray, Domains], dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        if not self.key:
            object.__setattr__(self, "key", f"{self.name}_mean")

    @property
    def needs(self) -> Needs:
        """Whether the metric is made from predicted classes or from scores."""
        return self.tally.needs

    @property
    def factor(self) -> int:
        """By what a value is multiplied before it is shown."""
        return UNITS[self.unit].factor

    @property
    def decimals(self) -> int:
        """How many decimals a table shows."""
        return UNITS[self.unit].decimals

    @property
    def sign(self) -> str:
        """What follows a value that is shown."""
        return UNITS[self.unit].sign

    @property
    def in_a_sentence(self) -> str:
        """The label as it is written inside a sentence: `macro F1`, but `AUC`."""
        first_word = self.label.split()[0]
        if first_word[1:].islower():
            return self.label[0].lower() + self.label[1:]
        return self.label

    def values(self, rows: np.ndarray) -> np.ndarray:
        """A number for each row, NaN where the metric is not defined."""
        if self.value is None:
            raise FedloomError(f"{self.name} has one value per class, not one in all.")
        return _quietly(self.value, rows)

    def summary(self, rows: np.ndarray, domains: Domains) -> dict[str, Any]:
        """The metric's figures in a line of metrics; `rows` has the tally of every client."""
        if self.figures:
            return self.figures(rows, domains)
        figures: dict[str, Any] = {}
        if self.remark:
            sentence = self.remark(self.values(rows))
            if sentence:
                figures["remarks"] = [sentence]
            return figures
        if self.value:
            figures[self.key] = plain(mean(self.values(rows)))
            figures[f"{self.name}_pooled"] = plain(self.values(rows.sum(0)))
        if self.per_class:
            pooled = _quietly(self.per_class, rows.sum(0))
            figures[f"{self.name}_classes"] = plain([round(v, 4) for v in pooled.tolist()])
        return figures

    def shown(self, value: float | None, decimals: int = 1) -> str:
        """A value as text, without its unit; `decimals` is how many a percentage would have."""
        if value is None:
            return "-"
        extra = self.decimals - UNITS["percent"].decimals
        return f"{self.factor * value:.{decimals + extra}f}"

    def better(self, a: float, b: float) -> bool:
        """Whether `a` is better than `b`."""
        if self.higher:
            return a > b
        return a < b


METRICS: Registry[Metric] = Registry(
    "metric", "fedloom.metrics", "fedloom.metrics", decorator="metric"
)


def metric(
    name: str, label: str, tally: Tally, explanation: str, **options: Any
) -> Callable[[Value], Value]:
    """A decorator that registers the function as the value of a metric that can be the headline."""

    def add(value: Value) -> Value:
        METRICS.add(name, Metric(name, label, tally, explanation, value=value, **options))
        return value

    return add


def side_metric(
    name: str, label: str, tally: Tally, explanation: str, per_class: bool = False, **options: Any
) -> Callable[[Value], Value]:
    """A decorator for a metric that is shown but does not judge a model by one number.

    The help of `--metric` lists what `metric` decorates, without an import, and so leaves these
    out. With `per_class`, the function returns one number for each class.
    """

    def add(function: Value) -> Value:
        role = "value"
        if per_class:
            role = "per_class"
        given = {role: function, "headline": False, **options}
        METRICS.add(name, Metric(name, label, tally, explanation, **given))
        return function

    return add


def kind_of(data_kind: str) -> Kind:
    """Whether samples of this kind have one class each or a map of classes."""
    if data_kind == "segmentation":
        return "segmentation"
    return "classification"


def applying(kind: Kind) -> list[Metric]:
    """All metrics for a kind of data: accuracy first, then the others by name."""
    chosen = [entry for _, entry in METRICS.items() if kind in entry.applies]
    return sorted(chosen, key=lambda entry: entry.name != DEFAULT)


def headline(name: str) -> Metric:
    """The metric of that name; one that does not judge a model by one number is refused."""
    if name not in METRICS:
        raise unknown(METRICS.kind, name, headlines())
    entry = METRICS.find(name)
    if not entry.headline:
        raise FedloomError(
            f"{entry.name} cannot be the headline: it is not one number per model. "
            f"These can: {', '.join(headlines())}."
        )
    return entry


def headlines() -> list[str]:
    """The names that `--metric` takes."""
    return [entry.name for _, entry in METRICS.items() if entry.headline]


@dataclass(frozen=True)
class Sheet:
    """Which tallies a row of scores holds, one after another.

    Worker and server make the sheet from the same few facts, so a row needs no names in it.
    """

    tallies: tuple[Tally, ...]
    classes: int

    @cached_property
    def places(self) -> dict[str, slice]:
        """Where each tally stands in a row."""
        places = {}
        start = 0
        for tally in self.tallies:
            end = start + tally.width(self.classes)
            places[tally.name] = slice(start, end)
            start = end
        return places

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        last = self.tallies[-1]
        return self.places[last.name].stop

    @cached_property
    def needs_scores(self) -> bool:
        """Whether predicted classes alone are not enough."""
        return any(tally.needs == "scores" for tally in self.tallies)

    def rows(self, answers: Answers) -> np.ndarray:
        """A row of scores for each client."""
        columns = []
        with np.errstate(all="ignore"):
            for tally in self.tallies:
                columns.append(tally.count(answers))
        return np.concatenate(columns, axis=1)

    def has(self, metric: Metric) -> bool:
        """Whether the metric's tally is counted."""
        return metric.tally.name in self.places

    def part(self, rows: np.ndarray, tally: Tally) -> np.ndarray:
        """The columns of a tally."""
        return rows[:, self.places[tally.name]]


@lru_cache(maxsize=32)
def sheet(kind: Kind, classes: int, split: str, headline_name: str = DEFAULT) -> Sheet:
    """What is counted on a split.

    Test samples are judged by every metric, validation samples by accuracy and the headline.
    """
    entries = {entry.name: entry for entry in applying(kind)}
    if headline_name not in entries:
        raise FedloomError(f"the metric {headline_name} does not apply to {kind}.")
    tallies: dict[str, Tally] = {}
    for name, entry in entries.items():
        if split == "test" or name in (DEFAULT, headline_name):
            tallies.setdefault(entry.tally.name, entry.tally)
    return Sheet(tuple(tallies.values()), classes)


def mean(values: np.ndarray) -> float:
    """The mean over those that have a value; NaN if none has."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return float("nan")
    return float(defined.mean())


def plain(value: Any) -> Any:
    """A number for JSON, None in place of NaN; lists are followed."""
    if isinstance(value, list):
        return [plain(v) for v in value]
    number = float(value)
    if not np.isfinite(number):
        return None
    return number


def _quietly(value: Value, rows: np.ndarray) -> np.ndarray:
    """The value without NumPy's warnings: a division by no samples is what NaN stands for."""
    with np.errstate(all="ignore"):
        return np.asarray(value(rows))
