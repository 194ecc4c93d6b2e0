"""Metrics against numbers worked out by hand or the slow way, alone and for several clients."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fedloom.core.errors import FedloomError
from fedloom.metrics.registry import METRICS, Answers, applying, headline, headlines, sheet

RNG = np.random.default_rng(0)
CLASSES = 3
SIZES = (40, 1, 25)


def answers(scores: np.ndarray, labels: np.ndarray, sizes: tuple[int, ...]) -> Answers:
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return Answers(scores.argmax(1), labels, owner, len(sizes), scores.shape[1], scores)


def drawn() -> tuple[np.ndarray, np.ndarray]:
    number = sum(SIZES)
    scores = (
        RNG.normal(size=(number, CLASSES)).round(1).astype(np.float32)
    )  # rounded: some are tied
    return scores, RNG.integers(0, CLASSES, number)


def values(name: str, given: Answers) -> np.ndarray:
    layout = sheet("classification", given.classes, "test", "auc")
    metric = METRICS.find(name)
    return metric.values(layout.part(layout.rows(given), metric.tally))


def slow_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    shares = powers / powers.sum(1, keepdims=True)
    areas = []
    for c in range(CLASSES):
        with_class, without = shares[labels == c, c], shares[labels != c, c]
        if len(with_class) and len(without):
            gaps = with_class[:, None] - without[None]
            areas.append(((gaps > 0) + 0.5 * (gaps == 0)).mean())
    return float(np.mean(areas)) if areas else float("nan")


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    scores, labels = drawn()
    found = values("auc", answers(scores, labels, SIZES))
    starts = np.cumsum((0, *SIZES))
    for k in range(len(SIZES)):
        own = slice(starts[k], starts[k + 1])
        assert found[k] == pytest.approx(slow_auc(scores[own], labels[own]), nan_ok=True)
    assert np.isnan(found[1])  # one sample has no pair


def test_several_clients_at_once_are_counted_as_each_alone() -> None:
    scores, labels = drawn()
    layout = sheet("classification", CLASSES, "test", "auc")
    together = layout.rows(answers(scores, labels, SIZES))
    starts = np.cumsum((0, *SIZES))
    for k, size in enumerate(SIZES):
        own = slice(starts[k], starts[k + 1])
        alone = layout.rows(answers(scores[own], labels[own], (size,)))
        assert together[k] == pytest.approx(alone[0], rel=1e-12)


def test_by_hand() -> None:
    # Two classes, probabilities of the first: 0.8, 0.8, 0.4, 0.9; labels 0, 1, 1, 0.
    p = np.array([0.8, 0.8, 0.4, 0.9])
    given = answers(np.log(np.stack([p, 1 - p], 1)), np.array([0, 1, 1, 0]), (4,))
    assert values("accuracy", given)[0] == 0.75
    assert values("balanced_accuracy", given)[0] == pytest.approx((1 + 0.5) / 2)
    assert values("macro_f1", given)[0] == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert values("nll", given)[0] == pytest.approx(-np.log([0.8, 0.2, 0.6, 0.9]).mean())
    # Bins: 0.8 twice, one of them right; 0.6 right; 0.9 right.
    assert values("ece", given)[0] == pytest.approx((0.6 + 0.4 + 0.1) / 4)
    assert values("auc", given)[0] == pytest.approx((3 + 0.5) / 4)
    assert values("majority", given)[0] == 0.5


def test_a_certain_mistake_does_not_decide_everything() -> None:
    given = answers(np.array([[0.0, -np.inf], [np.nan, 0.0]]), np.array([1, 1]), (2,))
    assert np.isfinite(values("nll", given)).all()


def test_validation_counts_accuracy_and_the_headline_only() -> None:
    assert [t.name for t in sheet("classification", 2, "validation").tallies] == ["counts"]
    layout = sheet("classification", 2, "validation", "nll")
    assert [t.name for t in layout.tallies] == ["counts", "log_loss"]
    assert sheet("segmentation", 2, "test").places["confusion"] == slice(2, 6)


def test_everything_is_counted_on_test_samples() -> None:
    usual = sheet("classification", 2, "test")
    assert {t.name for t in usual.tallies} == {"counts", "by_class", "auc", "gaps", "log_loss"}
    assert usual.has(METRICS.find("nll"))


def test_the_headline_is_one_number_that_fits_the_data() -> None:
    assert headline("AUC").name == "auc"
    with pytest.raises(FedloomError, match="did you mean 'balanced_accuracy'"):
        headline("balanced_acuracy")
    with pytest.raises(FedloomError, match="recall cannot be the headline"):
        headline("recall")
    with pytest.raises(FedloomError, match=r"unknown metric 'recal'; did you mean (?!'recall')"):
        headline("recal")
    with pytest.raises(FedloomError, match="dice does not apply to classification"):
        sheet("classification", 2, "test", "dice")


@pytest.mark.parametrize("module", ["registry", "accuracy", "probabilistic"])
def test_the_hint_does_not_depend_on_what_is_loaded(module: str) -> None:
    code = f"import fedloom.metrics.{module}\n"
    code += "from fedloom.metrics.registry import headline\n"
    code += "try: headline('balanced_acuracy')\nexcept ValueError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "unknown metric 'balanced_acuracy'; did you mean 'balanced_accuracy'?\n"


def test_help_lists_the_metrics_that_can_be_the_headline() -> None:
    from fedloom.cli.options import METRICS as LISTED

    assert LISTED.split(", ") == headlines()
    aside = {name for name, metric in METRICS.items() if not metric.headline}
    assert aside == {"majority", "one_class", "recall"}


def test_every_metric_explains_itself() -> None:
    for kind in ("classification", "segmentation"):
        assert applying(kind)[0].name == "accuracy"
    for name, metric in METRICS.items():
        assert metric.name == name and len(metric.explanation.split()) >= 5
        assert metric.explanation.endswith(".")
