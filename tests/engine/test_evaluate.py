"""Evaluation, with counts worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.lookup import make
from fedloom.data.dataset import Dataset
from fedloom.data.federation import Client, Federation
from fedloom.engine.checkpoint import Store
from fedloom.engine.engine import first
from fedloom.engine.evaluate import Evaluation, TrainedScores
from fedloom.executors.base import Result
from fedloom.executors.inplace import Inplace
from fedloom.metrics.registry import sheet
from fedloom.models.base import Split
from fedloom.testing.small_world import trace

# The model predicts the larger of two inputs, so a sample [1, 0] is taken for class 0.
PREDICTED = [0, 0, 1, 1, 0, 1, 0, 1, 0, 0]
LABELS = [0, 1, 1, 1, 0, 0, 0, 1, 0, 1]


def three_clients() -> Federation:
    """Client 0 tests on rows 0 to 3 (3 right), client 1 on 4 and 5 (1 right), client 2 on none.

    They validate on rows 6 and 7 (2 right), 8 and 9 (1 right), and none.
    """
    x = nn.functional.one_hot(torch.tensor(PREDICTED), 2).float()
    nowhere = torch.zeros(len(LABELS), dtype=torch.int64)
    no_test = torch.zeros(len(LABELS), dtype=torch.bool)
    data = Dataset(x, torch.tensor(LABELS), nowhere, no_test, ("a", "b"), ("only",), "hand")
    rows = np.arange(len(LABELS))
    clients = (
        Client(rows[:2], rows[6:8], rows[:4]),
        Client(rows[2:4], rows[8:], rows[4:6]),
        Client(rows[4:6], rows[:0], rows[:0]),
    )
    return Federation(data, clients)


def evaluate(trained: dict[int, Result], metric: str = "accuracy") -> dict:
    head = nn.Linear(2, 2)
    with torch.no_grad():
        head.weight.copy_(torch.eye(2))
        head.bias.zero_()
    model = Split(nn.Flatten(), head, 2)
    worker = ClientWorker(make("fedavg"), three_clients(), model, Training(), seed=0)
    evaluation = Evaluation(worker, Inplace(worker), Store(), first(worker), 1, metric)
    scores = TrainedScores(worker)
    for k, result in trained.items():
        scores.add(k, result)
    return evaluation.run(scores)


def test_one_model_for_all() -> None:
    record = evaluate({})
    assert record["clients"]["common"] == [0.75, 0.5, None]
    assert record["common"]["accuracy_mean"] == pytest.approx((0.75 + 0.5) / 2)
    assert record["common"]["accuracy_weighted"] == pytest.approx(4 / 6)
    assert record["common"]["worst_client"] == 0.5
    # Labels are 0 1 1 1 and 0 0, so the most frequent class has 3 of 4 and 2 of 2.
    assert record["common"]["majority_mean"] == pytest.approx((0.75 + 1) / 2)
    # Client 0 has all of class 0 and 2 of 3 of class 1 right; client 1 has half of class 0.
    assert record["common"]["balanced_accuracy_mean"] == pytest.approx((5 / 6 + 1 / 2) / 2)
    assert record["validation"] == {"personal": 0.75, "common": 0.75}
    assert record["common"]["auc_mean"] == pytest.approx(2.5 / 3)


def test_a_client_that_did_not_train_has_after_what_it_has_before() -> None:
    # counts, then right, actual and predicted by class: client 0 gets everything right.
    # What metrics of scores count comes after that and is left at zero.
    width = max(place.stop for place in sheet("classification", 2, "test").places.values())
    row = torch.zeros(1, width, dtype=torch.float64)
    row[0, :8] = torch.tensor([4.0, 4, 1, 3, 1, 3, 1, 3])
    held = torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    record = evaluate({0: Result((0,), scores={"test": row, "validation": held})})
    assert record["clients"]["before"] == [0.75, 0.5, None]
    assert record["clients"]["after"] == [1.0, 0.5, None]
    assert record["after"]["accuracy_mean"] == 0.75
    assert record["validation"]["personal"] == 0.75  # FedAvg is judged before training


def test_a_metric_of_scores_as_the_headline() -> None:
    record = evaluate({}, "nll")
    # A sample has score 1 for the predicted class and 0 for the other.
    right, wrong = np.log(1 + np.exp(-1)), np.log(1 + np.exp(1))
    expected = ((3 * right + wrong) / 4 + (right + wrong) / 2) / 2
    assert record["common"]["nll_mean"] == pytest.approx(expected, abs=1e-6)
    # Client 0 ranks 2 of 3 pairs right and ties the third; client 1 has one class and no AUC.
    assert record["common"]["auc_mean"] == pytest.approx(2.5 / 3)
    held = (right + (right + wrong) / 2) / 2
    assert record["validation"]["common"] == pytest.approx(held, abs=1e-6)


def test_a_lengthened_run_has_the_metrics_of_a_straight_one(tmp_path: Path) -> None:
    straight = trace(make("fedper"), rounds=3, metric="nll")
    start = trace(make("fedper"), folder=tmp_path, rounds=2, metric="nll")
    rest = trace(make("fedper"), folder=tmp_path, rounds=3, metric="nll")
    assert start.metrics + rest.metrics == straight.metrics
    assert "auc_mean" in straight.metrics[0]["personal"]
