"""Pages say what each method was checked against."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.golden import FOLDER, golden

PAPERS = Path(__file__).parents[2] / "papers"
CHECKED = sorted(path.stem for path in FOLDER.glob("*.json"))


@pytest.mark.parametrize("name", CHECKED)
def test_a_page_names_the_code_that_was_run(name: str) -> None:
    theirs = golden(name)
    page = " ".join((PAPERS / f"{name}.md").read_text("utf-8").split())
    wanted = f"Checked against: {theirs.repository}, commit {theirs.commit[:7]}, {theirs.date}: "
    assert wanted in page, f"papers/{name}.md must say: {wanted}..."


@pytest.mark.parametrize("name", CHECKED)
def test_the_table_of_all_has_a_row_for_it(name: str) -> None:
    theirs = golden(name)
    row = f"| `{name}` | {theirs.repository} | {theirs.commit[:7]} | {theirs.date} | "
    table = (PAPERS / "README.md").read_text("utf-8")
    assert row in table, f"papers/README.md needs a row that begins with {row}"
