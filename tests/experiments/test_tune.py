"""Tuning: the same budget for every method, validation data only, the same again after a stop."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import fedloom
from fedloom import Comparison, Dataset, FedloomError, Run
from fedloom.cli.main import app
from fedloom.cli.progress import Watch
from fedloom.experiments.choice import parse_grid, points
from fedloom.experiments.search import Tpe, drawn, search
from fedloom.experiments.tune import Tuner, Tuning
from fedloom.report.folders import run_folders
from fedloom.report.tuning import lines, summary

METHODS = ["fedprox", "local", "fedavg"]
TUNE = {"lr": [0.0001, 0.5], "mu": [0.01, 1.0, 100.0]}
GIVEN = {"data": "digits4", "partition": "domains", "clients": 4}
SMALL: dict[str, Any] = {
    "partition": "iid",
    "clients": 2,
    "rounds": 2,
    "model": "linear",
    "executor": "inplace",
    "quiet": True,
    "report": False,
    "validation": 0.3,
}


def toy(noise: bool = False) -> Dataset:
    """Three classes that lines tell apart; with `noise`, the labels of test samples are random."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    x = torch.randn(90, 4, generator=generator) + 2 * torch.nn.functional.one_hot(y, 4)
    test = torch.arange(90) % 5 == 0
    if noise:
        y = torch.where(test, torch.randint(3, (90,), generator=generator), y)
    return Dataset(x=x, y=y, test=test, name="toy")


def tuned(out: Path, data: Dataset | None = None, **more: Any) -> Comparison:
    return fedloom.compare(["fedprox"], data or toy(), out=out, **{"tune": TUNE, **SMALL, **more})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return tuned(tmp_path_factory.mktemp("tune") / "C", seeds=(0, 1))


def by_method(board: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {method["method"]: method for method in board["tuning"]["methods"]}


def tuner(values: dict[str, Any], changes: dict[str, Any] | None = None, **more: Any) -> Tuner:
    given = GIVEN | more.pop("given", {})
    methods = more.pop("methods", METHODS)
    return Tuner(Tuning(values, **more), methods, [0], given, changes or {})


# -- what is tried --------------------------------------------------------------------------------
def test_several_settings_fit_into_one_word() -> None:
    assert parse_grid(["lr=0.01,0.1,mu=0.1, 1"]) == parse_grid(["lr=0.01,0.1", "mu=0.1,1"])
    grid = parse_grid(["hidden=[8],[8, 4], optimizer=sgd,adam,fpl+dfdc.tau=1"], "--tune")
    assert grid == {"hidden": [[8], [8, 4]], "optimizer": ["sgd", "adam"], "fpl+dfdc.tau": [1]}
    assert parse_grid(['name="a,b=c",d', "x={a=1,b=2}"])["x"] == [{"a": 1, "b": 2}]
    with pytest.raises(FedloomError, match="--tune has 'lr' twice"):
        parse_grid(["lr=1,mu=2,lr=3"], "--tune")


def test_every_method_has_the_same_number_of_runs(done: Comparison) -> None:
    """What a method has no settings for goes to further seeds."""
    methods = by_method(done.board)
    assert set(methods) == {"fedprox", "local", "fedavg"} and done.board["tuning"]["trials"] == 6
    assert [len(method["runs"]) for method in methods.values()] == [6, 6, 6]
    assert [len(method["rows"]) for method in methods.values()] == [6, 2, 2]
    assert methods["fedprox"]["seeds"] == [1000]
    assert methods["fedavg"]["seeds"] == methods["local"]["seeds"] == [1000, 1001, 1002]
    folders = run_folders([done.folder / "tuning"])
    assert len(folders) == 18
    assert {folder.name for folder in folders} == {
        run["folder"] for method in methods.values() for run in method["runs"]
    }


def test_what_is_left_of_a_budget_is_for_all_combinations_or_for_none() -> None:
    subjects = {s.name: s for s in tuner(TUNE, trials=7).subjects}
    assert len(subjects["fedavg"].seeds) == 3 and len(subjects["fedprox"].seeds) == 1


def test_seeds_of_the_comparison_are_not_tuned_on() -> None:
    made = Tuner(Tuning({"lr": [0.1]}, trials=2), METHODS, [1000, 0, 1002], GIVEN, {})
    assert made.subjects[0].seeds == [1001, 1003]


def test_a_method_without_any_of_the_settings_is_not_run(tmp_path: Path) -> None:
    board = tuned(tmp_path, tune={"fedprox.mu": [0.1, 1.0]}).board
    methods = by_method(board)
    assert [len(methods[name]["runs"]) for name in METHODS] == [2, 0, 0]
    assert methods["fedavg"]["chosen"] is None and board["tuning"]["seeds"] == [1000]
    assert ["local", "has none of these settings"] in [line[:2] for line in lines(board["tuning"])]


def test_a_setting_for_one_method_comes_before_that_for_all() -> None:
    grids = {s.name: s.grid for s in tuner({"fedprox.lr": [1.0], "lr": [0.1, 0.2]}).subjects}
    assert grids["fedprox"] == {"lr": [1.0]} and grids["fedavg"] == {"lr": [0.1, 0.2]}


def test_a_partitions_setting_of_that_name_is_not_meant() -> None:
    """FedHeal has a beta of its own, and so has the Dirichlet partition."""
    made = tuner(
        {"beta": [0.3, 0.6]}, methods=["fedavg", "fedheal"], given={"partition": "dirichlet"}
    )
    assert [subject.keys for subject in made.subjects] == [{}, {"beta": "hyper.beta"}]


# -- the choice -----------------------------------------------------------------------------------
def test_the_comparison_runs_with_what_validation_data_chose(done: Comparison) -> None:
    for name, method in by_method(done.board).items():
        rows = method["rows"]
        best = max(row["validation"] for row in rows)
        first = next(row["values"] for row in rows if row["validation"] == best)
        assert method["chosen"] == first == done.chosen[name] and method["validation"] == best
        assert not any("test" in key for row in rows for key in row)
    assert len(done.runs) == 6
    for run in done.runs:
        values = done.chosen[run.config.method]
        assert values and run.config.training.lr == values["lr"] and run.config.seed < 2
        assert run.config.hyper.get("mu") == values.get("mu")


def test_figures_are_means_over_the_seeds_of_validation_values(done: Comparison) -> None:
    fedavg = by_method(done.board)["fedavg"]
    for row in fedavg["rows"]:
        found = []
        for run in fedavg["runs"]:
            if run["values"] == row["values"]:
                metrics = Run.load(done.folder / "tuning" / run["folder"]).metrics
                found.append(max(line["validation"]["personal"] for line in metrics))
        assert len(found) == 3 and row["validation"] == pytest.approx(sum(found) / 3)


def test_noise_for_test_labels_changes_no_choice(done: Comparison, tmp_path: Path) -> None:
    other = tuned(tmp_path, toy(noise=True), seeds=(0, 1))
    assert other.board["tuning"] == done.board["tuning"]
    accuracy = {row["method"]: row["personal"] for row in done.board["rows"]}
    assert {row["method"]: row["personal"] for row in other.board["rows"]} != accuracy


def test_a_metric_that_falls_is_minimised(tmp_path: Path) -> None:
    board = tuned(tmp_path, tune={"lr": [0.0001, 0.5]}, metric="nll").board
    for method in by_method(board).values():
        assert method["validation"] == min(row["validation"] for row in method["rows"])
    assert "Negative log-likelihood on validation data chose" in summary(board["tuning"])


def test_a_trial_that_fails_is_not_chosen(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from fedloom.core.lookup import method\n"
        "from fedloom.methods.fedavg import FedAvg\n"
        "@method('mine')\n"
        "class Mine(FedAvg):\n"
        "    def train(self, down, state, local):\n"
        "        fit = local.fit()\n"
        "        if fit.lr > 0.2:\n"
        "            raise RuntimeError('out of luck')\n"
        "        return fit\n"
    )
    data, more = toy(), {**SMALL, "tune": {"lr": [0.5, 0.1]}}
    done = fedloom.compare([str(file)], data, out=tmp_path / "C", **more)
    assert done.chosen["mine"] == {"lr": 0.1} and done.failed == []
    mine = by_method(done.board)["mine"]
    assert [len(row["failed"]) for row in mine["rows"]] == [1, 0]
    assert any("1 failed" in cell for line in lines(done.board["tuning"]) for cell in line)
    every = fedloom.compare(
        [str(file)], data, out=tmp_path / "D", **more | {"tune": {"mine.lr": [0.5, 0.6]}}
    )
    assert every.chosen["mine"] is None and every.failed == []
    assert "every trial failed" in str(every)


# -- how it is searched ---------------------------------------------------------------------------
def test_random_points_are_different_and_the_same_for_equal_grids() -> None:
    grid = {"lr": [1, 2, 3], "mu": [1, 2, 3]}
    assert drawn(grid, 4, 7) == drawn(grid, 4, 7) != drawn(grid, 4, 8)
    assert len({json.dumps(point) for point in drawn(grid, 8, 0)}) == 8
    assert search("random", grid, 9, 0, higher=True).ask() == points(grid)
    with pytest.raises(FedloomError, match="a grid of 9 combinations needs as many trials, not 4"):
        search("grid", grid, 4, 0, higher=True)


def test_random_search_has_the_budget_that_it_is_given(tmp_path: Path) -> None:
    values = {"lr": [0.01, 0.02, 0.05, 0.1], "mu": [0.1, 1.0]}
    methods = by_method(tuned(tmp_path, tune=values, search="random", trials=3, rounds=1).board)
    assert [method["trials"] for method in methods.values()] == [3, 3, 3]
    assert methods["local"]["rows"][0]["values"] == methods["fedavg"]["rows"][0]["values"]


def tried(grid: dict[str, list[Any]], trials: int, worth: Callable[..., float | None]) -> list:
    """The points that TPE tries where their worth is known."""
    made = Tpe(grid, trials, seed=0, higher=True)
    found = []
    while asked := made.ask():
        (point,) = asked
        found.append(point)
        made.tell(point, worth(**point))
    return found


def test_tpe_tries_different_points_and_more_of_the_better_ones() -> None:
    pytest.importorskip("optuna")
    grid = {"a": list(range(40)), "b": ["x", "y", "z"]}

    def worth(a: int, b: str) -> float | None:
        return -float(abs(a - 30)) - 5 * (b != "y")

    found = tried(grid, 20, worth)
    assert len({json.dumps(point) for point in found}) == 20
    away = [abs(point["a"] - 30) for point in found[6:]]  # the first six are drawn at random
    assert sum(away) / len(away) < 10  # at random it would be 12.75


def test_tpe_tries_a_point_that_fails_once() -> None:
    pytest.importorskip("optuna")
    found = tried({"a": [1, 2], "b": ["x", "y"]}, 3, lambda a, b: None if a == 1 else 1.0)
    assert len({json.dumps(point) for point in found}) == 3
    assert found == tried({"a": [1, 2], "b": ["x", "y"]}, 3, lambda a, b: None if a == 1 else 1.0)


def test_tpe_goes_through_what_is_left_when_it_repeats_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr("fedloom.experiments.search.PATIENCE", 0)
    found = tried({"a": [1, 2, 3], "b": [1, 2]}, 5, lambda a, b: 0.0)
    assert found == points({"a": [1, 2, 3], "b": [1, 2]})[:5]


def test_tpe_in_a_comparison_and_the_same_again(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    values = {"lr": [0.0001, 0.01, 0.1, 0.5], "mu": [0.1, 1.0]}
    more = {"tune": values, "search": "tpe", "trials": 3, "rounds": 1}
    first = tuned(tmp_path, **more).board
    assert [method["trials"] for method in first["tuning"]["methods"]] == [3, 3, 3]
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("metrics.jsonl")}
    assert len(stamps) == 12 and tuned(tmp_path, **more).board["tuning"] == first["tuning"]
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("metrics.jsonl")} == stamps


def test_tpe_without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "optuna":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(FedloomError, match=r"--search tpe needs Optuna.*fedloom\[tune\]"):
        tuner({"lr": [0.1, 0.2, 0.3]}, search="tpe", trials=2)


# -- after a stop ---------------------------------------------------------------------------------
class Stopped(Watch):
    """A display that ends everything in the middle of a run."""

    def __init__(self, rounds: int) -> None:
        super().__init__(Console(), 1, quiet=True)
        self.left = rounds

    def after_round(self, engine: Any, record: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("rounds", [5, 37])
def test_stopped_anywhere_and_run_again_it_is_the_same(
    done: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(fedloom, "_watching", lambda *_: Stopped(rounds))
        tuned(tmp_path, seeds=(0, 1), checkpoint_every=1)
    again = tuned(tmp_path, seeds=(0, 1), checkpoint_every=1)
    assert again.board["tuning"] == done.board["tuning"]
    files = sorted(path.relative_to(done.folder) for path in done.folder.rglob("metrics.jsonl"))
    assert len(files) == 24
    for file in files:
        assert (tmp_path / file).read_bytes() == (done.folder / file).read_bytes()


# -- what is refused ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("values", "changes", "said"),
    [
        ({"nu": [1]}, {}, "unknown setting to tune 'nu'; did you mean 'mu'?"),
        ({"fedprox.nu": [1]}, {}, "unknown setting to tune 'fedprox.nu'"),
        ({"fedporx.mu": [1]}, {}, "unknown method or section 'fedporx'; did you mean 'fedprox'?"),
        ({"lam": [1]}, {}, "'lam' is a setting of none of the methods compared; it belongs to"),
        ({"rounds": [1, 2]}, {}, "'rounds' cannot be tuned: it is the same for all methods"),
        ({"validation": [0.1]}, {}, "'validation' cannot be tuned"),
        ({"lr": [0.1]}, {"training.lr": 0.2}, "'lr' is tuned and has a fixed value as well"),
        ({"mu": [0.1]}, {"fedprox.mu": 0.2}, "'mu' is tuned and has a fixed value as well"),
        ({"lr": [0.1, -1]}, {}, "training.lr = -1"),
        ({"lr": []}, {}, "the values of 'lr' to tune are a list"),
        ({"lr": 0.1}, {}, "the values of 'lr' to tune are a list, not 0.1"),
        ({}, {}, "nothing to tune"),
        ({"lr": [0.1]}, {"validation": 0}, "--tune chooses on validation data, and validation = 0"),
    ],
)
def test_what_cannot_be_tuned(values: Any, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FedloomError) as error:
        tuner(values, changes)
    assert said in str(error.value)


def test_wrong_searches_and_budgets() -> None:
    with pytest.raises(FedloomError, match="unknown search 'tpee'; did you mean 'tpe'"):
        tuner({"lr": [0.1]}, search="tpee")
    with pytest.raises(FedloomError, match="at least one trial, not 0"):
        tuner({"lr": [0.1]}, trials=0)
    with pytest.raises(FedloomError, match="combinations needs as many trials"):
        tuner(TUNE, trials=5)


def test_a_federation_without_validation_data_is_refused(tmp_path: Path) -> None:
    bare = fedloom.federate(toy(), "iid", clients=2, validation=0)
    more = {key: SMALL[key] for key in ("model", "executor", "quiet", "report", "rounds")}
    with pytest.raises(FedloomError, match="no client of this federation has any"):
        fedloom.compare(["fedprox"], bare, tune=TUNE, out=tmp_path, **more)
    assert not list(tmp_path.rglob("config.toml"))


def test_a_test_part_that_changes_with_the_seed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match="would train on samples that the comparison tests on"):
        tuned(tmp_path, split="merged")


# -- what is said ---------------------------------------------------------------------------------
def test_markdown_and_json_say_what_was_tuned(done: Comparison) -> None:
    board = json.loads((done.folder / "leaderboard.json").read_bytes())
    assert board["tuning"]["values"] == TUNE and board["tuning"]["search"] == "grid"
    text = (done.folder / "leaderboard.md").read_text()
    assert "## Tuning" in text and "trained as in its paper" not in text
    assert "lr (0.0001, 0.5), mu (0.01, 1.0, 100.0), by trying every combination" in text
    assert "a budget of 6 runs of 2 rounds for each method, on seeds 1000, 1001, 1002" in text
    for line in lines(board["tuning"]):
        assert f"| {' | '.join(line)} |" in text
    assert Comparison.load(done.folder).chosen == done.chosen


def test_the_page_says_what_was_tuned(done: Comparison) -> None:
    for page in (done.folder / "report.html", done.folder / "again.html"):
        if not page.exists():
            fedloom.report(done, page)
        text = page.read_text()
        assert '<section id="tuning">' in text and "a budget of 6 runs" in text
        assert "All trials of fedavg" in text and "mu = 100.0" in text
        chosen = done.chosen["fedprox"]
        assert chosen and f"lr = {chosen['lr']}, mu = {chosen['mu']}" in text


def test_a_comparison_that_tunes_nothing_says_nothing(tmp_path: Path) -> None:
    plain = fedloom.compare(["fedprox"], toy(), out=tmp_path, **SMALL)
    assert plain.board["tuning"] is None and plain.chosen == {}
    assert "Tuning" not in str(plain) and not (tmp_path / "tuning").exists()
    assert '<section id="tuning">' not in plain.page.read_text()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "compare fedprox --clients 2 --partition iid --rounds 1 --model linear --no-report"
    small = "--set limit_train=4 --set limit_test=2 --set steps=1 --executor inplace"
    tune = "--tune lr=0.01,0.1,mu=0.1 --trials 2"
    app(f"{words} {small} {tune} --out {tmp_path}".split(), standalone_mode=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "tuning lr, mu: 6 runs, 2 for each method" in said
    assert "[1/6] tuning fedprox lr=0.01 mu=0.1 seed 1000" in said
    assert "Tuned on validation data before the comparison: lr (0.01, 0.1), mu (0.1)" in said
    assert (
        "fedprox: lr = 0." in said
        and "on validation data; runs: 2, combinations: 2 of 2, seeds: 1)" in said
    )
    with pytest.raises(FedloomError, match="give --tune"):
        app(f"{words} --trials 3".split(), standalone_mode=False)
