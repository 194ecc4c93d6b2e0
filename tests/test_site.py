"""The site's pages: links hold in the site as they do in the project."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "file", "there"),
    [
        ("[p](papers/f2dc.md)", "README.md", "[p](methods/f2dc.md)"),
        ("![t](docs/report.png)", "README.md", "![t](report.png)"),
        ("[F](../papers/f2dc.md#numbers)", "docs/compare.md", "[F](methods/f2dc.md#numbers)"),
        ("[d](../docs/data.md)", "papers/f2dc.md", "[d](../data.md)"),
        ("[c](../CONTRIBUTING.md)", "papers/f2dc.md", "[c](../contributing.md)"),
        ("[e](examples/own_data.py)", "README.md", "[e](examples/own_data.md)"),
        ("[w](https://flower.ai)", "README.md", "[w](https://flower.ai)"),
        ("see [the lock](../src/fedloom/core/files.py)", "docs/speed.md", "see the lock"),
        ("[gone](nowhere.md)", "docs/speed.md", "[gone](nowhere.md)"),  # for mkdocs to refuse
    ],
)
def test_links(hooks: ModuleType, text: str, file: str, there: str) -> None:
    assert hooks.relinked(text, file) == there


def test_every_page_of_the_menu_is_there(hooks: ModuleType) -> None:
    menu = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    made = {*hooks.pages().values(), "examples/index.md", "command-line.md"}
    docs = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert len(menu) > 20
    assert not set(menu) - made - docs
    assert not docs - set(menu)  # nor is a page of docs/ forgotten


def test_the_command_line_is_described(hooks: ModuleType) -> None:
    text = hooks.command_line()
    for command in ("advise", "compare", "data import", "flower init", "predict"):
        assert f"## `fedloom {command}`" in text
    assert "--partition" in text


def test_a_notebook_becomes_a_page(hooks: ModuleType) -> None:
    page = hooks.code(ROOT / "examples" / "clinics.ipynb")
    assert page.startswith("# Six clinics") and page.count("```python") == 6


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_docs_installs_nothing_twice(tmp_path: Path) -> None:
    """Once its tools are there, it needs no network."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)

    def steps() -> str:
        command = ["make", "--dry-run", "docs"]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    assert "pip install" in steps()
    (tmp_path / ".venv").mkdir()
    for stamp in (".demo", ".docs"):
        (tmp_path / ".venv" / stamp).touch()
    assert "mkdocs build --strict" in steps() and "pip" not in steps()
