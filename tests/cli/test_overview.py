"""`fedloom reproduce --list`: what can be run here, and what the papers' tables still need."""

from __future__ import annotations

import pytest

from fedloom.experiments.recipe import tables

NOWHERE = ("--data-root", "/nowhere/at/all")


def test_the_conclusion_comes_first_and_every_table_has_its_commands(fedloom) -> None:
    code, out, _ = fedloom("reproduce", "--list", *NOWHERE)
    first, *lines = out.splitlines()
    assert code == 0 and first.startswith(f"{len(tables())} tables and figures. ")
    assert "  f2dc-1, f2dc-6, f2dc-figure5:" in lines
    at = lines.index("FedPACT at full scale needs")
    assert lines[at + 1 : at + 3] == ["  every table:", "    fedloom data import flowers102 RAW"]
    assert "  fedpact-2: --encoder clip:ViT-B-16.pt (CLIP with a ViT-B/16)" in lines[at:]
    assert out.count("fedloom data import flowers102 RAW") == 1
    for name in tables():
        assert f" {name} " in out


def test_one_table_alone(fedloom) -> None:
    code, out, _ = fedloom("reproduce", "feddtr-7", "--list", *NOWHERE)
    needs = out.partition("FedDTR at full scale needs\n")[2].splitlines()
    assert code == 0 and needs[:4] == [
        "  feddtr-7:",
        "    fedloom data get cifar10",
        "    fedloom data get pacs",
        "    fedloom data import digits RAW",
    ]


def test_what_needs_nothing_says_so(fedloom) -> None:
    code, out, _ = fedloom("reproduce", "f2dc-surf", "--list", *NOWHERE)
    assert code == 0 and "0/1" in out and "0/0" in out
    assert "needs" not in out  # the paper has no such setting


@pytest.mark.parametrize("columns", ["80", "200"])
def test_names_are_never_cut(fedloom, monkeypatch, columns) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = fedloom("reproduce", "--list", *NOWHERE)
    for name in ("fedpcl-2official", "fedpact-figure4", "feddtr-theory"):
        assert f" {name} " in out
