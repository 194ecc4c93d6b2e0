"""ONNX files: what is said while they are written, and when there is none."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from fedloom.core.errors import FedloomError
from fedloom.models.onnx import Session, _silent_about_torchvision, write_onnx


def test_the_exporter_says_nothing_of_torchvision(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("onnxscript")
    about = {"classes": ["a", "b"], "input": {"kind": "vector"}}
    with pytest.raises(FedloomError):  # such a description is not enough for a reader
        write_onnx(nn.Linear(3, 2), torch.randn(4, 3), tmp_path / "model.onnx", about)
    assert (tmp_path / "model.onnx").is_file()
    assert [line for line in caplog.messages if "torchvision" in line] == []


def test_only_these_lines_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    with _silent_about_torchvision():
        logger.warning("torchvision is not installed. Skipping %s", "torchvision::nms")
        logger.warning("something else")
    logger.warning("torchvision is not installed. Skipping %s", "torchvision::nms")
    assert len(caplog.messages) == 2 and caplog.messages[0] == "something else"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match=r"there is no file .*missing\.onnx\.$"):
        Session(tmp_path / "missing.onnx")
