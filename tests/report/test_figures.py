"""Charts and heat maps: what they hand to Plotly, and how Matplotlib draws them."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from fedloom.core import lookup
from fedloom.report import RunData
from fedloom.report.document import main as render_main
from fedloom.report.figures import PERCENT, Axis, Chart, Heat, Mark
from fedloom.report.interactive import plotly
from fedloom.report.page import Page
from fedloom.report.palette import (
    COLOURS,
    COMMON,
    DASHES,
    PALETTE,
    SYMBOLS,
    colour,
    dashes,
    fold,
    hatch,
    shorten,
    slots,
    symbol,
)
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


def test_a_single_round_has_whole_numbers_beside_it() -> None:
    once = Chart("", [Mark("line", [1], [40.0], 0)], Axis(whole=True), Axis())
    axes = draw(once).axes
    low, high = axes.get_xlim()
    assert [t for t in axes.get_xticks() if low <= t <= high] == [0, 1, 2]
    assert plotly(once)["layout"]["xaxis"]["dtick"] == 1
    many = replace(once, marks=[Mark("line", [1, 60], [40.0, 50.0], 0)])
    assert "dtick" not in plotly(many)["layout"]["xaxis"]


def test_a_narrow_figure_shrinks_on_a_phone_and_does_not_fill_a_page() -> None:
    root = ElementTree.fromstring(page_svg(chart(), "id"))
    width = float(root.attrib["viewBox"].split()[2])
    assert root.attrib["class"] == "fit" and "width" not in root.attrib
    (widest,) = re.findall(r"max-width: ([\d.]+)px", root.attrib["style"])
    assert width < float(widest) <= 1.25 * width + 1


def test_a_band_has_several_lines_before_its_name_is_turned() -> None:
    drawn = heat(6)
    assert drawn.band_label(3, "handwritten on paper", 40) == "handwritten on\npaper"
    assert not drawn.band_upright(3, "handwritten on paper", 40)
    assert drawn.band_label(1, "handwritten on paper", 40) == "handwritten on paper"
    assert drawn.band_upright(1, "handwritten on paper", 40)


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
    assert second["line"]["color"] == "@p5" and second["line"]["dash"] == "7px,3px"
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


def test_methods_after_the_sixth_are_dashed() -> None:
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


# -- colours --------------------------------------------------------------------------------------
# What readers see who lack one kind of cone: Machado, Oliveira and Fernandes (2009), severity 1.
BLINDNESS = {
    "none": np.eye(3),
    "protan": np.array(
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    ),
    "deutan": np.array(
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    ),
    "tritan": np.array(
        [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
    ),
}
TO_XYZ = np.array([[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]])


def linear(name: str) -> np.ndarray:
    """The amounts of red, green and blue light."""
    parts = np.array([int(name[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    """CIELAB: distances in it are about as large as they look."""
    x, y, z = TO_XYZ @ np.clip(light, 0, 1) / np.array([0.9505, 1, 1.0888])
    f = [np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colour_blind_readers_can_tell_methods_apart(theme: int) -> None:
    colours = [COLOURS[f"p{i}"][theme] for i in range(PALETTE)]
    assert len(set(colours)) == 6
    for kind, seen_as in BLINDNESS.items():
        places = [lab(seen_as @ linear(name)) for name in colours]
        for a, b in combinations(range(PALETTE), 2):
            assert np.linalg.norm(places[a] - places[b]) > 20, (kind, colours[a], colours[b])
    background = lab(linear(COLOURS["card"][theme]))
    for name in colours:
        assert np.linalg.norm(lab(linear(name)) - background) > 30


def test_a_method_has_its_colour_whatever_stands_beside_it() -> None:
    """Colours are names', dashes tell those apart that share one, and order says nothing."""
    demo = ["local", "fedavg", "fedprox", "fedper", "fedbn", "scaffold"]
    assert sorted(slots(demo).values()) == [0, 1, 2, 3, 4, 5]
    advised = ["local", "fedavg", "fedavg-ft", "fdse", "fedbn", "fedsr", "fedplvm", "fpl", "fediir"]
    sweep = [f"fedprox (mu={mu})" for mu in (0.01, 0.1, 1)]
    mine = ["fedavg", "scaffold", "mymethod", "fpl+dfdc", "another", "fedavg-after"]
    every = [*lookup.names(), *(f"method {i}" for i in range(60))]
    pages = [demo, advised, sweep, mine, [*demo, *advised, *sweep], *([name] for name in mine)]
    whole = slots(every + [name for page in pages for name in page])
    for page in [*pages, every]:
        numbers = slots(page)
        assert numbers == slots(page[::-1]) and set(numbers) == set(page)
        assert all(colour(number) == colour(whole[name]) for name, number in numbers.items())
        looks = {(colour(n), dashes(n), symbol(n)) for n in numbers.values()}
        assert len(looks) == len(numbers)
        for ink in {colour(n) for n in numbers.values()}:  # one full line for each colour
            drawn = [n for n in numbers.values() if colour(n) == ink]
            assert sum(dashes(n) + hatch(n) == "" for n in drawn[: len(DASHES)]) == 1
            assert min(drawn) < PALETTE
    for name in ("local", "fedavg", "fedprox", "fedper", "fedbn", "scaffold"):
        assert dashes(whole[name]) == hatch(whole[name]) == ""
    assert len({colour(n) for n in slots(lookup.names()).values()}) == PALETTE
    assert slots(["FedBN", "Per-FedAvg"]) == {"FedBN": 4, "Per-FedAvg": 5}  # tables of papers


def test_the_table_of_colours_names_methods_that_are_there() -> None:
    named = " ".join(COMMON).split()
    assert len(COMMON) == PALETTE and len(named) == len(set(named))
    assert not set(named) - {*lookup.names(), "fedavg-after"}


def test_labels_are_broken_not_cut() -> None:
    assert fold("short", 100) == "short"
    lines = fold("a client with a very long name, seed 1", 80).split("\n")
    assert len(lines) > 1 and max(map(len, lines)) <= 12
    assert " ".join(lines) == "a client with a very long name, seed 1"
    long = "averylongdomainname"
    wide = Heat("t", ["row " * 20], ["0", "1"], [long, "b"], [[1.0, 2.0]], (0.0, 2.0), str)
    words = [text.text for text in ElementTree.fromstring(page_svg(wide, "id")).iter("text")]
    assert long in words and "\u2026" not in "".join(filter(None, words))
    crowd = Heat(
        "t", ["row"], list(map(str, range(1000))), [None] * 1000, [[1.0] * 1000], (0, 1), str
    )
    cell, _, left, _ = crowd.sizes()
    assert left + 1000 * cell < 1240  # it fits on a page
