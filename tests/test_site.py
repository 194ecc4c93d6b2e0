"""The site's pages: links hold in the site as they do in the project."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fedloom.core.lookup import names, plugins

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def hooks() -> Iterator[ModuleType]:
    """The hooks, found as mkdocs finds them: what lies beside them can be imported."""
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        spec.loader.exec_module(module)
        yield module


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
    made = {*hooks.pages().values(), "examples/index.md", "command-line.md", "results.md"}
    docs = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert len(menu) > 20
    assert not set(menu) - made - docs
    assert not docs - set(menu)  # nor is a page of docs/ forgotten


def test_the_command_line_is_described(hooks: ModuleType) -> None:
    text = hooks.command_line()
    for command in ("advise", "compare", "data import", "flower init", "predict"):
        assert f"## `fedloom {command}`" in text
    assert "--partition" in text


def test_every_method_has_a_page_of_one_layout(hooks: ModuleType) -> None:
    """What the code says of a method stands between what papers/ says; nothing is left out."""
    seen, without = set(), []
    for path in sorted((ROOT / "papers").glob("*.md")):
        about = hooks.method_pages.described(path.stem)
        page = hooks.method_pages.laid_out(path.stem, path.read_text("utf-8"))
        parts = [line[3:] for line in page.splitlines() if line.startswith("## ")]
        if about:
            found = tuple(part for part in parts if part in hooks.method_pages.PARTS)
            assert found == hooks.method_pages.PARTS, path.name
            seen |= set(about)
        else:
            without.append(path.stem)
    assert seen == {*names(), *(f"+{plugin}" for plugin in plugins())}
    assert without == ["README", "feddap"]  # FedDAP is not here; its page says why


def test_what_the_code_says_of_a_method(hooks: ModuleType) -> None:
    page = hooks.method_pages.laid_out("fedprox", (ROOT / "papers" / "fedprox.md").read_text())
    assert "made for labels that are unevenly dealt out; promises fedavg with mu=0" in page
    assert "| `mu` | `0.01` | Strength of the pull" in page
    assert "\n## Checked against\n\nlitian96/FedProx" in page


PAGE = """# A page

## First

About `fedloom bench speed`.

| a | b |
|---|---|
| x | 1.5 |

Another, which the paper prints:

| a | b |
|---|---|
| x | 2.5 |
| words | 3.5 |

## Second

`fedloom reproduce f2dc-1` gives:

| a | b |
|---|---|
| x | 4.5 |

| a | b |
|---|---|
| x | 5.5 |

These are words:

| a | b |
|---|---|
| x | y |

And last:

| a | b |
|---|---|
| x | 6.5 |

```
fedloom compare a b \\
  --rounds 3
fedloom report runs/x
```
"""


def test_tables_and_the_commands_that_made_them(hooks: ModuleType) -> None:
    found = list(hooks.gallery.tables("papers/f2dc.md", PAGE))
    assert [table.rows[2] for table in found] == [f"| x | {n}.5 |" for n in (1, 2, 4, 5, 6)]
    assert [table.command for table in found] == [
        "fedloom bench speed",
        None,
        "fedloom reproduce f2dc-1",
        "fedloom reproduce f2dc-1",
        "fedloom compare a b \\\n  --rounds 3",
    ]
    assert found[1].caption == "Another, which the paper prints:"


def test_the_gallery_has_every_table_of_figures(hooks: ModuleType) -> None:
    page = hooks.results()
    commands = re.findall(r"^```console\n(.*)$", page, re.MULTILINE)
    assert len(commands) > 80
    assert all(command.startswith(("fedloom ", "python -m ")) for command in commands)
    others = sum(map(int, re.findall(r"^- \[.*\): (\d+)$", page, re.MULTILINE)))
    texts = {file: (ROOT / file).read_text("utf-8") for file in hooks.gallery.files()}
    count = sum(len(list(hooks.gallery.tables(file, text))) for file, text in texts.items())
    assert len(commands) + others == count
    if hooks.gallery.dates("README.md"):  # in a checkout
        assert len(re.findall(r"^Last changed: \d{4}-\d\d-\d\d\.$", page, re.MULTILINE)) > 80


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
