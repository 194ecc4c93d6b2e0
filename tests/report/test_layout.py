"""Where everything stands on the page, asked of a real browser: nothing overlaps, nothing is cut.

The page has more methods than there are colours, long names, many clients and every section.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedloom.report import RunData, render
from fedloom.report import interactive as plots
from fedloom.report.advice_page import advice_page

Make = Callable[..., RunData]
METHODS = ("local", "fedavg", "fedprox", "fedbn", "scaffold", "fedper", "ditto", "fedavg+dfdc+daa")
DOMAINS = ["photo", "handwritten on paper", "street", "printed"]

# What lies behind the hatching of bars.
BEHIND = """[...document.querySelectorAll('.js-plotly-plot pattern rect')].map(
    rect => getComputedStyle(rect).fill)"""
LOOK = (Path(__file__).parent / "layout.js").read_text("utf-8")


def many(make: Make) -> list[RunData]:
    """Eight methods with two seeds, twelve clients of four domains, losses and every metric."""
    runs = []
    for seed in range(2):
        for place, method in enumerate(METHODS):
            level = 0.5 + 0.03 * place + 0.01 * seed
            accuracies: list[float | None] = [level + 0.01 * (k % 5) for k in range(12)]
            run = make(method, accuracies, seed, rounds=6, domains=DOMAINS, up=place * 1_234_567)
            for line in run.metrics:
                line["loss"] = {"ce": 2.0 / line["round"] + place / 10}
                for key in ("macro_f1", "auc", "nll", "balanced_accuracy", "majority"):
                    line["personal"][f"{key}_mean"] = level / 2
            runs.append(run)
    return runs


def much_advice() -> dict[str, Any]:
    """Advice on twelve sites with long names, with every finding and many methods."""
    names = [f"{DOMAINS[k % 4]} {k}" for k in range(12)]
    classes = [f"finding number {c}" for c in range(7)]
    rates = {"majority": 0.3, "own": 0.5, "others": 0.4, "both": 0.6}
    confusion = [[0.6 if a == b else 0.4 / 11 for b in range(12)] for a in range(12)]
    numbers: dict[str, dict[str, Any]] = {
        "sizes": {"names": names, "sizes": [40 + 9 * k for k in range(12)]},
        "classes": {"names": classes, "counts": [300 - 40 * c for c in range(7)]},
        "labels": {"classes": classes, "names": names, "shares": [[1 / 7] * 7] * 12},
        "domains": {"what": "domains", "names": names, "confusion": confusion},
        "agreement": rates,
    }
    findings = []
    for name, found in numbers.items():
        sentence = "A sentence about it that is long enough to be broken into lines. " * 2
        findings.append(
            {"name": name, "title": name.title(), "sentence": sentence} | {"numbers": found}
        )
    row: dict[str, Any] = {"helps": ["labels", "domains"], "rounds": 25, "seeds": 3, "gain": 0.05}
    row |= {"validation": 0.61, "low": -0.012, "high": 0.11, "test": 0.6, "what": "in the final"}
    command = (
        "fedloom run fedavg --data folder/with/images --clients 12 --set norm=true --out runs/x"
    )
    return {
        "verdict": "Pick fedavg-ft: clients gain 5.1 points on average over training alone (60.0 % "
        "instead of 54.9 % alone, on test samples, 95 % interval +1.2 to +9.0 points over 3 seeds, "
        "paired over 12 clients).",
        "notes": [f"helps {names[0]} (+9.1), hurts {names[1]} (-2.0) and others. " * 2] * 4,
        "next": command,
        "metric": "balanced_accuracy",
        "method": "fedavg-ft",
        "samples": "test samples",
        "complete": True,
        "budget": 960,
        "diagnosis": {"findings": findings},
        "table": [{**row, "method": method} for method in METHODS],
        "left_out": {"it needs a network with BatchNorm (--set norm=true)": ["fedbn", "fdse"]},
        "race": [
            {"rounds": 5 * 2**stage, "means": {m: 0.5 + 0.02 * p for p, m in enumerate(METHODS)}}
            for stage in range(3)
        ],
        "clients": [{"client": name, "gain": 0.01 * (k - 3)} for k, name in enumerate(names)],
    }


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_nothing_overlaps_on_the_page_of_advice(
    browser: Any, tmp_path: Path, width: int, dark: bool
) -> None:
    path = tmp_path / "advice.html"
    path.write_text(advice_page(much_advice()))
    browser.open(path.as_uri(), width=width, dark=dark)
    browser.rest()
    browser.shot(f"advice-{width}-{'dark' if dark else 'light'}", whole=True)
    found = browser.js(LOOK)
    assert found["count"] > 200
    assert (found["cut"], found["outside"], found["touching"]) == ([], [], [])
    assert found["sideways"] <= 0
    assert found["dots"] == 0
    if width == 1400:
        assert found["scrolling"] == []
    first = browser.js("document.querySelector('h1').getBoundingClientRect().bottom")
    assert first < 900
    assert browser.logged == []


def test_what_is_on_the_first_screen_of_advice_is_whole_on_a_phone(
    browser: Any, tmp_path: Path
) -> None:
    """Few sites have a figure that shrinks; the command is broken, the button in sight."""
    advice = much_advice()
    advice["clients"] = [{"client": f"site {k}", "gain": 0.01 * k} for k in range(1, 5)]
    path = tmp_path / "advice.html"
    path.write_text(advice_page(advice))
    browser.open(path.as_uri(), width=400)
    inside = "(e => e.scrollWidth <= e.clientWidth + 1)(document.querySelector('{}'))"
    for what in ("#verdict .code pre", "#verdict figure .scroll"):
        assert browser.js(inside.format(what))
    assert browser.js("document.querySelector('#theme').getBoundingClientRect().right") <= 400


@pytest.fixture(scope="module", params=["plotly", "still"])
def interactive(request: pytest.FixtureRequest) -> bool:
    if request.param == "plotly" and plots.plotly_library() is None:
        pytest.skip("the extra plots is not installed")
    return request.param == "plotly"


def draw_all(browser: Any) -> None:
    """Scroll to every figure, so that it is drawn; the first tab of each group stays open."""
    for number in range(browser.js("document.querySelectorAll('figure').length")):
        figure = f"document.querySelectorAll('figure')[{number}]"
        if not browser.js(f"{figure}.checkVisibility()"):
            continue
        browser.js(f"{figure}.scrollIntoView({{behavior: 'instant'}})")
        drawn = f"!!{figure}.querySelector('img, .scroll > svg, .live .xy')"
        browser.until(partial(browser.js, drawn))
    browser.js("scrollTo({top: 0, behavior: 'instant'})")
    browser.rest()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_nothing_overlaps_and_nothing_is_cut(
    browser: Any, make: Make, tmp_path: Path, interactive: bool, width: int, dark: bool
) -> None:
    path = tmp_path / "page.html"
    title = "Eight methods on toy data"
    path.write_text(render(many(make), title, interactive=interactive))
    browser.open(path.as_uri(), width=width, dark=dark)
    draw_all(browser)
    name = f"layout-{width}-{'dark' if dark else 'light'}-{'plotly' if interactive else 'still'}"
    browser.shot(name, whole=True)
    found = browser.js(LOOK)
    assert found["count"] > 300
    assert found["cut"] == []
    assert found["outside"] == []
    assert found["touching"] == []
    assert found["sideways"] <= 0
    assert found["dots"] == 0  # no label was shortened
    if width == 1400:
        assert found["scrolling"] == []  # everything is on the page at once
    if interactive:  # hatched bars have their method's colour too
        behind = browser.js(BEHIND)
        assert len(behind) >= 4 and all(fill.startswith("rgb(") for fill in behind)
    first = browser.js("document.querySelector('.verdict .line').getBoundingClientRect().bottom")
    assert first < 900  # the answer is on the first screen
    assert browser.logged == []


def test_every_tab_fits_too(browser: Any, make: Make, tmp_path: Path, interactive: bool) -> None:
    """What is behind tabs, at the width of a desk."""
    path = tmp_path / "page.html"
    path.write_text(render(many(make), "t", interactive=interactive))
    browser.open(path.as_uri(), width=1400)
    longest = "Math.max(...[...document.querySelectorAll('.tabs')].map(t => t.children.length))"
    looked = 0
    for place in range(1, browser.js(longest)):
        press = f"t.children[{place}]?.querySelector('label')?.click()"
        browser.js(f"document.querySelectorAll('.tabs').forEach(t => {press})")
        draw_all(browser)
        found = browser.js(LOOK)
        looked += 1
        assert (found["cut"], found["outside"], found["touching"]) == ([], [], [])
        assert found["scrolling"] == []
    assert looked >= 2


def test_a_text_that_overlaps_is_noticed(browser: Any, tmp_path: Path) -> None:
    """The look at the page sees what it is meant to see."""
    path = tmp_path / "bad.html"
    box = "position:absolute;top:{}px;left:{}px;width:{}px;overflow:hidden;white-space:nowrap"
    parts = [(0, 0, 300, "one thing"), (5, 20, 300, "over another"), (60, 0, 30, "cut in half")]
    divs = [f'<div style="{box.format(t, left, w)}">{words}</div>' for t, left, w, words in parts]
    path.write_text(f"<!DOCTYPE html><body>{''.join(divs)}</body>")
    browser.open(path.as_uri(), width=1400)
    found = browser.js(LOOK)
    assert len(found["touching"]) == 1 and "over another" in found["touching"][0]
    assert len(found["cut"]) == 1 and "cut in half" in found["cut"][0]
