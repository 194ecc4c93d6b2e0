"""Tests of the comparison page."""

import copy
import re
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from fedloom.report import RunData, render
from fedloom.report.svg import axis, shorten

VOID = {"meta", "input"}
DOMAINS = ["photo", "sketch"]


class Balance(HTMLParser):
    """Fail on tags that do not nest; collect rows of the leaderboard, tags and visible text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.rows: list[list[tuple[str, bool]]] = []
        self.feed(page)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.stack.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append(("", "best" in (dict(attrs).get("class") or "").split()))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.stack):
            self.text.append(data)
        if {"th", "td"} & set(self.stack) and self.stack[-1] != "small":
            text, best = self.rows[-1][-1]
            self.rows[-1][-1] = (text + data, best)

    def column(self, name: str) -> dict[str, tuple[str, bool]]:
        place = [text for text, _ in self.rows[0]].index(name)
        return {row[0][0]: row[place] for row in self.rows[1:]}


def make(
    name: str,
    before: list[Any],
    method: str | None = None,
    rounds: int = 2,
    up: int = 2_000_000,
    domains: list[str] | None = None,
    **changes: Any,
) -> RunData:
    """Return a run whose clients reach the given accuracies in its last round."""
    domains = DOMAINS if domains is None else domains
    known = [a for a in before if a is not None] or [0.0]
    mean, after = sum(known) / len(known), [a if a is None else a / 2 for a in before]
    metrics = []
    for turn in range(1, rounds + 1):
        level = mean * turn / rounds
        stats = {"accuracy_mean": level, "worst_client": min(known), "domains": dict.fromkeys(domains, level)}
        metrics.append(
            {
                "round": turn,
                "participants": len(before),
                "loss": {"ce": 1.0},
                "bytes": {"up": up, "down": up},
                "personal": stats,
                "before": stats,
                "after": {**stats, "accuracy_mean": level / 2},
                "common": None,
                "validation": {"personal": level, "common": None},
                "clients": {"before": before, "after": after, "common": None},
            }
        )
    three = {"last": mean, "best": mean + 0.01, "best_by_validation": mean - 0.01}
    summary = {
        "method": method or name,
        "data": "toy",
        "partition": "dirichlet",
        "seed": 1,
        "rounds": rounds,
        "clients": len(before),
        "stage": "before",
        "personal": {"accuracy_mean": three},
        "common": None,
        "domains": {d: three for d in domains},
        "domain_avg": three,
        "domain_std": {"last": mean / 10, "best": None, "best_by_validation": None},
        "bytes": {"up": {"per_round": up, "total": up * rounds}, "down": {"per_round": up, "total": up * rounds}},
        "seconds": 12.3,
        "peak_rss_mb": 512.0,
        "better_than_local": None,
        "finished": True,
        **changes,
    }
    clients = [
        {
            "domain": domains[j % len(domains)] if domains else None,
            "train": 30,
            "validation": 3,
            "test": 9,
            "counts": [j + 1, 1234],
        }
        for j in range(len(before))
    ]
    federation = {"classes": ["cat", "dog"], "domains": domains, "clients": clients}
    return RunData(name, {"method": {"name": name}, "rounds": rounds}, metrics, summary, federation)


def several() -> list[RunData]:
    return [
        make("local", [0.5, 0.6, 0.7, None], up=0),
        make("fedavg", [0.61, 0.58, 0.7, 0.9]),
        make("fedbn", [0.8, 0.8, 0.8, 0.8], up=1_000_000),
    ]


def test_page_is_balanced_self_contained_and_shows_every_section() -> None:
    page = render(several(), "A & B")
    seen = Balance(page)
    text = "".join(seen.text)
    for heading in ("A & B", "Leaderboard", "Curves", "Domains", "Clients", "Partition", "Costs", "Configurations"):
        assert heading in text
    assert not re.search(r"https?://|\bsrc=|url\(|@import|<link", page)
    # two curves, the domains, two client maps, the partition and the costs
    assert seen.tags.count("figcaption") == seen.tags.count("figure") == 7
    assert "optimistic" in text and "ddof 1" in text and "ddof 0" in text
    assert "dirichlet" in text and "1234" in text and "class dog" in text


def test_names_are_escaped_everywhere() -> None:
    evil = '<script>alert(1)</script>" onload="x'
    run = make(evil, [0.5, 0.6], domains=[evil, "b"], data=evil)
    run.federation["classes"] = [evil, evil]
    run.config[evil] = evil
    page = render([run, make("local", [0.4, 0.4], domains=[evil, "b"])], evil)
    assert Balance(page).tags.count("script") == 1
    assert "<script>alert" not in page and '" onload="' not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_leaderboard_shows_and_marks_the_numbers() -> None:
    seen = Balance(render(several(), "t"))
    assert seen.column("Personal") == {"fedbn": ("80.00", True), "fedavg": ("69.75", False), "local": ("60.00", False)}
    assert seen.column("by validation")["fedavg"] == ("68.75", False)
    assert seen.column("best")["fedbn"] == ("81.00", True)
    assert seen.column("Domain std") == {"fedbn": ("8.00", False), "fedavg": ("6.98", False), "local": ("6.00", True)}
    assert seen.column("Up") == {"fedbn": ("1.00", False), "fedavg": ("2.00", False), "local": ("0", True)}
    assert all(cell == ("12.30", False) for cell in seen.column("Time").values())  # equal everywhere: nobody is best
    assert "Common" not in [text for text, _ in seen.rows[0]]  # no run has one
    assert list(seen.column("Personal")) == ["fedbn", "fedavg", "local"]


def test_ties_share_the_mark_and_given_gains_are_shown() -> None:
    given = {"share": 0.75, "mean_gain": -0.031}
    runs = [make("a", [0.5]), make("b", [0.5], better_than_local=given), make("c", [0.4])]
    seen = Balance(render(runs, "t"))
    assert [mark for _, mark in seen.column("Personal").values()] == [True, True, False]
    assert seen.column("Better than alone")["b"][0] == "75.00"
    assert seen.column("Mean gain")["b"][0] == "\u22123.10"


def test_gain_over_local_is_per_client_and_skips_unknown_ones() -> None:
    page = render(several(), "t")
    # +11, -2, 0 and unknown: one of three known clients is strictly better off
    assert "fedavg: 1 of 3 (mean +3.00); fedbn: 3 of 3 (mean +20.00)" in page
    for cell in (
        "fedavg, client 0 (photo): +11.0",
        "fedavg, client 1 (sketch): \u22122.0",
        "fedavg, client 3 (sketch): \u2013",
        "fedbn, client 0 (photo): +30.0",
    ):
        assert cell in page
    assert "Gain over training alone" not in render(several()[1:], "t")


def test_gain_uses_the_local_run_of_the_same_seed_and_partition() -> None:
    runs = [
        make("local, seed 1", [0.5, 0.5], "local"),
        make("local, seed 2", [0.6, 0.6], "local", seed=2),
        make("fedavg, seed 2", [0.7, 0.7], "fedavg", seed=2),
        make("elsewhere", [0.9, 0.9, 0.9]),
    ]
    page = render(runs, "t")
    assert "Clients better off: fedavg, seed 2: 2 of 2 (mean +10.00)." in page
    assert "elsewhere: " not in page.split("Clients better off")[1].split("</figcaption>")[0]
    assert "partition 2 of 2" in page


def test_headline_stage_picks_the_client_accuracies() -> None:
    assert "m, client 0 (photo): 80.0" in render([make("m", [0.8, 0.6])], "t")
    assert "m, client 0 (photo): 40.0" in render([make("m", [0.8, 0.6], stage="after")], "t")
    running = make("m", [0.8, 0.6])
    line = {**running.metrics[0], "personal": running.metrics[0]["after"]}
    page = render([RunData("m", {}, [line], {}, running.federation)], "t")
    assert "m, client 0 (photo): 40.0" in page and "model after local training" in page


def test_traffic_adds_up_and_fills_rounds_without_a_line() -> None:
    run = make("m", [0.8], rounds=6)
    assert "at MB up + down 24.0" in render([run], "t")  # 6 rounds of 2 + 2 MB
    sparse = RunData("m", {}, [run.metrics[2], run.metrics[5]], run.summary, run.federation)
    page = render([sparse], "t")
    assert "at MB up + down 12.0" in page and "at MB up + down 24.0" in page


@pytest.mark.parametrize(
    "runs",
    [
        [make("one", [0.5, 0.6])],
        [make("one", [0.5], rounds=1)],
        [make("perfect", [1.0], rounds=1, up=0)],
        [make("nothing", [0.0, 0.0], rounds=1)],
        [make("unknown", [None, None])],
        [make(f"m{i}", [0.1 * (i % 9), 0.5]) for i in range(40)],
        [make("long", [0.5, 0.6], rounds=1000)],
        [make("plain", [0.5, 0.6], domains=[])],
    ],
)
def test_edge_cases_render(runs: list[RunData]) -> None:
    page = render(runs, "t")
    Balance(page)
    assert "nan" not in re.sub(r"<style>.*?</style>", "", page).lower()


def test_nulls_anywhere_in_numbers_render() -> None:
    def blank(data: Any) -> Any:
        if isinstance(data, dict):
            return {k: blank(v) for k, v in data.items()}
        return None if isinstance(data, float) else data

    run = make("m", [0.5, 0.6])
    Balance(render([RunData("m", {}, blank(copy.deepcopy(run.metrics)), blank(run.summary), run.federation)], "t"))
    bare = RunData("m", {}, [{"round": 1, "personal": None, "clients": None}], {"personal": None}, {"clients": None})
    assert "No evaluated round yet" in render([bare], "t")


def test_hundred_clients_drop_the_numbers_but_keep_the_tooltips() -> None:
    page = render([make("m", [0.5 + j / 1000 for j in range(100)])], "t")
    assert "m, client 99 (sketch): 59.9" in page and 'class="num mid' not in page
    assert 'class="num mid' in render([make("m", [0.5] * 30)], "t")


def test_clients_are_ordered_by_domain() -> None:
    page = render([make("m", [0.1, 0.2, 0.3, 0.4])], "t")
    places = [page.index(f"m, client {j} ") for j in (0, 2, 1, 3)]
    assert places == sorted(places)


def test_one_domain_has_no_domain_figures() -> None:
    page = render([make("m", [0.5, 0.6], domains=["photo"])], "t")
    assert "Accuracy by domain" not in page and "Domain average" not in page


@pytest.mark.parametrize("runs", [[], [RunData("m", {}, [], {}, {})]])
def test_no_metrics_says_so(runs: list[RunData]) -> None:
    page = render(runs, "t")
    Balance(page)
    assert "No evaluated round yet" in page


def test_configuration_is_valid_toml_or_the_given_text() -> None:
    config = {"rounds": 3, "on": True, "rate": 0.1, "none": None, "list": [1, 'a"b'], "t": {"x y": "z", "u": {"v": 1}}}
    page = render([RunData("m", config, [], {}, {})], "t")
    text = "".join(Balance(page[page.index("<details>") : page.index("</main>")]).text).removeprefix("m")
    assert tomllib.loads(text) == {k: v for k, v in config.items() if k != "none"}
    assert "<pre>a = 1 # mine &lt;</pre>" in render([RunData("m", {"toml": "a = 1 # mine <"}, [], {}, {})], "t")


def test_axis_and_shorten() -> None:
    assert axis([40.0, 83.0], 6) == (40.0, 90.0, [40.0, 50.0, 60.0, 70.0, 80.0, 90.0])
    assert axis([1, 10], 8, whole=True, snug=True) == (1, 10, [2, 4, 6, 8, 10])
    assert axis([1], 8, whole=True, snug=True) == (0, 1, [0, 1])
    assert shorten("short", 100) == "short"
    assert shorten("fedavg, seed 1", 70) == "fedavg\u2026d 1"
    assert shorten("name", 0) == ""


def test_pictures_are_embedded_once_each() -> None:
    page = render([replace(run, picture=b"png") for run in several()], "t")
    assert page.count("data:image/png;base64,cG5n") == 1 and "img-src data:" in page
    assert "<h2>Data</h2>" not in render(several(), "t")
