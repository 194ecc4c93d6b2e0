"""Python as a way in: what `fedloom` offers without the shell, and what notebooks show of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas
import pytest
import torch
from rich.console import Console

import fedloom
from fedloom import Comparison, Dataset, FedloomError, Run, Sweep
from fedloom.cli.progress import Watch
from fedloom.core import tables

TINY: dict[str, Any] = {"rounds": 2, "model": "linear", "executor": "inplace", "quiet": True}
ENTRIES = ("advise", "compare", "export", "predict", "report", "resume", "run", "sweep")


def toy(shift: float = 0.0) -> Dataset:
    """Two classes that a line tells apart."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 2
    x = torch.randn(120, 6, generator=generator) + y[:, None] + shift
    return Dataset(x=x, y=y, name="toy", classes=("no", "yes"))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("python") / "C"
    given = {"partition": "iid", "clients": 3, "out": out}
    return fedloom.compare(["fedprox"], toy(), seeds=(0, 1), **given, **TINY, **{"fedprox.mu": 0.5})


def test_everything_is_listed_and_importing_stays_cheap() -> None:
    code = (
        "import sys, fedloom; found = set(dir(fedloom)); "
        f"assert set({ENTRIES}) <= found, found; assert set(fedloom.__all__) <= found; "
        "heavy = {'torch', 'numpy', 'rich', 'jinja2', 'scipy'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    for name in ENTRIES:
        assert callable(getattr(fedloom, name)), name


def test_a_comparison_of_own_data_with_tables(compared: Comparison) -> None:
    assert compared.verdict and compared.notes and compared.failed == []
    rows = compared.table()
    assert {row["method"] for row in rows} == {"local", "fedavg", "fedavg-after", "fedprox"}
    frame = compared.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and list(frame["method"]) == [
        row["method"] for row in rows
    ]
    assert len(compared.runs) == 6 and compared.page.is_file()
    assert {run.config.hyper.get("mu") for run in compared.runs} == {0.5, None}
    page = compared._repr_html_()
    assert page.count("<tr>") == 5 and "fedprox" in page
    assert str(compared).startswith("# fedprox, local, fedavg on toy")
    assert Comparison.load(compared.folder) == compared
    with pytest.raises(FedloomError, match="holds no comparison"):
        Comparison.load(compared.folder / "nowhere")


def test_a_folder_of_other_samples_is_not_taken_for_finished(compared: Comparison) -> None:
    given = {"partition": "iid", "clients": 3, "out": compared.folder, "seeds": (0, 1)}
    again = fedloom.compare(["fedprox"], toy(), **given, **TINY, **{"fedprox.mu": 0.5})
    assert again.board["rows"] == compared.board["rows"]
    with pytest.raises(FedloomError, match="have changed since it began"):
        fedloom.compare(["fedprox"], toy(shift=1.0), **given, **TINY, **{"fedprox.mu": 0.5})


def test_a_sweep_chooses_and_shows_itself(tmp_path: Path) -> None:
    federation = fedloom.federate(toy(), "iid", clients=2, validation=0.3)
    done = fedloom.sweep("fedavg", {"lr": [0.001, 0.5]}, federation, out=tmp_path / "S", **TINY)
    assert done.chosen in ({"lr": 0.001}, {"lr": 0.5})
    assert [row["lr"] for row in done.table()] == [0.001, 0.5]
    assert sum(row["chosen"] for row in done.table()) == 1
    assert list(done.to_pandas().columns) == ["lr", "validation", "test", "chosen"]
    assert "Chosen: lr = " in done._repr_html_() and Sweep.load(done).chosen == done.chosen


def test_a_report_an_export_and_predictions_from_a_run(
    compared: Comparison, tmp_path: Path
) -> None:
    page = fedloom.report(compared, tmp_path / "page.html", against="fedavg")
    assert page == tmp_path / "page.html" and "Against fedavg" in page.read_text()
    run = next(run for run in compared.runs if run.config.method == "fedavg")
    with pytest.raises(FedloomError, match="no folder"):
        fedloom.report(Run(run.config))
    figures = fedloom.report([run], tmp_path / "one.html", format="tex")
    assert figures == tmp_path / "figures" and (figures / "leaderboard.tex").is_file()
    with pytest.raises(FedloomError, match="own federation"):
        fedloom.export(run, tmp_path / "model")  # nobody can make its data again
    named = fedloom.run(
        "fedavg", clients=4, limit_train=8, limit_test=4, rounds=1, out=tmp_path / "r"
    )
    folder = fedloom.export(named, tmp_path / "model")
    image = tmp_path / "x.png"
    from PIL import Image

    Image.new("RGB", (32, 32), "white").save(image)
    (from_folder,) = fedloom.predict(folder, image)
    (from_run,) = fedloom.predict(named, image)
    assert sum(from_folder.classes.values()) == pytest.approx(1, abs=1e-4)
    assert from_folder.classes == pytest.approx(from_run.classes, abs=1e-5)


def test_a_run_has_tables_and_a_look(compared: Comparison) -> None:
    run = compared.runs[0]
    rows = run.table()
    assert [row["round"] for row in rows] == [1, 2]
    assert rows[-1]["accuracy_mean"] == run.metrics[-1]["personal"]["accuracy_mean"]
    assert {"validation", "loss_ce", "bytes_up"} <= set(rows[0])
    assert len(run.to_pandas()) == 2
    page = run._repr_html_()
    assert page.count("<tr>") == 3 and run.config.method in page and "accuracy, %" in page


def test_without_pandas_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FedloomError, match="pip install pandas"):
        tables.to_pandas([{"a": 1}])


def test_html_escapes_what_it_shows() -> None:
    page = tables.to_html([{"<a>": "<b>", "n": 0.123456}, {"n": None}], "<c>")
    assert "&lt;a&gt;" in page and "&lt;b&gt;" in page and "&lt;c&gt;" in page
    assert "<td>0.1235</td>" in page and "<td>-</td>" in page


def test_progress_in_a_notebook_is_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ipywidgets there is no bar, and a line for each round would flood the notebook."""
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)

    def display(line: str, display_id: bool) -> SimpleNamespace:
        shown.append(f"new {line}")
        return handle

    notebook: Any = ModuleType("IPython.display")
    notebook.HTML, notebook.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    with Watch(Console(force_jupyter=True), 2) as watch:
        engine: Any = SimpleNamespace(
            round=1, schedule=SimpleNamespace(rounds=2, metric="accuracy")
        )
        for accuracy in (0.5, 0.6):
            watch.after_round(engine, {"personal": {"accuracy_mean": accuracy}})
    assert len(shown) == 2 and shown[0].startswith("new <pre>round 1/2")
    assert "personal 60.0 %" in shown[1]
