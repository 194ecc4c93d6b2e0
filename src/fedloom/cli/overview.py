"""What `fedloom reproduce --list` prints: the papers' tables, and what each of them still needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from .options import console, print_line

Row = Mapping[str, Any]  # a table, as experiments/needs.py describes it


def print_overview(rows: Sequence[Row]) -> None:
    """How much can be run here; then, paper by paper, the tables and what full scale needs."""
    if len(rows) > 1:
        print_line(_conclusion(rows))
    papers: dict[str, list[Row]] = {}
    for row in rows:
        papers.setdefault(_paper(row), []).append(row)
    for paper, its_rows in papers.items():
        _print_tables(paper, its_rows)
        _print_needs(paper, its_rows)
    print_line(
        "\nmini and full: settings whose data are here, of all. minutes: an estimate for all of "
        "them at mini, on two idle cores. RAW is what you downloaded: `fedloom data about NAME` "
        "says from where. Data lie under --data-root or FEDLOOM_DATA."
    )


def _conclusion(rows: Sequence[Row]) -> str:
    """How many tables can be run here, at each scale."""
    counts = {}
    for scale in ("mini", "full"):
        counts[scale] = sum(row[scale]["here"] > 0 for row in rows)
    return (
        f"{len(rows)} tables and figures. Here are the data for {counts['mini']} of them at the "
        f"scale mini and for {counts['full']} at --scale full, the papers' own settings."
    )


def _paper(row: Row) -> str:
    """The paper's short name, with which its titles begin."""
    paper, comma, _ = row["title"].partition(", ")
    return paper if comma else "No paper"


def _print_tables(paper: str, rows: Sequence[Row]) -> None:
    table = Table("table", paper, "mini", "full", "minutes", box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        what = row["title"].removeprefix(f"{paper}, ")
        if row["rows"]["here"] < row["rows"]["all"]:
            what += f" ({row['rows']['here']} of {row['rows']['all']} rows)"
        mini, full = (f"{row[scale]['here']}/{row[scale]['all']}" for scale in ("mini", "full"))
        table.add_row(row["table"], what, mini, full, f"{row['minutes']:g}")
    console.print(table)


def _print_needs(paper: str, rows: Sequence[Row]) -> None:
    """What brings the tables of a paper to full scale: what all need, then what some need."""
    needs = {}
    for row in rows:
        if row["full"]["all"]:
            needs[row["table"]] = [*row["get"], *row["bring"]]
    shared = [need for need in next(iter(needs.values()), []) if _all_have(needs, need)]
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, its_needs in needs.items():
        own = tuple(need for need in its_needs if need not in shared)
        groups.setdefault(own, []).append(name)
    if not any(needs.values()):
        return
    print_line(f"{paper} at full scale needs")
    if shared:
        _print_group("every table" if len(needs) > 1 else next(iter(needs)), shared)
    for own, names in groups.items():
        if own:
            _print_group(", ".join(names), own)
        elif not shared:
            _print_group(", ".join(names), ["nothing more"])


def _all_have(needs: Mapping[str, Sequence[str]], need: str) -> bool:
    return all(need in its_needs for its_needs in needs.values())


def _print_group(names: str, needs: Sequence[str]) -> None:
    if len(needs) == 1:
        print_line(f"  {names}: {needs[0]}")
        return
    print_line(f"  {names}:")
    for need in needs:
        print_line(f"    {need}")
