"""The pages of the five seed papers say whether the claim holds, beside figures that can tell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAPERS = Path(__file__).parents[2] / "papers"
PAGES = ("f2dc", "feddtr", "fedgcr", "fedpact", "fedpcl")
FLOORS = ("chance", "majority")

Table = dict[str, list[str]]  # the name of a row -> its cells


def tables(page: str) -> list[Table]:
    """Every table of a page; the row of headings is one of the rows."""
    found: list[Table] = []
    inside = False
    for line in page.splitlines():
        if line.startswith("|"):
            if not inside:
                found.append({})
            name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
            found[-1].setdefault(name, cells)
        inside = line.startswith("|")
    return found


def first_number(cell: str) -> float | None:
    number = re.match(r"\d+(\.\d+)?", cell)
    return float(number[0]) if number else None


def leads(table: Table) -> list[float]:
    """How far FedAvg is above the higher of the floors, in every column that has floors."""
    fedavg = next(cells for name, cells in table.items() if name.startswith("FedAvg"))
    found = []
    for column, cell in enumerate(fedavg):
        floors = [first_number(table[name][column]) for name in FLOORS]
        known = [floor for floor in floors if floor is not None]
        if known:
            reached = first_number(cell)
            assert reached is not None, f"FedAvg has no figure in column {column + 1}"
            found.append(reached - max(known))
    return found


def with_floors(name: str) -> list[Table]:
    page = (PAPERS / f"{name}.md").read_text("utf-8")
    return [table for table in tables(page) if all(floor in table for floor in FLOORS)]


@pytest.mark.parametrize("name", PAGES)
def test_fedavg_learns_in_every_column_that_is_printed(name: str) -> None:
    checked = with_floors(name)
    assert checked, f"papers/{name}.md has no table with rows for chance and majority"
    for table in checked:
        found = leads(table)
        assert found and min(found) >= 20, (list(table), found)


@pytest.mark.parametrize("name", PAGES)
def test_the_first_lines_say_whether_the_claim_holds(name: str) -> None:
    first = (PAPERS / f"{name}.md").read_text("utf-8").partition("\n## ")[0]
    _, asked, answer = first.partition("**Does the paper's claim hold here?** ")
    assert asked and re.match(r"(Yes|In part|Not)\b", answer)
    assert "authors' code" in " ".join(answer.split())


@pytest.mark.parametrize("name", ["f2dc", "fedgcr", "fedpcl"])
def test_rows_of_the_authors_code_stand_beside_ours(name: str) -> None:
    ours = {"f2dc": "F2DC", "fedgcr": "FedGCR", "fedpcl": "FedPCL"}[name]
    found = 0
    for table in tables((PAPERS / f"{name}.md").read_text("utf-8")):
        if f"the authors' {ours}" in table:
            for row in (ours, "FedAvg"):
                theirs, own = table[f"the authors' {row}"], table[row]
                assert len(theirs) == len(own), (name, row)
                assert any(first_number(cell) is not None for cell in theirs)
            found += 1
    assert found


def test_a_table_in_which_fedavg_learns_nothing_is_seen() -> None:
    page = "| | a | b |\n|---|---:|---:|\n| FedAvg | 45.0 (1.0) | 41 |\n| Local | 9 | 9 |\n"
    (table,) = tables(page + "| chance | 10.0 | - |\n| majority | 26.5 | - |\n")
    assert leads(table) == [18.5]
    assert tables("text\n\n" + page + "\ntext\n" + page)[1]["Local"] == ["9", "9"]
