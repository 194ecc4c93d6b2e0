"""Pages say what each method was checked against, or why nothing was; golden files name presets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedloom.core.lookup import names
from tests.parity.golden import FOLDER, Golden, golden

PAPERS = Path(__file__).parents[2] / "papers"
CHECKED = sorted(path.stem for path in FOLDER.glob("*.json"))
PAGES = sorted(path.stem for path in PAPERS.glob("*.md") if path.stem != "README")
RUN = re.compile(
    r"Checked against: (?P<repository>[\w.-]+/[\w.-]+), commit (?P<commit>[0-9a-f]{7}), "
    r"(?P<date>\d{4}-\d\d-\d\d): .{20,}? by at most (?P<most>\d\.\de-\d\d)"
)
NOTHING = re.compile(r"Checked against: nothing\. [A-Z].{30,}")
AS_ANOTHER = re.compile(r"Checked against: as \[\w+\]\((?P<page>[\w-]+)\.md\), .{10,}")


def paragraphs(page: str) -> list[str]:
    """The paragraphs of a page, each in one line."""
    text = (PAPERS / f"{page}.md").read_text("utf-8")
    return [" ".join(part.split()) for part in text.split("\n\n")]


def checked(page: str) -> str:
    """The paragraph that says what the page's method was checked against."""
    found = [part for part in paragraphs(page) if part.startswith("Checked against: ")]
    assert len(found) == 1, f"papers/{page}.md needs one paragraph 'Checked against: ...'"
    return found[0]


def rows(heading: str) -> dict[str, list[str]]:
    """The rows of the README's table whose header begins so, by page."""
    by_page, within = {}, False
    for line in (PAPERS / "README.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        header = line.startswith(f"| {heading} |")
        if within and not line.startswith("|-") and line.startswith("|"):
            by_page[cells[0].strip("`")] = cells[1:]
        within = header or (within and line.startswith("|"))
    return by_page


def of_file(name: str) -> Golden:
    """A golden file with the name of its method; a plug-in is round FedAvg."""
    return golden(name if name in names() else f"fedavg+{name}", name)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_was_run_or_why_nothing_was(page: str) -> None:
    said = checked(page)
    if page in CHECKED:
        theirs, found = golden(page), RUN.match(said)
        assert found, f"papers/{page}.md: 'Checked against: REPOSITORY, commit ..., DATE: ...'"
        assert found["repository"] == theirs.repository
        assert (found["commit"], found["date"]) == (theirs.commit[:7], theirs.date)
    elif other := AS_ANOTHER.match(said):
        assert other["page"] in CHECKED
    else:
        assert NOTHING.match(said), f"papers/{page}.md: 'Checked against: nothing. WHY'"


def test_the_tables_of_all_have_every_page_once() -> None:
    compared, others = rows("method | repository"), rows("not compared")
    assert sorted(compared) == CHECKED
    assert sorted([*compared, *others]) == PAGES
    for page, (repository, commit, date, _, most) in compared.items():
        said = RUN.match(checked(page))
        assert said and said.groups() == (repository, commit, date, most), page
    for page, (why,) in others.items():
        assert len(why.split()) > 3, f"papers/README.md: why was {page} not compared?"


@pytest.mark.parametrize("name", CHECKED)
def test_the_preset_is_what_was_run(name: str) -> None:
    """On top of it a file has sizes, step sizes and the like; other choices have their reasons."""
    theirs = of_file(name)
    presets = theirs.method_class.traits.presets
    if "official" not in presets:
        return
    if "no_preset" in theirs.settings:
        assert "preset" not in theirs.settings
        return
    assert theirs.settings.get("preset") == "official"
    reasons = theirs.settings.get("instead", {})
    own = theirs.settings.get("method", {}) | theirs.settings.get("training", {})
    for key, value in theirs.preset.items():
        key = key.removeprefix("training.")
        if key in own:
            assert own[key] != value, f"{name}: {key} is what the preset says"
            scaled = isinstance(value, int | float) and not isinstance(value, bool)
            assert scaled or key in reasons, f"{name}: why is {key} not the preset's?"
