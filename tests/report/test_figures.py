"""Charts and heat maps: what they hand to Plotly, and how Matplotlib draws them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from PIL import Image

from fedloom.report import RunData
from fedloom.report.document import main as render_main
from fedloom.report.figures import PERCENT, Axis, Chart, Heat, Mark
from fedloom.report.interactive import plotly
from fedloom.report.page import Page
from fedloom.report.palette import COLOURS, SYMBOLS, shorten
from fedloom.report.static import MARKERS, draw, page_svg, save


def chart() -> Chart:
    marks = [
        Mark("band", [1, 2], [3, 5], 0, low=[1, 2], opacity=0.2),
        Mark("line", [1, 2], [2, 4], 0, "one <b>", tips=["a", "b"]),
        Mark("line", [1, 2], [4, 1], 11, "two"),
        Mark("bars", [1], [3], 1, dy=[0.5], size=0.4, tips=["bar"]),
        *(
            Mark("dots", [i / 4], [2], 2, symbol=s, dx=[0.1])
            for i, s in enumerate((*SYMBOLS, "star"))
        ),
    ]
    return Chart("title", marks, Axis("x", whole=True), Axis("y", zero=True), rule=1.0)


def heat(count: int = 4) -> Heat:
    columns = [str(j) for j in range(count)]
    bands = ["left"] * (count // 2) + ["right"] * (count - count // 2)
    cells = [[-0.5, None, *(0.25 for _ in range(count - 2))]]
    return Heat("title", ["row"], columns, bands, cells, (-0.5, 0.5), lambda v: f"{v:.1f}")


def test_axes_have_round_ticks() -> None:
    marks = [Mark("line", [1, 2, 10], [40.0, 60.0, 83.0], 0)]
    axes = draw(Chart("", marks, Axis(whole=True), Axis())).axes
    low, high = axes.get_ylim()
    assert [t for t in axes.get_yticks() if low <= t <= high] == [40, 50, 60, 70, 80]
    assert all(t == round(t) for t in axes.get_xticks())
    axes = draw(Chart("", marks, Axis(), Axis(zero=True))).axes
    assert axes.get_ylim()[0] == 0.0


def test_long_names_are_cut_in_the_middle() -> None:
    assert shorten("short", 100) == "short"
    assert shorten("fedavg, seed 1", 65) == "fedavg\u2026d 1"
    assert shorten("name", 0) == ""


@pytest.mark.parametrize("figure", [chart(), heat(), heat(100)], ids=["chart", "heat", "wide"])
def test_a_figure_is_a_valid_svg_pdf_and_png(figure: Chart | Heat) -> None:
    alone = save(figure, "svg", legend=True).decode()
    root = ElementTree.fromstring(alone)
    assert "var(" not in alone  # a file of its own has no style sheet to take colours from
    width, height = (float(v) for v in root.attrib["viewBox"].split()[2:])
    inside = page_svg(figure, "id")
    assert "var(--" in inside and "http" not in inside and ' id="figure' not in inside
    image = Image.open(io.BytesIO(save(figure, "png")))
    assert abs(image.width - 3 * width) <= 3 and abs(image.height - 3 * height) <= 60
    assert len(image.getcolors(1 << 24) or []) > 20
    assert save(figure, "pdf").startswith(b"%PDF")
    assert save(figure, "svg") == save(figure, "svg")  # no dates, no random names


def test_points_carry_their_series_and_tips() -> None:
    root = ElementTree.fromstring(page_svg(chart(), "id"))
    groups = [g for g in root.iter("g") if g.get("data-s") == "0"]
    assert len(groups) == 2  # the band, and the line with its points
    assert [title.text for title in groups[1].iter("title")] == ["a", "b"]
    (bar, whisker) = (g for g in root.iter("g") if g.get("data-s") == "1")
    assert [title.text for title in bar.iter("title")] == ["bar"]
    assert not list(whisker.iter("title"))


def test_two_figures_of_a_page_share_no_names() -> None:
    names = []
    for id in ("one", "two"):
        root = ElementTree.fromstring(page_svg(chart(), id))
        names.append({e.attrib["id"] for e in root.iter() if "id" in e.attrib})
    assert names[0] and not names[0] & names[1]


def test_points_are_where_they_belong() -> None:
    axes = draw(
        Chart("", [Mark("dots", [0, 10], [0, 10], 0)], Axis(ends=(0, 10)), Axis(ends=(0, 10)))
    ).axes
    (dots,) = axes.lines
    assert dots.get_xydata().tolist() == [[0, 0], [10, 10]]
    assert axes.get_xlim() == (0, 10) and axes.get_ylim() == (0, 10)


def test_bars_stand_on_zero_even_below_it() -> None:
    axes = draw(
        Chart("", [Mark("bars", [0, 1], [2, -1], 0, size=0.5)], Axis(), Axis(ends=(-2, 2)))
    ).axes
    first, second = axes.patches
    assert (first.get_y(), first.get_height()) == (0, 2)
    assert (second.get_y(), second.get_height()) == (0, -1)


def test_a_cell_is_coloured_by_sign_and_strength() -> None:
    figure = heat()
    assert figure.paint(-0.5) == ("neg", 1.0) and figure.paint(None) == ("panel", 1.0)
    assert figure.paint(0.25)[0] == "pos" and 0.4 < figure.paint(0.25)[1] < 0.6
    root = ElementTree.fromstring(page_svg(figure, "id"))
    cells = {}
    for path in root.iter("path"):
        title = path.find("title")
        if title is not None:
            cells[title.text] = path.attrib["style"]
    assert "var(--neg)" in cells["row, client 0 (left): -0.5"]
    assert "fill-opacity" not in cells["row, client 0 (left): -0.5"]
    assert "var(--pos)" in cells["row, client 2 (right): 0.2"]
    assert "fill-opacity: 0.52" in cells["row, client 2 (right): 0.2"]
    assert "var(--panel)" in cells["row, client 1 (left): \u2013"]
    words = [text.text for text in root.iter("text")]
    assert words.count("left") == 1 and words.count("-0.5") == 2  # in its cell and in the key
    many = ElementTree.fromstring(page_svg(heat(100), "id"))
    assert [text.text for text in many.iter("text")].count("-0.5") == 1  # no room in the cells


def test_plotly_gets_plain_json_with_named_colours() -> None:
    for figure in (chart(), heat()):
        json.dumps(plotly(figure), allow_nan=False)
    data = plotly(chart())
    band, first, second, bar, *_ = data["data"]
    assert band["fillcolor"] == "@p0/0.2" and band["y"] == [3, 5, 2, 1]
    assert (
        first["line"]["color"] == "@p0"
        and first["name"] == "one &lt;b&gt;"
        and first["text"] == ["a", "b"]
    )
    # the colours have begun again
    assert second["line"]["color"] == "@p1" and second["line"]["dash"] == "7px,3px"
    assert bar["error_y"]["array"] == [0.5]
    assert [t["meta"] for t in data["data"][:4]] == [0, 0, 11, 1]
    assert data["layout"]["shapes"][0]["x0"] == 1.0
    warm = plotly(heat())
    assert warm["data"][0]["z"] == [[-0.5, None, 0.25, 0.25]] and warm["data"][0]["zmin"] == -0.5
    assert [a["text"] for a in warm["layout"]["annotations"]] == ["left", "right"]


def test_whiskers_and_bands_of_shares_end_at_0_and_100(make: Callable[..., RunData]) -> None:
    mark = Mark("bars", [0, 1], [95.0, 10.0], 0, dy=[20.0, None], ends=PERCENT, size=0.4)
    assert mark.reach(mark.y, mark.dy) == [[20.0, 0.0], [5.0, 0.0]]
    error = plotly(Chart("", [mark], Axis(), Axis()))["data"][0]["error_y"]
    assert (error["arrayminus"], error["array"]) == ([20.0, 0.0], [5.0, 0.0])
    runs = []
    for seed, value in enumerate((1.0, 1.0, 0.5)):  # the mean is 0.83, the std 0.29
        runs.append(make("fedavg", [value, value], seed))
    page = Page(runs, "t")
    render_main(page)
    drawn = 0
    for panel in page.panels:
        for mark in getattr(panel.figure, "marks", ()):
            if mark.kind == "band" or any(mark.dx) or any(mark.dy):
                drawn += 1
                assert max(mark.y) <= 100 and min(mark.low, default=0) >= 0
                for values, errors in ((mark.x, mark.dx), (mark.y, mark.dy)):
                    if any(errors):
                        _, up = mark.reach(values, errors)
                        assert values[0] + up[0] <= 100
    assert drawn > 3


def test_symbols_have_markers_and_colours_their_two_values() -> None:
    assert len(SYMBOLS) == 8 and {*SYMBOLS, "star"} == set(MARKERS)
    assert len(set(MARKERS.values())) == len(MARKERS)
    assert all(len(pair) == 2 and all(len(c) == 7 for c in pair) for pair in COLOURS.values())


def test_the_eleventh_method_is_dashed() -> None:
    axes = draw(chart()).axes
    _, plain, dashed, *_ = axes.lines
    assert plain.get_linestyle() == "-" and dashed.get_linestyle() == "--"


def test_nobody_waits_for_matplotlib_before_a_figure_is_drawn() -> None:
    code = (
        "import sys, fedloom, fedloom.cli.main, fedloom.report.document, fedloom.report.pictures;"
        "print('matplotlib' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
