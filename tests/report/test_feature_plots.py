"""Views of features: they compute what cases by hand give, and look at the right models."""

from __future__ import annotations

import io
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn

import fedloom
from fedloom.core.errors import FedloomError
from fedloom.engine.folder import Run
from fedloom.models import split
from fedloom.parts.decoupling import corrections, with_corrections
from fedloom.report import RunData, render
from fedloom.report.entries import gather
from fedloom.report.feature_plots import look
from fedloom.report.feature_plots.grad_cam import class_maps, part_maps
from fedloom.report.feature_plots.opened import opened
from fedloom.report.feature_plots.spectrum import effective_rank, singular
from fedloom.report.figures import Chart, Heat

FEW = {"limit_train": 10, "limit_test": 10}
SMALL = {"clients": 4, "rounds": 1, "width": 4, "features": 16, "norm": True, "steps": 2} | FEW
QUIET = Console(file=io.StringIO())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    return [
        fedloom.run(m, "digits4", out=folder / m, **SMALL) for m in ("local", "fedavg", "fedper")
    ]


def test_singular_values_are_those_of_the_covariance() -> None:
    features = torch.from_numpy(
        np.random.default_rng(0).normal(size=(50, 6)) * [3, 2, 1, 1, 0.1, 0]
    )
    wanted = np.linalg.svd(np.cov(features.numpy().T), compute_uv=False)
    assert singular(features).numpy() == pytest.approx(wanted, abs=1e-9)


def test_effective_rank_counts_directions() -> None:
    assert effective_rank(torch.tensor([1.0, 0.0, 0.0])) == pytest.approx(1)
    assert effective_rank(torch.ones(7)) == pytest.approx(7)
    assert effective_rank(torch.tensor([3.0, 1.0])) == pytest.approx(
        math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    )


def test_grad_cam_finds_what_decides() -> None:
    """For a network that sums the brightness of the image, the map is bright where the image is."""
    conv = nn.Conv2d(1, 1, 1, bias=False)
    head = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        conv.weight.fill_(1.0)
        head.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    network = split(nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head))
    for p in network.parameters():
        p.requires_grad_(False)  # as in a frozen encoder
    x = torch.zeros(1, 1, 8, 8)
    x[..., 2:4, 5:7] = 1.0
    maps = class_maps(network, x, torch.tensor([0]))
    assert maps.shape == (1, 8, 8)
    assert torch.equal(maps[0] > 0.5, x[0, 0] > 0.5)
    assert not class_maps(network, x, torch.tensor([1])).any()  # nothing speaks for the other class


def test_grad_cam_of_decoupled_parts() -> None:
    """With a mask of 1 left and 0 right, f+ speaks left, f- right, and f* adds the correction."""
    conv, head = nn.Conv2d(1, 1, 1, bias=False), nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        conv.weight.fill_(1.0)
        head.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    network = split(nn.Sequential(nn.Sequential(conv), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head))
    options = {
        "hidden": 1,
        "depth": 2,
        "sigma": 0.1,
        "noise": "gumbel",
        "random": False,
        "use": "whole",
    }
    assert part_maps(network, torch.ones(1, 1, 4, 8), torch.tensor([0])) == {}
    with_corrections(network, (), 2, **options)
    (point,) = corrections(network)
    point.decoupler, point.corrector = _Sides(), nn.Identity()
    maps = part_maps(network, torch.ones(1, 1, 4, 8), torch.tensor([0]))
    assert list(maps) == ["f", "f+", "f-", "f*", "f~"]
    left, right = ({n: round(float(m[0, 0, at]), 4) for n, m in maps.items()} for at in (0, 7))
    assert left == {"f": 0.5, "f+": 0.5, "f-": 0, "f*": 0, "f~": 0.5}
    assert right == {"f": 0.5, "f+": 0, "f-": 0.5, "f*": 1, "f~": 1}, (
        "f- of 1 and a correction of 1"
    )
    seen = class_maps(network, torch.ones(1, 1, 4, 8), torch.tensor([0]))
    assert (round(float(seen[0, 0, 0]), 4), float(seen[0, 0, 7])) == (0.5, 1), (
        "of f~, not of the corrector's layer"
    )


class _Sides(nn.Module):
    """Scores of a decoupler that finds the left half robust."""

    def forward(self, f: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(f.shape[-1]) < f.shape[-1] // 2, 9.0, -9.0).expand_as(f)


@pytest.mark.slow
def test_decoupled_features_have_a_panel(tmp_path: Path) -> None:
    made = fedloom.run("f2dc", "digits4", out=tmp_path / "f2dc", bottleneck=4, **SMALL)
    views = look([made], QUIET)
    (panel,) = views["Grad-CAM of decoupled features"]
    assert isinstance(panel.figure, bytes) and "robust" in panel.heading
    assert Image.open(io.BytesIO(panel.figure)).height > 6 * 88


@pytest.mark.slow
def test_prompts_by_domain_have_a_panel(tmp_path: Path) -> None:
    made = fedloom.run(
        "fedgcr", "digits4", out=tmp_path / "fedgcr", limit_train=20, limit_test=20, **SMALL
    )
    (panel,) = look([made], QUIET)["Type-specific prompts of test samples (t-SNE)"]
    assert isinstance(panel.figure, Chart)
    assert sorted(m.name for m in panel.figure.marks) == sorted(
        {c["domain"] for c in made.federation["clients"]}
    )
    assert len({m.ink for m in panel.figure.marks}) == 4 and all(m.x for m in panel.figure.marks)


def test_features_come_from_the_clients_own_model(runs: list[Run]) -> None:
    alone = gather([RunData.of(runs[0])])[0]
    one = opened(alone, runs[0], {})
    x, _ = one.federation.samples(1, "test")
    features, labels = one.features(1, "test", 10_000)
    scores = one.predictor(1)(x)
    assert torch.allclose(one.worker.model.head(features), scores, atol=1e-5)
    accuracy = float((scores.argmax(1) == labels).float().mean())
    assert accuracy == pytest.approx(
        runs[0].clients[1], abs=1e-6
    )  # the very model that was evaluated
    mine, theirs = (one.features(k, "test", 10_000)[0] for k in (1, 2))
    assert mine.shape == theirs.shape and not torch.allclose(mine, theirs)
    assert len(one.features(1, "train", 7)[0]) == 7


def test_look_gives_panels_for_every_method_and_changes_nothing(
    runs: list[Run], monkeypatch
) -> None:
    monkeypatch.setattr("fedloom.report.feature_plots.views.POINTS", 120)
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for r in runs for p in _files(r)}
    views = look(runs, QUIET)
    assert {
        p: (p.read_bytes(), p.stat().st_mtime_ns) for r in runs for p in _files(r)
    } == before and len(before) > 6
    assert [len(found) for found in views.values()] == [3, 3, 3, 1]
    embedding, spectrum, similarity, cam = (found[0] for found in views.values())
    assert isinstance(embedding.figure, Chart) and isinstance(spectrum.figure, Chart)
    stars = [m for m in embedding.figure.marks if m.symbol == "star"]
    assert len(stars) == 10  # one for each class
    assert (
        len({m.symbol for m in embedding.figure.marks if m.x and m.symbol != "star"}) == 4
    )  # one for each domain
    assert len([m for m in spectrum.figure.marks if m.kind == "line"]) == 4  # one for each client
    assert all(
        m.y[0] == 0 and list(m.y) == sorted(m.y, reverse=True) for m in spectrum.figure.marks
    )
    assert isinstance(similarity.figure, Heat)
    cells = np.array(similarity.figure.cells, dtype=float)
    assert (
        cells.shape == (4, 4)
        and cells.diagonal() == pytest.approx(1, abs=1e-5)
        and cells == pytest.approx(cells.T)
    )
    assert isinstance(cam.figure, bytes)
    assert Image.open(io.BytesIO(cam.figure)).width > 12 * 80
    text = render([RunData.of(r) for r in runs], "t", views=views)
    assert "t-SNE" in text and "What the models look at" in text
    again = look(runs[:1], QUIET)
    assert isinstance(again["Grad-CAM"][0].figure, bytes)
    assert again["Features of test samples (t-SNE)"][0].figure == embedding.figure


def test_what_cannot_be_looked_at_is_said(runs: list[Run], tmp_path: Path) -> None:
    unfinished = Run.load(runs[0].folder or "")
    unfinished.summary = {}
    with pytest.raises(FedloomError, match="none of these is finished"):
        look([unfinished], QUIET)
    federation = _federation(runs[1])
    given = fedloom.run(
        "fedavg", federation, seed=0, out=tmp_path / "given", rounds=1, width=4, features=16
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert look([given], QUIET) == {}
    assert "made with its own federation" in str(said[0].message)


def _federation(run: Run):
    from fedloom.engine.setup import deal

    return deal(run.config)


def _files(run: Run) -> list[Path]:
    assert run.folder is not None
    return sorted(p for p in run.folder.rglob("*") if p.is_file())
