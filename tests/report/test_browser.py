"""The page in a real browser, opened from disk: every figure is drawn.

Nothing is logged and nothing asked of the network.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fedloom.report import interactive as plots
from fedloom.report import render
from fedloom.report.figures import Panel

MARKS = (
    "f.querySelectorAll('svg path, svg circle, svg image').length"
    " + 9 * f.querySelectorAll('img').length"
)


@pytest.fixture(params=["plotly", "still"])
def interactive(request: pytest.FixtureRequest) -> bool:
    if request.param == "plotly" and plots.plotly_library() is None:
        pytest.skip("the extra plots is not installed")
    return request.param == "plotly"


@pytest.fixture
def address(comparison, tmp_path: Path, interactive: bool) -> str:
    """A page on disk, with a name that needs care."""
    board = {
        "tests": [
            {
                "a": "fedbn",
                "b": "fedavg",
                "p_holm": 0.01,
                "sentence": "fedbn is better than fedavg.",
            }
        ]
    }
    views = {
        "Extra": [Panel("extra", "A <b>view</b>", "made up", comparison[0].picture or _picture())]
    }
    path = tmp_path / "a page.html"
    path.write_text(render(comparison, "Tests & more", board, interactive=interactive, views=views))
    assert path.stat().st_size < 8_000_000
    return path.as_uri()


def _picture() -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (40, 20), "#0b62a8").save(file, format="PNG")
    return file.getvalue()


def show_all(browser) -> None:
    """Scroll past everything and open every tab."""
    for number in range(browser.js("document.querySelectorAll('figure').length")):
        figure = f"document.querySelectorAll('figure')[{number}]"
        browser.js(f"{figure}.closest('.tab')?.querySelector('label').click()")
        browser.js(f"{figure}.scrollIntoView({{behavior: 'instant'}})")
        # what is drawn of it: a picture, an SVG, or Plotly's
        drawn = f"!!{figure}.querySelector('img, .scroll > svg, .live .xy')"
        browser.until(partial(browser.js, drawn))


@pytest.mark.parametrize(
    ("name", "width", "dark"), [("light", 1280, False), ("dark", 1280, True), ("phone", 390, False)]
)
def test_it_opens_without_error_or_request_and_draws_every_figure(
    browser, address: str, interactive: bool, name: str, width: int, dark: bool
) -> None:
    browser.open(address, width=width, dark=dark)
    assert browser.js("document.querySelector('h1').textContent") == "Tests & more"
    figures = browser.js("document.querySelectorAll('figure').length")
    assert figures == 18
    show_all(browser)
    if interactive:
        assert (
            browser.js("document.querySelectorAll('.plot.drawn').length") == figures - 1
        )  # one is a picture
    else:
        assert browser.js("document.querySelectorAll('figure svg').length") == figures - 1
    # every figure has marks of its own, not just a frame
    assert browser.js(
        f"[...document.querySelectorAll('figure')].map(f => {MARKS}).every(n => n >= 3)"
    ), name
    assert browser.js("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    # the page itself never scrolls sideways, whatever is in it
    assert browser.js("document.documentElement.scrollWidth <= innerWidth")
    background = browser.js("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(18, 22, 27)" if dark else "rgb(255, 255, 255)")
    browser.js("scrollTo({top: 0, behavior: 'instant'})")
    browser.rest()
    assert (
        browser.shot(f"{name}-{'plotly' if interactive else 'still'}", whole=True).stat().st_size
        > 20_000
    )
    assert browser.logged == []
    assert browser.asked == [address]


def test_sorting_a_column_works(browser, address: str) -> None:
    browser.open(address)
    order = "[...document.querySelectorAll('#board tbody tr')].map(r => r.cells[0].dataset.v)"
    labels = (
        "[...document.querySelectorAll('#board [data-column]')].map(b => b.firstChild.textContent)"
    )
    assert browser.js(order) == ["fedbn", "fedavg", "local"]
    place = browser.js(labels).index("Worst client")
    press = f"document.querySelectorAll('#board [data-column]')[{place}].click()"
    browser.js(press)
    assert browser.js(order) == ["fedbn", "fedavg", "local"]
    assert (
        browser.js("document.querySelector('#board [aria-sort]').getAttribute('aria-sort')")
        == "descending"
    )
    browser.js(press)
    assert browser.js(order) == ["local", "fedavg", "fedbn"]
    browser.js("document.querySelector('#board [data-column=\"0\"]').click()")
    assert browser.js(order) == ["fedavg", "fedbn", "local"]
    up = browser.js(labels).index("Mean gain")
    browser.js(f"document.querySelectorAll('#board [data-column]')[{up}].click()")
    assert browser.js(order) == [
        "fedbn",
        "fedavg",
        "local",
    ]  # local has no gain: last, whichever way
    assert browser.logged == []


def test_the_legend_hides_a_method_and_the_theme_can_be_changed(
    browser, address: str, interactive: bool
) -> None:
    browser.open(address)
    browser.js("document.querySelector('.legend label').click()")
    browser.rest()
    if interactive:
        shown = (
            "document.querySelector('#personal-by-round .live')"
            ".data.filter(t => t.meta === 0).map(t => t.visible)"
        )
        browser.until(lambda: browser.js(shown) == [False, False])  # the line and its band
    else:
        parts = "[...document.querySelectorAll('#personal-by-round svg [data-s=\"0\"]')]"
        assert browser.js(f"{parts}.length") == 2  # the line with its points, and its band
        assert browser.js(f"{parts}.every(p => getComputedStyle(p).display === 'none')")
    browser.js("document.querySelector('#theme').click()")
    browser.rest()
    assert browser.js("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 27)"
    if interactive:
        colour = "document.querySelector('#personal-by-round .live').layout.font.color"
        assert browser.js(colour) == "#9fabb8"
    assert browser.logged == []


def test_a_configuration_can_be_copied_or_is_selected(browser, address: str) -> None:
    browser.open(address)
    browser.js("document.querySelectorAll('#settings details').forEach(d => d.open = true)")
    browser.js("document.querySelector('.code button').click()")
    browser.until(
        lambda: (
            browser.js("document.querySelector('.code button').textContent")
            in ("copied", "selected")
        )
    )
