"""Sweeps: the grid, the choice on validation data, the table and the heat map."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from fedloom.cli.progress import Watch
from fedloom.core.errors import FedloomError
from fedloom.engine.config import build
from fedloom.engine.folder import Run
from fedloom.experiments.choice import parse_grid, points
from fedloom.experiments.plan import Cell
from fedloom.experiments.sweep import heat_map, markdown, plan, sweep, tabulate


def test_a_grid_is_parsed_and_crossed() -> None:
    grid = parse_grid(["mu=0, 0.1,0.1", "optimizer=sgd,adam", "hidden=[8],[8, 4]"])
    assert grid == {"mu": [0, 0.1], "optimizer": ["sgd", "adam"], "hidden": [[8], [8, 4]]}
    assert len(points(grid)) == 8 and points(grid)[1] == {
        "mu": 0,
        "optimizer": "sgd",
        "hidden": [8, 4],
    }


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (["mu"], "--grid wants key=value"),
        (["mu="], "--grid wants key=value"),
        (["mu=1", "mu=2"], "'mu' twice"),
    ],
)
def test_bad_grids(items: list[str], said: str) -> None:
    with pytest.raises(FedloomError, match=said):
        parse_grid(items)


def test_bad_plans() -> None:
    with pytest.raises(FedloomError, match="at least one --grid"):
        plan("fedavg", {}, [0], {}, {})
    with pytest.raises(FedloomError, match="'lr' is in the grid and has a fixed value as well"):
        plan("fedavg", {"lr": [0.1]}, [0], {}, {"lr": 0.2})
    with pytest.raises(
        FedloomError, match="chooses on validation data, and validation = 0 leaves none"
    ):
        plan("fedavg", {"lr": [0.1]}, [0], {}, {"validation": 0})
    with pytest.raises(FedloomError, match="unknown key 'nu'; did you mean 'mu'"):
        plan("fedprox", {"nu": [0.1]}, [0], {}, {})


def made_up(
    point: dict, seed: int, held: list[float], tested: list[float], error: str | None = None
) -> Cell:
    config = build({"method": "fedprox", "seed": seed}, point)
    metrics = [{"validation": {"personal": v}} for v in held]
    best = tested[held.index(max(held))]
    run = Run(
        config,
        metrics=metrics,
        summary={"personal": {"accuracy_mean": {"best_by_validation": best}}},
    )
    return Cell(config, Path("x"), None if error else run, error)


def test_the_choice_is_made_on_validation_data_only() -> None:
    grid = {"mu": [0.0, 0.1], "lr": [0.1, 0.2]}
    # The second point has the best validation accuracy and the worst test accuracy; the fourth
    # would be best but fails.
    figures = [
        ([0.5, 0.6], [0.7, 0.9]),
        ([0.4, 0.8], [0.9, 0.1]),
        ([0.7], [0.95]),
        ([0.99], [0.99]),
    ]
    cells = [
        made_up(point, seed, *figures[i], error="boom" if i == 3 and seed else None)
        for i, point in enumerate(points(grid))
        for seed in (0, 1)
    ]
    board = tabulate(grid, cells, "t")
    assert board["chosen"] == {"mu": 0.0, "lr": 0.2}
    assert [r["validation"] for r in board["rows"]] == [0.6, 0.8, 0.7, 0.99]
    assert [r["test"] for r in board["rows"]] == [
        0.9,
        0.1,
        0.95,
        0.99,
    ]  # of the round chosen on validation data
    text = markdown(board)
    assert (
        "| 0.0 | 0.2 | 80.0 ± 0.0 | 10.0 ± 0.0 | chosen |" in text and text.count("chosen |") == 1
    )
    assert "failed for seed 1: boom" in text
    tree = ElementTree.fromstring(heat_map(board, "mu", "lr"))
    said = [e.text for e in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {"60.0", "80.0", "70.0", "99.0"} <= set(said)
    assert {"mu", "0.0", "0.1", "lr = 0.1", "lr = 0.2"} <= set(said)


def test_a_real_sweep_and_the_same_again(tmp_path: Path) -> None:
    watch = Watch(Console(), 1, quiet=True)
    grid = {"mu": [0.0, 10.0], "epochs": [1, 2]}
    small = {"rounds": 1, "width": 4, "features": 16, "limit_train": 20, "limit_test": 5}
    configs = plan("fedprox", grid, [0, 0], {"clients": 4}, small)
    assert len(configs) == 4
    board = sweep(grid, configs, tmp_path, watch, "t")
    assert json.loads((tmp_path / "sweep.json").read_text()) == board
    assert (tmp_path / "heat-mu-epochs.svg").exists() and "| mu | epochs |" in (
        tmp_path / "sweep.md"
    ).read_text()
    best = max(board["rows"], key=lambda r: r["validation"])
    assert board["chosen"] == best["values"]
    held = {json.dumps(r["values"]): r["validation"] for r in board["rows"]}
    for run in board["runs"]:
        metrics = Run.load(tmp_path / run["folder"]).metrics
        assert held[json.dumps(run["values"])] == max(m["validation"]["personal"] for m in metrics)
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/metrics.jsonl")}
    assert len(stamps) == 4 and sweep(grid, configs, tmp_path, watch, "t") == board
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in stamps.items())


def test_a_metric_that_falls_is_shown_and_chosen_as_such() -> None:
    grid = {"mu": [0.0, 0.1], "lr": [0.1, 0.2], "epochs": [1, 2]}
    losses = [1.5, 1.25, 2.0, 2.5, 0.5, 0.75, 3.0, 4.0]
    cells = []
    for point, loss in zip(points(grid), losses, strict=True):
        config = build({"method": "fedprox"}, {**point, "metric": "nll"})
        metrics = [{"validation": {"personal": value}} for value in (9.0, loss)]
        summary = {"personal": {"nll_mean": {"best_by_validation": loss + 0.125}}}
        cells.append(Cell(config, Path("x"), Run(config, metrics=metrics, summary=summary)))
    board = tabulate(grid, cells, "t")
    assert board["chosen"] == {"mu": 0.1, "lr": 0.1, "epochs": 1}
    text = markdown(board)
    assert "| mu | lr | epochs | validation | test | |" in text and "%" not in text
    assert "| 0.1 | 0.1 | 1 | 0.500 | 0.625 | chosen |" in text
    assert "Negative log-likelihood, lower is better, as a mean" in text
    picture = heat_map(board, "mu", "lr")
    assert "Negative log-likelihood on validation data by mu and lr" in picture
    tree = ElementTree.fromstring(picture)
    texts = {e.text for e in tree.iter("{http://www.w3.org/2000/svg}text")}
    # The best over epochs is the smaller loss.
    assert {"1.250", "2.000", "0.500", "3.000"} <= texts and not {"1.500", "4.000"} & texts
