"""What is shipped beside the package works: recipes, examples, pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedloom.core.lookup import names
from fedloom.engine.config import build, read

ROOT = Path(__file__).resolve().parents[1]
RECIPES = sorted((ROOT / "recipes").rglob("*.toml"))
EXAMPLES = {"own_data.py": "fedper", "own_model.py": "fedbn", "own_method.py": "worst client"}


def test_recipes_are_there() -> None:
    assert len(RECIPES) >= 2


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_is_valid_and_opens_with_its_command(path: Path) -> None:
    build(read(path))
    assert path.read_text().splitlines()[0] == f"# fedloom run {path.relative_to(ROOT)}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert EXAMPLES[name] in done.stdout


@pytest.mark.parametrize("name", names())
def test_a_method_has_its_page(name: str) -> None:
    page = (ROOT / "papers" / f"{name}.md").read_text()
    for part in ("## The algorithm", "## Symbols", "## Deviations", "## Numbers"):
        assert part in page
