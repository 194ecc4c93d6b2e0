"""Figures of the papers: every one has a recipe, and a drawing shows what it is given."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from fedloom.core.errors import FedloomError
from fedloom.engine.config import build
from fedloom.engine.run import execute
from fedloom.experiments.board import side_by_side
from fedloom.experiments.pictures import write_pictures
from fedloom.experiments.recipe import Recipe, recipe
from fedloom.report.table_figures import DRAWINGS, Runs, Table, draw

# Every figure of the five papers that shows results, by the kind of its drawing.
FIGURES = {
    "feddtr-figure3": "by-round",
    "fedpcl-figure2": "by-setting",
    "fedpcl-figure3": "heat",
    "fedpact-figure2": "bars",
    "fedpact-figure3": "by-setting",
    "fedpact-figure4": "by-column",
    "fedgcr-figure3": "prompts",
    "f2dc-figure1": "spectrum",
    "f2dc-figure2": "grad-cam",
    "f2dc-figure4": "t-sne",
    "f2dc-figure5": "by-round",
    "f2dc-figure6": "sweep",
    "f2dc-figure7": "grid",
    "f2dc-figure8": "grid",
}
SPACE = "{http://www.w3.org/2000/svg}"


@dataclass
class Rounds:
    """What curves are made of: a run with a line of metrics per round."""

    values: list[float]
    metrics: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = [
            {"round": i, "common": None, "personal": {"domain_avg": v, "accuracy_weighted": v}}
            for i, v in enumerate(self.values, 1)
        ]


def board(table: Recipe) -> dict[str, Any]:
    """A table that is full of made-up figures: 0.10, 0.11 ... in reading order."""
    settings, next_figure = [], 0.10
    for setting in table.settings:
        rows = []
        for row in setting.rows:
            ours = []
            for _ in setting.columns:
                ours.append({"mean": next_figure % 1, "std": 0.01})
                next_figure += 0.01
            paper = ["-"] * len(ours)
            rows.append({"row": row, "ours": ours, "paper": paper, "remark": None})
        settings.append(
            {
                "name": setting.name,
                "columns": list(setting.columns),
                "plain": [False] * len(setting.columns),
                "rows": rows,
                "data": "made up",
                "differs": [],
            }
        )
    return {"table": table.name, "title": "T", "settings": settings, "means": table.means}


def drawn(name: str) -> Element:
    """A paper's figure drawn from made-up numbers, as SVG."""
    table = recipe(name)
    runs: list[Any] = [
        Runs(s.name, s.who, {row: [Rounds([0.2, 0.4]), Rounds([0.4, 0.8])] for row in s.rows})  # type: ignore[list-item]
        for s in table.settings
    ]
    options = dict(table.drawings[0])
    blocks = side_by_side(board(table))
    picture = draw(options.pop("kind"), Table(name, "T", blocks, runs), options)
    assert picture is not None
    return ElementTree.fromstring(picture("svg"))


def texts(svg: Element) -> list[str]:
    """The texts that can be read; tips are elements of their own."""
    return [(text.text or "").strip() for text in svg.iter(f"{SPACE}text")]


def series(svg: Element) -> list[Element]:
    """The parts that belong to a series: a line with its dots, the error bars, one bar ..."""
    return [part for part in svg.iter(f"{SPACE}g") if "data-s" in part.attrib]


def dots(part: Element) -> int:
    return len(list(part.iter(f"{SPACE}use")))


@pytest.mark.parametrize(("name", "kind"), FIGURES.items())
def test_every_figure_of_the_papers_has_a_recipe_that_draws_it(name: str, kind: str) -> None:
    table = recipe(name)
    assert [drawing["kind"] for drawing in table.drawings] == [kind]
    assert kind in DRAWINGS.names()
    for row in table.drawings[0].get("rows", []):
        assert row in table.rows


def test_curves_by_round_are_means_of_seeds() -> None:
    svg = drawn("feddtr-figure3")
    words = texts(svg)
    assert "(a) Amazon Review" in words and "(b) Fashion-MNIST" in words
    rows = list(recipe("feddtr-figure3").rows)
    assert [words.count(row) for row in rows] == [1] * 14  # one legend for both panels
    lines = series(svg)
    assert len(lines) == 2 * 14 and {dots(line) for line in lines} == {2}
    # The means of two seeds are 30 and 60: the axis that holds them has no 20 and no 80.
    assert "30" in words and "60" in words and not {"20", "80"} & set(words)


def test_lines_along_settings_have_error_bars() -> None:
    svg = drawn("fedpcl-figure2")
    words = texts(svg)
    assert [words.count(w) for w in ("(a) non-IID level", "(b) number of clients", "alpha")] == [
        1
    ] * 3
    assert {"0.5", "2", "80"} <= set(words)
    lines = [part for part in series(svg) if dots(part) == 5]
    rows = {s.name: s.rows for s in recipe("fedpcl-figure2").settings}
    assert len(lines) == len(rows["alpha 1"]) + len(rows["10 clients"]) == 5
    assert len(series(svg)) == 2 * len(lines)  # a bar of the std for each
    # FedPCL stands in both panels with one colour, and no other row has it.
    assert [line.attrib["data-s"] for line in lines] == ["0", "1", "2", "0", "3"]


def test_means_by_shots_and_every_data_set_by_shots() -> None:
    mean, every = drawn("fedpact-figure3"), drawn("fedpact-figure4")
    assert [dots(part) for part in series(mean)] == [4] * 7
    assert {"1", "4", "8", "16", "mean, %", "FedPACT-P"} <= set(texts(mean))
    assert [dots(part) for part in series(every) if dots(part)] == [4] * 70
    names = {
        "Flower",
        "DTD",
        "Pets",
        "Cars",
        "UCF",
        "Caltech",
        "Food",
        "SUN",
        "Aircraft",
        "EuroSAT",
    }
    assert names <= set(texts(every)) and texts(every).count("FedPACT-P") == 1


def test_bars_and_the_figures_above_them() -> None:
    svg = drawn("fedpact-figure2")
    words = texts(svg)
    for name in ("FedPACT-P: accuracy", "FedPACT-w/o-H: accuracy", "FedPACT-P: least alignment"):
        assert words.count(name) == 1
    parts = series(svg)
    assert len([part for part in parts if not dots(part)]) == 20  # two bars for ten data sets
    assert [dots(part) for part in parts if dots(part)] == [10, 10]
    assert "EuroSAT" in words


def test_sweeps_and_grids() -> None:
    sweep, grid = drawn("f2dc-figure6"), drawn("f2dc-figure7")
    assert [dots(part) for part in series(sweep) if dots(part)] == [8, 8]
    assert {"PACS: AVG", "PACS: STD", "tau", "0.02", "0.5"} <= set(texts(sweep))
    # Nine rows with two columns each: the means are 10, 12 ... 26 %, from left to right.
    numbers = [word for word in texts(grid) if re.fullmatch(r"\d+\.\d", word)]
    assert [numbers.count(f"{value}.0") for value in range(12, 26, 2)] == [1] * 7
    assert {"alpha 0.5", "alpha 1.5", "beta 0.0", "beta 0.8"} <= set(texts(grid))


def test_heat_maps_leave_out_what_was_not_measured() -> None:
    made = board(recipe("fedpcl-figure3"))
    office = made["settings"][1]
    first, second = office["rows"][:2]
    first["ours"] = None
    for row in office["rows"][1:]:
        row["ours"][1]["mean"] = None
    picture = draw("heat", Table("t", "T", side_by_side(made), []), {})
    assert picture is not None
    words = texts(ElementTree.fromstring(picture("svg")))
    assert words.count(first["row"]) == 1 and words.count(second["row"]) == 2
    assert office["columns"][1] not in words and words.count(office["columns"][2]) == 1


def test_nothing_measured_is_no_picture_and_an_unknown_kind_is_refused() -> None:
    table = recipe("f2dc-figure6")
    made = board(table)
    for row in made["settings"][0]["rows"]:
        row["ours"] = None
    empty = Table("t", "T", side_by_side(made), [])
    assert draw("sweep", empty, {"label": "tau", "columns": ["AVG"]}) is None
    assert draw("by-round", empty, {"measure": "domain_avg"}) is None
    assert draw("spectrum", empty, {"rows": ["FedAvg"]}) is None
    with pytest.raises(FedloomError, match="unknown kind of figure 'swep'; did you mean 'sweep'"):
        draw("swep", empty, {})


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A table of two small finished runs, one of them shown in two rows."""
    folder = tmp_path_factory.mktemp("runs")
    few = {"limit_train": 6, "limit_test": 3, "rounds": 1, "steps": 1, "width": 4, "features": 8}
    runs = {}
    for method, more in (("f2dc", {"bottleneck": 2}), ("fedgcr", {})):
        given = {"method": method, "data": "digits4", "clients": 4}
        runs[method] = execute(build(given, {**few, **more}), out=folder / method)
    f2dc, fedgcr = runs["f2dc"], runs["fedgcr"]
    rows = {"FedAvg": [f2dc], "F2DC": [f2dc], "FedGCR": [fedgcr]}
    return Table("t", "T", [], [Runs("digits", "common", rows)])


def svg_of(table: Table, kind: str, **options: Any) -> Element:
    picture = draw(kind, table, options)
    assert picture is not None and picture("pdf").startswith(b"%PDF")
    return ElementTree.fromstring(picture("svg"))


def test_spectra_have_a_line_per_client(table: Table) -> None:
    svg = svg_of(table, "spectrum", rows=["FedAvg", "F2DC"])
    words = texts(svg)
    assert words.count("(a) FedAvg") == words.count("(b) F2DC") == words.count("street") == 1
    tips = [title.text for title in svg.iter(f"{SPACE}title")]
    assert len(tips) == 8 and sorted(set(tips)) == ["handwritten", "photo", "printed", "street"]


def test_t_sne_has_a_dot_per_sample_and_a_star_per_class(table: Table) -> None:
    svg = svg_of(table, "t-sne", rows=["FedAvg", "F2DC", "FDSE"])  # the last one was not run
    words = texts(svg)
    assert {"(a) FedAvg", "(b) F2DC", "photo", "7"} <= set(words) and "FDSE" not in str(words)
    tips = [title.text or "" for title in svg.iter(f"{SPACE}title")]
    assert len([tip for tip in tips if tip.startswith("mean of class")]) == 2 * 10
    shown = sum(
        len(list(group)) for group in svg.iter(f"{SPACE}g") if group.find(f"{SPACE}use") is not None
    )
    assert shown >= 2 * (120 + 10)


def test_grad_cam_has_a_column_per_domain_and_rows_for_parts(table: Table) -> None:
    svg = svg_of(table, "grad-cam", rows=["FedAvg", "F2DC"], domain="photo", label="3")
    words = texts(svg)
    assert [words.count(w) for w in ("handwritten", "photo", "printed", "street")] == [1] * 4
    assert [words.count(w) for w in ("input", "FedAvg", "F2DC")] == [1] * 3
    assert [words.count(w) for w in ("f+", "f-", "f*")] == [2] * 3
    assert len(list(svg.iter(f"{SPACE}image"))) == 4 * 9
    with pytest.raises(FedloomError, match="no client of domain 'sketch', or no class"):
        draw("grad-cam", table, {"rows": ["FedAvg"], "domain": "sketch", "label": "3"})


def test_prompts_are_drawn_by_domain(table: Table) -> None:
    words = texts(svg_of(table, "prompts", rows=["FedGCR"]))
    assert "digits: FedGCR" in words
    assert [words.count(w) for w in ("handwritten", "photo", "printed", "street")] == [1] * 4
    with pytest.raises(FedloomError, match="FedAvg has no GC-Net"):
        draw("prompts", table, {"rows": ["FedAvg"]})


def test_a_picture_that_fails_costs_the_table_a_warning_only(tmp_path: Path) -> None:
    made = board(recipe("f2dc-figure6"))
    drawings = [
        {"kind": "sweep", "label": "tau", "columns": ["none"]},
        {"kind": "sweep", "label": "tau", "columns": ["AVG"], "name": "by tau"},
    ]
    with pytest.warns(UserWarning, match="the picture f2dc-figure6 could not be made"):
        names = write_pictures(drawings, made, [], tmp_path, "cpu")
    assert names == ["f2dc-figure6-by-tau.svg"]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "f2dc-figure6-by-tau.pdf",
        "f2dc-figure6-by-tau.svg",
    ]
