"""Charts and heat maps: their axes, what they hand to Plotly, how they are drawn."""

from __future__ import annotations

import io
import json
from xml.etree import ElementTree

import pytest
from PIL import Image

from fedloom.report.drawing import COLOURS, SYMBOLS, Drawing, shorten, symbol_points
from fedloom.report.figures import Axis, Chart, Heat, Mark, spread


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
    assert spread([40.0, 83.0], 6, False, False) == (
        40.0,
        90.0,
        [40.0, 50.0, 60.0, 70.0, 80.0, 90.0],
    )
    assert spread([1, 10], 8, True, True) == (1, 10, [2, 4, 6, 8, 10])
    assert spread([1], 8, True, True) == (0, 1, [0, 1])
    assert Axis(zero=True).scale([5.0, 9.0], 6, False)[0] == 0.0


def test_long_names_are_cut_in_the_middle() -> None:
    assert shorten("short", 100) == "short"
    assert shorten("fedavg, seed 1", 65) == "fedavg\u2026d 1"
    assert shorten("name", 0) == ""


@pytest.mark.parametrize("figure", [chart(), heat(), heat(100)], ids=["chart", "heat", "wide"])
def test_a_drawing_is_valid_svg_and_png(figure: Chart | Heat) -> None:
    drawing = figure.draw(legend=True)
    alone = drawing.svg(alone=True)
    ElementTree.fromstring(alone)
    assert "var(" not in alone  # a file of its own has no style sheet to take colours from
    assert "var(--" in drawing.svg()
    image = Image.open(io.BytesIO(drawing.png(scale=1)))
    assert (
        image.size == (round(drawing.width), round(drawing.height))
        or image.width >= drawing.width - 1
    )
    assert len(image.getcolors(1 << 24) or []) > 20


def test_points_are_where_they_belong() -> None:
    sheet = Chart(
        "", [Mark("dots", [0, 10], [0, 10], 0)], Axis(ends=(0, 10)), Axis(ends=(0, 10))
    ).draw()
    (low, high) = (item.points[0] for item in sheet.items if item.kind == "circle")
    ticks = {
        item.text: item.points[0]
        for item in sheet.items
        if item.kind == "text" and item.anchor == "middle"
    }
    assert low[0] == pytest.approx(ticks["0"][0]) and high[0] == pytest.approx(ticks["10"][0])
    assert low[1] > high[1]


def test_bars_stand_on_zero_even_below_it() -> None:
    sheet = Chart(
        "", [Mark("bars", [0, 1], [2, -1], 0, size=0.5)], Axis(), Axis(ends=(-2, 2))
    ).draw()
    first, second = (
        [y for _, y in item.points]
        for item in sheet.items
        if item.kind == "path" and item.fill == "p0"
    )
    assert max(first) == pytest.approx(min(second))
    assert max(first) - min(first) == pytest.approx(2 * (max(second) - min(second)))


def test_a_cell_is_coloured_by_sign_and_strength() -> None:
    sheet = heat().draw()
    cells = {i.tip: i for i in sheet.items if i.kind == "path" and i.tip.startswith("row")}
    assert (
        cells["row, client 0 (left): -0.5"].fill == "neg"
        and cells["row, client 0 (left): -0.5"].opacity == 1
    )
    assert cells["row, client 2 (right): 0.2"].fill == "pos"
    assert cells["row, client 1 (left): \u2013"].fill == "panel"
    assert [i.text for i in sheet.items if i.text == "left"] == ["left"]
    assert not [
        i for i in heat(100).draw().items if i.text == "-0.5" and i.anchor == "middle"
    ]  # too many for numbers


def test_plotly_gets_plain_json_with_named_colours() -> None:
    for figure in (chart(), heat()):
        json.dumps(figure.plotly(), allow_nan=False)
    made = chart().plotly()
    band, first, second, bar, *_ = made["data"]
    assert band["fillcolor"] == "@p0/0.2" and band["y"] == [3, 5, 2, 1]
    assert (
        first["line"]["color"] == "@p0"
        and first["name"] == "one &lt;b&gt;"
        and first["text"] == ["a", "b"]
    )
    assert (
        second["line"]["color"] == "@p1" and second["line"]["dash"] == "7px,3px"
    )  # the colours have begun again
    assert bar["error_y"]["array"] == [0.5] and [t["meta"] for t in made["data"][:4]] == [
        0,
        0,
        11,
        1,
    ]
    assert made["layout"]["shapes"][0]["x0"] == 1.0
    warm = heat().plotly()
    assert warm["data"][0]["z"] == [[-0.5, None, 0.25, 0.25]] and warm["data"][0]["zmin"] == -0.5
    assert [a["text"] for a in warm["layout"]["annotations"]] == ["left", "right"]


def test_symbols_have_their_corners_and_colours_their_two_values() -> None:
    assert len(SYMBOLS) == 8 and symbol_points("circle", 0, 0, 1) == []
    assert {s: len(symbol_points(s, 0, 0, 1)) for s in ("square", "star", "cross")} == {
        "square": 4,
        "star": 10,
        "cross": 12,
    }
    assert all(len(pair) == 2 and all(len(c) == 7 for c in pair) for pair in COLOURS.values())


def test_dashes_are_drawn_in_png_too() -> None:
    sheet = Drawing(100, 20)
    sheet.line([(0, 10), (100, 10)], "ink", 2, dashes="10 10")
    image = Image.open(io.BytesIO(sheet.png(scale=1))).convert("L")
    dark = [image.getpixel((x, 10)) < 128 for x in range(2, 98, 4)]
    assert any(dark) and not all(dark)
