"""The page, from made-up runs whose figures are known."""

from __future__ import annotations

import copy
import html
import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from fedloom.metrics.registry import METRICS
from fedloom.report import RunData, interactive, render
from fedloom.report.sections import SECTIONS, section
from fedloom.report.sections.settings import config_text

NOISE = (0.02, -0.02, 0.015, -0.016, 0.01, -0.011, 0.005, -0.019)
VOID = {"meta", "input", "img"}
Make = Callable[..., RunData]


class Balance(HTMLParser):
    """Fail on tags that do not nest; collect rows of the leaderboard, tags and visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text: list[str] = []
        self.rows: list[list[tuple[str, str]]] = []
        self.board = False
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.attributes |= set(given)
        if tag not in VOID:
            self.stack.append(tag)
        if tag == "table":
            self.board = given.get("id") == "board"
        if tag == "tr" and self.board and not (given.get("class") or "").startswith("groups"):
            self.rows.append([])
        if tag in ("th", "td") and self.board and self.rows:
            kinds = (given.get("class") or "").split()
            self.rows[-1].append(("", next((k for k in ("best", "tie") if k in kinds), "")))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.stack):
            self.text.append(data)
        if (
            {"th", "td"} & set(self.stack)
            and self.board
            and self.rows
            and "small" not in self.stack
        ):
            text, mark = self.rows[-1][-1]
            self.rows[-1][-1] = (text + data, mark)

    def column(self, name: str) -> dict[str, tuple[str, str]]:
        place = [text for text, _ in self.rows[0]].index(name)
        return {row[0][0]: row[place] for row in self.rows[1:]}


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are left blank, for tests that read words and tables only."""
    monkeypatch.setattr("fedloom.report.page.page_svg", lambda figure, id: "<svg></svg>")


def test_it_is_balanced_self_contained_and_shows_every_section(comparison) -> None:
    text = render(comparison, "A & B")
    seen = Balance(text)
    said = "".join(seen.text)
    for heading in (
        "A & B",
        "Leaderboard",
        "Curves",
        "Domains",
        "Fairness",
        "Clients",
        "Data",
        "Costs",
        "Settings",
    ):
        assert heading in said
    assert not re.search(r"https?://|\bsrc=|url\((?!#)|@import|<link", text)
    # the overview; 3 personal curves, before and after; domains, two scatters, the ranking; gains,
    # two maps; 3 partitions; traffic
    assert seen.tags.count("figcaption") == seen.tags.count("figure") == 1 + 5 + 1 + 3 + 3 + 3 + 1
    assert text.count("<svg") == seen.tags.count("figure")
    for note in (
        "This is the headline",
        "before / after local training",
        "std over seeds (ddof 1)",
        "ddof 0",
        "flatters",
    ):
        assert note in said


def test_names_are_escaped_everywhere(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = '<script>alert(1)</script>" onload="x'
    run = make("mine", [0.5, 0.6], domains=[evil, "b"])
    run.federation["classes"] = [evil, evil]
    run.config.update({"data": evil, evil: evil})
    board = {
        "rows": [{"method": "mine", "failed": [{"seed": 1, "error": evil}]}],
        "settings": {evil: evil},
    }
    runs = [run, make("local", [0.4, 0.4], domains=[evil, "b"])]
    assert Balance(render(runs, evil, board)).tags.count("script") == 1
    monkeypatch.setattr(interactive, "plotly_library", lambda: "var Plotly = '</script>';")
    live = render(runs, evil, board, interactive=True)
    assert Balance(live).tags.count("script") == 3  # the figures, the library, the page's own
    for text in (render(runs, evil, board), live):
        assert "<script>alert" not in text and "onload" not in Balance(text).attributes
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


@pytest.mark.usefixtures("undrawn")
def test_seeds_are_put_together(comparison) -> None:
    seen = Balance(render(comparison, "t"))
    personal = seen.column("Personal")
    assert list(personal) == ["fedbn", "fedavg", "local"]
    # fedbn: 80, 79, 78; fedavg: 70, 71, 72; local, over three known clients: 60, 61.3, 62.7
    assert personal == {
        "fedbn": ("79.0± 1.0", "best"),
        "fedavg": ("71.0± 1.0", "tie"),  # better in 3 of 12 pairs
        "local": ("61.3± 1.3", ""),
    }
    assert "3 seeds, before local training" in "".join(seen.text)
    assert seen.column("Up") == {"fedbn": ("1", "best"), "fedavg": ("2", ""), "local": ("0", "")}
    assert seen.column("Domain std")["local"] == ("6.1± 0.1", "best")
    assert {mark for _, mark in seen.column("Time").values()} == {
        ""
    }  # never marked: it depends on the load
    assert {mark for _, mark in seen.column("best\u00a0on test").values()} == {
        ""
    }  # picked on test data
    assert "Common" not in [text for text, _ in seen.rows[0]]  # no run has one


@pytest.mark.usefixtures("undrawn")
def test_a_single_seed_is_never_marked(make: Make) -> None:
    text = render([make("a", [0.9]), make("b", [0.5])], "t")
    assert {mark for row in Balance(text).rows for _, mark in row} == {""}
    assert (
        "One seed only, which proves nothing" in text
        and "±" not in Balance(text).column("Personal")["a"][0]
    )


@pytest.mark.usefixtures("undrawn")
def test_the_smallest_loss_is_not_marked_as_the_best_gain(make: Make) -> None:
    levels = {"local": 0.6, "fedavg": 0.55, "fedbn": 0.5}
    runs = [make(name, [level], seed) for name, level in levels.items() for seed in range(2)]
    gains = Balance(render(runs, "t")).column("Mean gain")
    assert {name: mark for name, (_, mark) in gains.items()} == dict.fromkeys(levels, "")
    runs += [make("ditto", [0.65], seed) for seed in range(2)]
    gains = Balance(render(runs, "t")).column("Mean gain")
    assert {name for name, (_, mark) in gains.items() if mark} == {"ditto"}


@pytest.mark.usefixtures("undrawn")
def test_different_seeds_are_not_compared(make: Make) -> None:
    runs = [make("a", [0.9], 0), make("a", [0.8], 1), make("b", [0.5], 0), make("b", [0.5], 2)]
    text = render(runs, "t")
    assert {mark for row in Balance(text).rows for _, mark in row} == {""}
    assert "not been run with the same seeds" in text


@pytest.mark.usefixtures("undrawn")
def test_one_lucky_seed_does_not_win(make: Make) -> None:
    runs = [make("lucky", [a], s) for s, a in enumerate((0.99, 0.1, 0.1))]
    runs += [make("steady", [a], s) for s, a in enumerate((0.6, 0.61, 0.62))]
    personal = Balance(render(runs, "t")).column("Personal")
    # Three pairs tell nothing for sure, but the lucky one is not the best.
    assert personal["steady"][1] == "best" and personal["lucky"][1] == "tie"


@pytest.mark.usefixtures("undrawn")
def test_tests_decide_what_is_said_and_framed(make: Make) -> None:
    """Whatever folders the runs come from: the page tests them itself."""
    runs = []
    for seed in range(3):
        alone = [0.4 + 0.01 * k + 0.001 * seed for k in range(8)]
        good = [value + 0.1 + 0.001 * k for k, value in enumerate(alone)]
        other = [value + noise for value, noise in zip(good, NOISE, strict=True)]
        runs += [make("local", alone, seed), make("fedbn", good, seed), make("moon", other, seed)]
    text = html.unescape(render(runs, "t"))
    personal = Balance(text).column("Personal")
    assert {m: mark for m, (_, mark) in personal.items()} == {
        "fedbn": "best",
        "moon": "tie",
        "local": "",
    }
    assert "is not significantly different from it" in text
    assert re.search(r"fedbn beats local by 10\.[34] points, better in 24 of 24 pairs", text)
    first = text.index("No significant difference between fedbn and moon")
    assert first < text.index("All other pairs") < text.index("moon beats local by")


@pytest.mark.usefixtures("undrawn")
def test_a_boards_own_figures_are_used_unless_it_is_older_than_the_runs(comparison) -> None:
    row = {
        "method": "fedavg",
        "seeds": [0, 1, 2],
        "personal": 0.75,
        "personal_std": 0.02,
        "rounds_to_target": 7,
    }
    seen = Balance(render(comparison, "t", {"rows": [row]}))
    assert seen.column("Personal")["fedavg"] == ("75.0± 2.0", "tie")
    assert (
        seen.column("To target")["fedavg"][0] == "7"
        and seen.column("To target")["local"][0] == "\u2013"
    )
    lucky = Balance(render(comparison, "t", {"rows": [{**row, "target_reached": 1}]}))
    with pytest.raises(
        ValueError, match="To target"
    ):  # one seed of three is no mean over seeds: nothing to show
        lucky.column("To target")
    stale = Balance(render(comparison, "t", {"rows": [{**row, "seeds": [0]}]}))
    assert stale.column("Personal")["fedavg"][0] == "71.0± 1.0"


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("failed", "said"),
    [
        ("it fell over", "failed: it fell over"),
        (["a", "b"], "failed: b"),
        ([{"seed": 1, "error": "NaN"}], "failed: seed 1: NaN"),
        ({"2": "NaN"}, "failed: seed 2: NaN"),
        ({"seed": 3, "error": "NaN"}, "failed: seed 3: NaN"),
    ],
)
def test_what_failed_is_named_not_dropped(comparison, failed: Any, said: str) -> None:
    rows = [{"method": "fedavg", "failed": failed}, {"method": "wrecked", "failed": failed}]
    text = render(comparison, "t", {"rows": rows, "title": "x"})
    seen = Balance(text)
    assert (
        "wrecked" in seen.column("Personal") and text.count(said) == 4
    )  # in the leaderboard and among the runs


def test_fine_tuned_fedavg_is_drawn_from_the_runs_of_fedavg(comparison) -> None:
    note = "from the runs of fedavg"
    row = {
        "method": "fedavg-after",
        "seeds": [0, 1, 2],
        "personal": 0.355,
        "personal_std": 0.005,
        "note": note,
    }
    text = render(comparison, "t", {"rows": [row]})
    assert Balance(text).column("Personal")["fedavg-after"] == ("35.5± 0.5", "")
    assert note in text and "3 seeds, after local training" in text
    # after local training the made-up clients have half of their accuracy: 62 and 50 points
    assert (
        "fedavg-after, client 0, seed 0: \u221219.0 points" in text
        and "fedavg-after: 35.5 ± 0.5 %" in text
    )
    assert "fedavg-after" not in render(comparison, "t")


@pytest.mark.usefixtures("undrawn")
def test_settings_tell_runs_of_one_method_apart(make: Make) -> None:
    runs = [
        make("fedprox", [0.5], s, hyper={"mu": mu, "nu": 1}) for mu in (0.1, 1.0) for s in (0, 1)
    ]
    assert set(Balance(render(runs, "t")).column("Personal")) == {
        "fedprox (mu=0.1)",
        "fedprox (mu=1.0)",
    }
    moved = [make("fedprox", [0.5], s) for s in (0, 1)]
    moved[1].config["execution"] = {"workers": 8}  # where it ran does not matter
    assert set(Balance(render(moved, "t")).column("Personal")) == {"fedprox"}


def test_gains_are_per_client_against_local_of_the_same_seed(comparison) -> None:
    text = render(comparison, "t")
    # fedavg: +12 -2 0, +8 +2 0 and +4 +6 0, the fourth client unknown; better off is who gains more
    # than nothing
    assert "fedavg 5 of 9 (mean +3.3)" in text and "fedbn 9 of 9 (mean +17.3)" in text
    assert "fedavg, client 0, seed 0: +12.0 points" in text
    assert not re.search(r"fedavg, client 3, seed \d: [^<]* points", text)
    # the map is the mean over seeds
    assert "fedavg, client 0 (photo): +8.0" in text and "fedavg, client 3 (sketch): \u2013" in text
    assert "Gain over training alone" not in render(
        [r for r in comparison if r.method != "local"], "t"
    )


def test_clients_without_domains_are_not_averaged_over_partitions(make: Make) -> None:
    runs = [make(m, [0.5, a], s, domains=[]) for m, a in (("x", 0.6), ("y", 0.7)) for s in (0, 1)]
    text = render(runs, "t")
    assert text.count("<h3>Accuracy of every client</h3>") == 2 and "Mean over seeds" not in text


def test_stage_picks_the_clients_accuracies(make: Make) -> None:
    assert "m, client 0 (photo): 80.0" in render([make("m", [0.8, 0.6])], "t")
    assert "m, client 0 (photo): 40.0" in render([make("m", [0.8, 0.6], stage="after")], "t")
    running = make("m", [0.8, 0.6], finished=False)
    running.metrics[-1]["personal"] = running.metrics[-1]["after"]
    text = render([running], "t")
    assert "m, client 0 (photo): 40.0" in text and "after local training" in text


def test_an_unfinished_run_is_shown_as_such_and_a_finished_seed_goes_first(make: Make) -> None:
    under_way = make("m", [0.8, 0.6], 1, finished=False)
    under_way.config["schedule"] = {"rounds": 9}
    text = render([under_way], "t")
    assert "unfinished, round 2 of 9" in text and Balance(text).column("Personal")["m"][0] == "70.0"
    both = [
        make("m", [0.5, 0.5], 0),
        replace(under_way, config={**under_way.config, "schedule": {"rounds": 2}}),
    ]
    text = render(both, "t")
    assert Balance(text).column("Personal")["m"][0] == "50.0" and "1 more under way" in text


def test_curves_have_bands_and_three_horizontal_axes(comparison) -> None:
    text = render(comparison, "t")
    # two rounds of 2 + 2 MB and of 1.5 seconds
    for tip in (
        "fedavg: 71.0 ± 1.0 %",
        "fedavg: 71.0 ± 1.0 %, 8.0 MB",
        "fedavg: 71.0 ± 1.0 %, 3.0 s",
    ):
        assert tip in text
    assert "the band is the std over seeds" in text
    assert "the band is" not in render(comparison[:3], "t")


@pytest.mark.parametrize("clients", [1, 4])
@pytest.mark.parametrize("level", [0.0, 1.0, None])
@pytest.mark.parametrize("rounds", [1, 3])
def test_edge_cases_render(make: Make, clients: int, level: float | None, rounds: int) -> None:
    runs = [
        make(m, [level] * clients, s, rounds=rounds, up=0) for m in ("local", "x") for s in (0, 1)
    ]
    text = render(runs, "t")
    Balance(text)
    assert "nan" not in re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.DOTALL).lower()


def test_many_methods_long_runs_and_no_domains_render(make: Make) -> None:
    Balance(render([make(f"m{i}", [0.1 * (i % 9), 0.5]) for i in range(40)], "t"))
    Balance(render([make("long", [0.5, 0.6], rounds=1000)], "t"))
    plain = render([make("plain", [0.5, 0.6], domains=[])], "t")
    assert "Accuracy by domain" not in plain and "Domain std" not in plain
    assert "Accuracy by domain" not in render([make("m", [0.5, 0.6], domains=["photo"])], "t")


def test_nulls_anywhere_in_numbers_render(make: Make) -> None:
    def blank(data: Any) -> Any:
        if isinstance(data, dict):
            return {k: blank(v) for k, v in data.items()}
        return None if isinstance(data, float) else data

    run = make("m", [0.5, 0.6])
    Balance(
        render(
            [
                RunData(
                    "m", {}, blank(copy.deepcopy(run.metrics)), blank(run.summary), run.federation
                )
            ],
            "t",
        )
    )
    bare = RunData(
        "m",
        {},
        [{"round": 1, "personal": None, "clients": None}],
        {"personal": None},
        {"clients": None},
    )
    assert "No evaluated round yet" in render([bare], "t")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "board", [None, {}, {"rows": None, "tests": None, "runs": None}, {"rows": [{}], "tests": [{}]}]
)
def test_boards_may_lack_anything(comparison, board: dict[str, Any] | None) -> None:
    Balance(render(comparison, "t", board))
    Balance(render([], "t", board))


def test_no_metrics_says_so() -> None:
    for runs in ([], [RunData("m", {}, [], {}, {})]):
        text = render(runs, "t")
        Balance(text)
        assert "No evaluated round yet" in text


@pytest.mark.usefixtures("undrawn")
def test_configuration_is_valid_toml_or_the_given_text(make: Make) -> None:
    config = {
        "rounds": 3,
        "on": True,
        "rate": 0.1,
        "none": None,
        "list": [1, 'a"b'],
        "t": {"x y": "z", "u": {"v": 1}},
    }
    assert tomllib.loads(config_text(config)) == {k: v for k, v in config.items() if k != "none"}
    assert "<pre>a = 1 # mine &lt;</pre>" in render(
        [RunData("m", {"toml": "a = 1 # mine <"}, [], {}, {})], "t"
    )
    assert "fedloom 0.1.0\ntorch 2.13" in render([make("m", [0.5])], "t")


@pytest.mark.usefixtures("undrawn")
def test_a_picture_is_embedded_once_for_each_data_set(comparison) -> None:
    text = render([replace(run, picture=b"png") for run in comparison], "t")
    assert text.count("data:image/png;base64,cG5n") == 1 and "img-src data:" in text


def test_with_plotly_the_page_holds_figures_as_data_and_stays_small(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        interactive, "plotly_library", lambda: "x" * 4_900_000
    )  # about what Plotly takes
    level = [0.5 + 0.3 * (j * 37 % 100) / 100 for j in range(100)]
    names = ["local", *(f"method-{i}" for i in range(40))]
    runs = [make(m, level, s, rounds=100, domains=list("abcdef")) for m in names for s in range(3)]
    text = render(runs, "t", interactive=True)
    assert len(text) < 8_000_000
    assert "<svg" not in text
    kept = json.loads(
        text.split('<script type="application/json" id="figures">')[1].split("</script>")[0]
    )
    assert len(kept) == text.count('class="scroll plot"') == text.count("<figure>") >= 15
    assert all(figure["data"] and figure["layout"] for figure in kept.values())
    monkeypatch.setattr(interactive, "plotly_library", lambda: None)
    assert "<svg" in render(runs[:6], "t", interactive=True)  # without it the figures are drawn


def test_every_metric_of_the_registry_is_listed_and_one_class_is_called_out(make: Make) -> None:
    runs = [make(m, [0.8, 0.6], s) for m in ("good", "stuck") for s in (0, 1)]
    for run in runs:
        for line in run.metrics:
            line["personal"]["balanced_accuracy_mean"] = 0.5 if run.method == "stuck" else 0.7
    runs[2].metrics[-1]["personal"]["remarks"] = ["predicts one class at 2 of 2 clients"]
    text = render(runs, "t")
    Balance(text)
    section = text.split('<section id="metrics">')[1].split("</section>")[0]
    assert (
        "Balanced accuracy" in section and METRICS.find("balanced_accuracy").explanation in section
    )
    assert '<td class="best">70.0</td>' in section and "<td>50.0</td>" in section
    assert "predicts one class at 2 of 2 clients (seed 0)" in text
    assert 'id="metrics"' not in render([make("m", [None])], "t")


def test_a_section_of_another_file_is_shown_in_its_place(make: Make) -> None:
    section("mine", "My section", order=11)(lambda page: f"<p>{len(page.entries)} here</p>")
    try:
        text = render([make("m", [0.5, 0.6])], "t")
    finally:
        SECTIONS._entries.pop("mine")
    assert "<h2>My section</h2>" in text and "<p>1 here</p>" in text
    assert (
        text.index("Leaderboard</h2>") < text.index("My section</h2>") < text.index("Curves</h2>")
    )
