"""What is shipped beside the package works: recipes, examples, pages."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedloom
from fedloom.core.lookup import names
from fedloom.engine.config import build, read

ROOT = Path(__file__).resolve().parents[1]
RECIPES = sorted((ROOT / "recipes").rglob("*.toml"))
SHOW_CELLS = """
import ast
names = {}
for cell in CELLS:
    *before, last = ast.parse(cell).body
    exec(compile(ast.Module(before, []), "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        if hasattr(value, "_repr_html_"):
            print(value._repr_html_())
    else:
        exec(compile(ast.Module([last], []), "cell", "exec"), names)
"""
# They are run on a few samples for two rounds; the rest of each script is as it is.
SHORTENED = {
    "own_data.py": ([], "fedper"),
    "own_model.py": ([], "fedbn"),
    "own_method.py": ([], "worst client"),
    "quickstart.py": ([], "of clients are better off than alone"),
    "domain_gap.py": (["0"], "| trained on \\ tested on |"),
    "reconstruction.py": (["picture.png"], "| read from the prototype |"),
}
# One process for all: most of the time is taken by its start.
SHORTEN = """
import json, runpy, sys
import fedloom
from fedloom.data import catalogue

FEW = {"limit_train": 16, "limit_test": 8}
load, run = catalogue.load, fedloom.run

def load_few(name, source=None, *others, **more):
    return load(name, catalogue.Source(**FEW), *others, **more)

def run_shortly(method, data, **settings):
    if isinstance(data, str):
        settings |= FEW
    settings |= {"rounds": 2, "eval_every": 1, "checkpoint_every": 1, "executor": "inplace"}
    return run(method, data, **settings)

catalogue.load, fedloom.run = load_few, run_shortly
for words in json.loads(sys.argv[1]):
    sys.argv = words
    print("=", words[0])
    runpy.run_path(words[0], run_name="__main__")
"""


def test_the_version_stands_in_one_place() -> None:
    citation = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {fedloom.__version__}" in citation


def test_the_package_takes_its_data_along() -> None:
    """A file that is no code is in the wheel only if a pattern of pyproject.toml names it."""
    package = ROOT / "src" / "fedloom"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named: set[Path] = set()
    for pattern in project["tool"]["setuptools"]["package-data"]["fedloom"]:
        named |= set(package.glob(pattern))
    found = {path for path in package.rglob("*") if path.is_file()}
    others = {path for path in found if path.suffix not in (".py", ".pyc")}
    assert len(others) > 100
    assert not others - named


def test_recipes_are_there() -> None:
    assert len(RECIPES) >= 2


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_is_valid_and_opens_with_its_command(path: Path) -> None:
    build(read(path))
    assert path.read_text().splitlines()[0] == f"# fedloom run {path.relative_to(ROOT)}"


def test_examples_run_on_few_samples(tmp_path: Path) -> None:
    folder = ROOT / "examples"
    scripts = [[str(folder / name), *words] for name, (words, _) in SHORTENED.items()]
    command = [sys.executable, "-c", SHORTEN, json.dumps(scripts)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split("= ")[1:]
    assert len(printed) == len(SHORTENED)
    for (name, (_, wanted)), said in zip(SHORTENED.items(), printed, strict=True):
        assert said.startswith(str(folder / name)) and wanted in said, said
        assert "nan" not in said.lower()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHORTENED))
def test_an_example_runs_as_it_is(name: str, tmp_path: Path) -> None:
    arguments, wanted = SHORTENED[name]
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert wanted in done.stdout


def test_every_example_is_run() -> None:
    found = {path.name for path in (ROOT / "examples").iterdir() if path.suffix != ".md"}
    assert found == {*SHORTENED, "clinics.ipynb"}


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """Its cells in order, as plain Python: the last expression of each is shown."""
    notebook = json.loads((ROOT / "examples" / "clinics.ipynb").read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            cells.append("".join(cell["source"]))
    assert len(cells) == 6
    script = tmp_path / "cells.py"
    script.write_text(f"CELLS = {cells!r}\n{SHOW_CELLS}")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    assert "clients gain" in shown or "Do not federate" in shown or "Train longer" in shown
    assert shown.count("<table>") == 3  # the comparison, the run and the sweep show themselves
    assert "chosen: {'lr': " in shown
    assert (tmp_path / "runs/clinics/report.html").is_file()
    assert (tmp_path / "runs/figures/leaderboard.tex").is_file()


@pytest.mark.parametrize("name", names())
def test_a_method_has_its_page(name: str) -> None:
    page = (ROOT / "papers" / f"{name}.md").read_text()
    for part in ("## The algorithm", "## Symbols", "## Deviations", "## Numbers"):
        assert part in page
