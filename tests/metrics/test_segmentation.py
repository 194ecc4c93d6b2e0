import math

import numpy as np
import pytest
import torch

from fedloom.core.errors import FedloomError
from fedloom.metrics.segmentation import confusion, dice, foreground, iou, overlap, pixel_accuracy

# Ten pixels; class 3 is neither there nor predicted, class 2 is there but never predicted.
TARGET = torch.tensor([[0, 0, 0, 0, 1], [1, 1, 2, 0, 1]])
PRED = torch.tensor([[0, 0, 1, 0, 1], [1, 0, 1, 0, 1]])
MATRIX = torch.tensor([[4, 1, 0, 0], [1, 3, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]])


def test_confusion_by_hand() -> None:
    assert torch.equal(confusion(PRED, TARGET, 4), MATRIX)
    assert torch.equal(confusion(TARGET, PRED, 4), MATRIX.T)
    assert torch.equal(confusion(PRED.to(torch.uint8), TARGET.to(torch.uint8), 4), MATRIX)
    assert torch.equal(confusion(PRED[:0], TARGET[:0], 2), torch.zeros(2, 2, dtype=torch.int64))
    big = torch.full((300,), 200, dtype=torch.uint8)  # 200 * 201 does not fit a byte
    assert confusion(big, big, 201)[200, 200] == 300


def test_figures_by_hand() -> None:
    # Areas: class 0 true 5, predicted 5, both 4; class 1: 4, 5, 3; class 2: 1, 0, 0.
    assert float(pixel_accuracy(MATRIX)) == pytest.approx(0.7)
    assert dice(MATRIX).tolist() == pytest.approx([8 / 10, 6 / 9, 0, math.nan], nan_ok=True)
    assert iou(MATRIX).tolist() == pytest.approx([4 / 6, 3 / 6, 0, math.nan], nan_ok=True)
    assert float(foreground(dice(MATRIX))) == pytest.approx((6 / 9 + 0) / 2)
    assert float(foreground(iou(MATRIX))) == pytest.approx(0.25)
    stacked = torch.stack([MATRIX, MATRIX.T])
    assert dice(stacked).shape == (2, 4) and iou(stacked)[0, :3].equal(iou(MATRIX)[:3])


def test_predicted_but_not_there_counts_as_nothing_right() -> None:
    matrix = torch.tensor([[5, 0, 2], [0, 3, 0], [0, 0, 0]])
    assert dice(matrix)[2] == 0 and iou(matrix)[2] == 0
    assert float(foreground(dice(matrix))) == 0.5


def test_overlap_of_clients() -> None:
    one = [[4, 1, 0], [1, 3, 0], [0, 0, 0]]  # dice of class 1: 6/8, iou 3/5; class 2 absent
    two = [[0, 0, 0], [0, 2, 2], [0, 0, 4]]  # class 1: 4/6 and 2/4; class 2: 8/10 and 4/6
    none = [[0, 0, 0]] * 3  # a client without test samples
    blank = [[7, 0, 0], [0, 0, 0], [0, 0, 0]]  # only background
    found = overlap(np.array([one, two, none, blank]))
    assert found["pixel_accuracy"] == pytest.approx((7 / 9 + 6 / 8 + 1) / 3)
    second = (4 / 6 + 8 / 10) / 2
    assert found["dice_clients"] == [pytest.approx(0.75), pytest.approx(second), None, None]
    assert found["iou_clients"] == [
        pytest.approx(0.6),
        pytest.approx((2 / 4 + 4 / 6) / 2),
        None,
        None,
    ]
    assert found["dice"] == pytest.approx((0.75 + second) / 2)
    # Together: [[11, 1, 0], [1, 5, 2], [0, 0, 4]]
    assert found["dice_classes"] == pytest.approx([22 / 24, 10 / 14, 8 / 10])
    assert found["iou_classes"] == pytest.approx([11 / 13, 5 / 9, 4 / 6])
    assert found["dice_pooled"] == pytest.approx((10 / 14 + 8 / 10) / 2)
    assert found["iou_pooled"] == pytest.approx((5 / 9 + 4 / 6) / 2)


def test_overlap_of_nothing() -> None:
    found = overlap(torch.zeros(2, 2, 2, dtype=torch.int64))
    assert (
        found["dice"] is None
        and found["pixel_accuracy"] is None
        and found["iou_clients"] == [None, None]
    )


def test_errors() -> None:
    with pytest.raises(
        FedloomError, match=r"predictions of shape \(2, 5\) do not fit targets of shape \(5,\)"
    ):
        confusion(PRED, TARGET[0], 4)
    for pred in (torch.tensor([2]), torch.tensor([-1])):
        with pytest.raises(FedloomError, match="must lie between 0 and 1"):
            confusion(pred, torch.tensor([0]), 2)
        with pytest.raises(FedloomError, match="must lie between 0 and 1"):
            confusion(torch.tensor([0]), pred, 2)
    with pytest.raises(FedloomError, match=r"one square matrix per client is needed, not \(4, 4\)"):
        overlap(MATRIX)
