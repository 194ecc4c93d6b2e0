"""Where everything stands on the page, asked of a real browser: nothing overlaps, nothing is cut.

The page has more methods than there are colours, long names, many clients and every section.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedloom.report import RunData
from fedloom.report import interactive as plots
from fedloom.report.advice_page import advice_page
from fedloom.report.dash import PATHS, Dash
from fedloom.report.document import html
from fedloom.report.figures import Axis, Chart, Heat, Mark, Panel
from fedloom.report.page import Page
from fedloom.report.sections import SECTIONS
from tests.report.conftest import made

METHODS = ("local", "fedavg", "fedprox", "fedbn", "scaffold", "fedper", "ditto", "fedavg+dfdc+daa")
DOMAINS = ["photo", "handwritten on paper", "street", "printed"]
OUTSIDE = ("drawings of later years", "clients that come later")
NETWORKS = ("cnn", "resnet10", "hf:weights/a-small-vision-transformer", "mlp")

# What lies behind the hatching of bars.
BEHIND = """[...document.querySelectorAll('.js-plotly-plot pattern rect')].map(
    rect => getComputedStyle(rect).fill)"""
LOOK = (Path(__file__).parent / "layout.js").read_text("utf-8")


def many() -> list[RunData]:
    """Eight methods with two seeds, twelve clients of four domains, losses and every metric.

    What sections are about is in all of them; one run is not finished.
    """
    runs = []
    for seed in range(2):
        for place, method in enumerate(METHODS):
            level = 0.5 + 0.03 * place + 0.01 * seed
            accuracies: list[float | None] = [level + 0.01 * (k % 5) for k in range(12)]
            given: dict[str, Any] = {"rounds": 6, "domains": DOMAINS, "up": place * 1_234_567}
            if (method, seed) == (METHODS[-1], 1):
                given["finished"] = False
            elif method in ("fedavg", METHODS[-2]):
                given["privacy"] = {"each": "step", "noise_multiplier": 1.1, "delta": 1e-5}
                given["privacy"] |= {"epsilon": [8.5] * 12, "releases": [120] * 12}
            run = made(method, accuracies, seed, **given)
            for line in run.metrics:
                line["loss"] = {"ce": 2.0 / line["round"] + place / 10}
                for key in ("macro_f1", "auc", "nll", "balanced_accuracy", "majority"):
                    line["personal"][f"{key}_mean"] = level / 2
                stages = {s: {"accuracy_mean": level} for s in ("common", "before", "after")}
                line["outside"] = dict.fromkeys(OUTSIDE, stages)
            for k, client in enumerate(run.federation["clients"]):
                client["network"] = NETWORKS[k % len(NETWORKS)]
            runs.append(run)
    return runs


def tuned() -> dict[str, Any]:
    """What a comparison writes down of a search over two settings, one of which failed once."""
    tried: list[dict[str, Any]] = []
    for lr in (0.01, 0.1, 1.0):
        row = {"values": {"lr": lr, "mu": 0.1}, "failed": [], "validation": 0.6}
        tried.append(row | {"validation_std": 0.02})
    error = "the loss is not a number any more: a smaller step may help, or clipped gradients."
    tried[-1] |= {"failed": [{"seed": 1000, "error": error}], "validation": None}
    about = {"settings": ["lr", "mu"], "chosen": {"lr": 0.1, "mu": 0.1}, "validation": 0.61}
    about |= {"trials": 6, "combinations": 3, "seeds": [1000, 1001], "rows": tried}
    values = {"lr": [0.01, 0.1, 1.0], "mu": [0.1]}
    record = {"values": values, "search": "grid", "trials": 6, "rounds": 6, "seeds": [1000, 1001]}
    methods = [{**about, "method": method} for method in METHODS]
    return {**record, "metric": "accuracy", "methods": methods}


def views() -> dict[str, list[Panel]]:
    """Two views of features side by side, and one with the page to itself."""
    dots = [
        Mark("dots", [0.1 * k, 0.5], [0.2 * k, 0.1], k, name=name) for k, name in enumerate(DOMAINS)
    ]
    chart = Chart("t-SNE", dots, Axis(), Axis(), width=540, height=400, square=True, legend=True)
    names = [f"client {k} ({DOMAINS[k % 4]})" for k in range(6)]
    heat = Heat(
        "similarity", names, names, [None] * 6, [[0.5] * 6] * 6, (0.0, 1.0), "{:.2f}".format
    )
    tsne, alike = (Panel(name, name, "made up", f) for name, f in (("t", chart), ("h", heat)))
    return {"t-SNE": [tsne, alike], "Similarity": [replace(alike, id="h2")]}


def full_page(*, interactive: bool, live: bool = False) -> Page:
    """A page with every section; one method has no run at all."""
    error = "RuntimeError: the tensors of client 3 are not those that the server expected of it"
    rows = [{"method": "harmofl", "failed": [{"seed": 0, "error": error}]}]
    board = {"tuning": tuned(), "rows": rows}
    title = "Nine methods on toy data"
    return Page(many(), title, board, interactive=interactive, views=views(), live=live)


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


@pytest.fixture(scope="module", params=["plotly", "still", "dash"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page: with Plotly, with still pictures, or as it is while runs go on."""
    if request.param != "still" and plots.plotly_library() is None:
        pytest.skip("the extra plots is not installed")
    folder = tmp_path_factory.mktemp("page")
    if request.param != "dash":
        path = folder / f"{request.param}.html"
        path.write_text(html(full_page(interactive=request.param == "plotly")))
        yield path.as_uri()
        return
    body = html(full_page(interactive=True, live=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedloom.report.dash.live_page", lambda folder: None)
        patch.setitem(PATHS, "/", lambda page: body)
        server = Dash(folder, 0)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.address
        server.shutdown()
        thread.join(10)
        server.server_close()


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
    browser: Any, page: str, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark)
    browser.js("document.querySelectorAll('details').forEach(d => d.open = true)")
    draw_all(browser)
    name = Path(page).stem if page.endswith(".html") else "dash"
    browser.shot(f"layout-{width}-{'dark' if dark else 'light'}-{name}", whole=True)
    shown = browser.js("[...document.querySelectorAll('section')].map(s => s.id)")
    assert set(shown) == {name for name, _ in SECTIONS.items()}
    found = browser.js(LOOK)
    assert found["count"] > 300
    assert found["cut"] == []
    assert found["outside"] == []
    assert found["touching"] == []
    assert found["sideways"] <= 0
    assert found["dots"] == 0  # no label was shortened
    if width == 1400:
        assert found["scrolling"] == []  # everything is on the page at once
    if name != "still":  # hatched bars have their method's colour too
        behind = browser.js(BEHIND)
        assert len(behind) >= 4 and all(fill.startswith("rgb(") for fill in behind)
    first = "#runs progress" if name == "dash" else ".verdict .line"
    assert browser.js(f"document.querySelector('{first}').getBoundingClientRect().bottom") < 900
    assert browser.logged == []


def test_every_tab_fits_too(browser: Any, page: str) -> None:
    """What is behind tabs, at the width of a desk."""
    browser.open(page, width=1400)
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
