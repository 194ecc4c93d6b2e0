"""Modules as ONNX files: written, checked against torch, and run with onnxruntime."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import FedloomError
from .exported import described
from .stages import Piece

TOLERANCE = 1e-4  # of ONNX against torch, relative to the largest score
_REGISTRATION = "torch.onnx._internal.exporter._registration"  # what logs missing operators
ABOUT = "fedloom"  # where the description stands in a file's metadata


class _WithProbabilities(nn.Module):
    """Scores, and what they are as probabilities."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.module(x)
        return scores, torch.softmax(scores, dim=1)


@torch.no_grad()
def write_onnx(module: nn.Module, x: Tensor, file: Path, about: Mapping[str, Any]) -> None:
    """Write a module as ONNX for any number of samples, with `about` in the file's metadata.

    The file is kept only if onnxruntime gives the module's scores for the samples `x`. If a piece
    of the module leaves some samples undecided, these may differ, and a warning says how many do.
    """
    _runtime()
    with warnings.catch_warnings(), _silent_about_torchvision():
        warnings.simplefilter("ignore")  # the exporter warns of packages that we do not need
        try:
            program = torch.onnx.export(
                _WithProbabilities(module).eval(),
                (x,),
                input_names=["x"],
                output_names=["scores", "probabilities"],
                dynamo=True,
                verbose=False,
                dynamic_shapes=({0: torch.export.Dim("samples")},),
            )
        except Exception as error:  # the exporter raises many kinds
            raise FedloomError(
                f"this model does not go into ONNX: {str(error).strip().splitlines()[0]}"
            ) from error
    assert program is not None
    program.model.metadata_props[ABOUT] = json.dumps(about)
    for name in ("classes", "input"):  # for readers that know nothing of fedloom
        program.model.metadata_props[name] = json.dumps(about[name])
    program.save(str(file), external_data=False)
    session = Session(file)
    apart = differing(session(x), module(x))
    alone = differing(session(x[:1]), module(x[:1]))  # a number may have been fixed on the way
    if len(apart) > _undecided(module) * len(x) or len(alone) > len(apart):
        file.unlink()
        raise FedloomError(
            "onnxruntime and torch disagree about this model; no ONNX file was written."
        )
    if apart:
        warnings.warn(
            f"onnxruntime and torch disagree about {len(apart)} of {len(x)} samples, for which "
            "rounding decides (such as the phase of a frequency that an image does not have).",
            stacklevel=3,
        )


@contextmanager
def _silent_about_torchvision() -> Iterator[None]:
    """Drop the exporter's lines about operators of torchvision, which no model here has."""
    logger = logging.getLogger(_REGISTRATION)

    def matters(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("torchvision is not installed")

    logger.addFilter(matters)
    try:
        yield
    finally:
        logger.removeFilter(matters)


def _undecided(module: nn.Module) -> float:
    """The share of samples that a module's pieces leave to rounding."""
    return max([part.undecided for part in module.modules() if isinstance(part, Piece)], default=0)


def differing(ours: Tensor, theirs: Tensor) -> list[int]:
    """The samples about which scores disagree.

    A class that cannot be predicted has a score of -infinity in both.
    """
    there = torch.isfinite(theirs)
    largest = theirs.masked_fill(~there, 0).abs().max()
    bound = TOLERANCE * largest.clamp(min=1)
    gap = (ours - theirs).abs().masked_fill(~there & (ours == theirs), 0)
    same = (gap <= bound).flatten(1).all(1)  # false where a gap is no number
    return (~same).nonzero().flatten().tolist()


def close(ours: Tensor, theirs: Tensor) -> bool:
    """Whether scores agree about all samples."""
    return not differing(ours, theirs)


class Session:
    """An ONNX file that was written here, ready to run."""

    def __init__(self, file: Path) -> None:
        self.file = file
        if not file.is_file():
            raise FedloomError(f"there is no file {file}.")
        try:
            self._session = _runtime().InferenceSession(
                str(file), providers=["CPUExecutionProvider"]
            )
        except FedloomError:
            raise
        except Exception as error:  # onnxruntime raises classes of its own
            cause = str(error).strip().splitlines()[0]
            raise FedloomError(f"{file} is no ONNX model: {cause}") from error
        found = self._session.get_modelmeta().custom_metadata_map
        if ABOUT not in found:
            raise FedloomError(f"{file} was not written by `fedloom export`.")
        self.about = described(found[ABOUT].encode(), file)

    def __call__(self, x: Tensor) -> Tensor:
        try:
            scores = self._session.run(["scores"], {"x": x.contiguous().numpy()})[0]
        except Exception as error:  # onnxruntime raises classes of its own
            cause = " ".join(str(error).split())
            raise FedloomError(f"{self.file} cannot be run: {cause}") from error
        return torch.from_numpy(scores)


def _runtime() -> Any:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - torch's exporter wants it
    except ImportError:
        raise FedloomError(
            "onnxruntime is not installed; `pip install 'fedloom[onnx]'` brings it."
        ) from None
    return onnxruntime
