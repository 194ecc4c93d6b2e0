"""The built site: all links hold, a browser opens its pages from disk, and the search answers."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.report.conftest import Browser, browser  # noqa: F401  (a fixture)

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("mkdocs", "material", "mkdocstrings")
# One page of each kind: written by hand, taken from elsewhere in the project, made from the code.
OPENED = [
    *("index", "advise", "data", "concepts", "faq", "command-line", "python"),
    *("methods/index", "methods/f2dc", "examples/own_data"),
]
SEARCH = """
document.querySelector("[data-md-toggle=search]").click();
const field = document.querySelector("[data-md-component=search-query]");
field.focus();
field.value = "scaffold";
field.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
"""
FOUND = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"


class Page(HTMLParser):
    """What a page can be linked to by, and what it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                self.targets.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: pip install 'fedloom[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip(), "it is built without a warning"
    return folder


@pytest.mark.slow
def test_no_link_is_broken(site: Path) -> None:
    """Every link and every anchor of every page; nothing is loaded from another host."""
    pages = {path.resolve(): Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    checked, broken = 0, []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are for the root of a server
            continue
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            checked += 1
            if not there.exists():
                broken.append(f"{path.relative_to(site.resolve())}: {target}")
            elif anchor and there in pages and anchor not in pages[there].anchors:
                broken.append(f"{path.relative_to(site.resolve())}: {target}, no such anchor")
    assert not broken
    assert len(pages) > 100 and checked > 5000


@pytest.mark.slow
def test_pages_open_from_disk_without_a_network(site: Path, browser: Browser) -> None:  # noqa: F811
    assert len(OPENED) == 10
    for name in OPENED:
        browser.open((site / f"{name}.html").as_uri())
        assert not browser.logged, name
        assert all(address.startswith("file:") for address in browser.asked), browser.asked
        assert browser.js("document.querySelector('h1').innerText"), name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["index", "methods/f2dc"])
def test_the_search_answers_from_disk(site: Path, browser: Browser, name: str) -> None:  # noqa: F811
    browser.open((site / f"{name}.html").as_uri())
    browser.js(SEARCH)
    browser.until(lambda: browser.js(FOUND))
    found = [address.partition("?")[0] for address in browser.js(FOUND)]
    assert (site / "methods/scaffold.html").as_uri() in found
    assert not browser.logged
