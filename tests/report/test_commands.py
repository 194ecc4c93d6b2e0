"""`fedloom report` and `fedloom dash` on real runs: small ones, made once."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

import fedloom
from fedloom.core import lookup
from fedloom.core.errors import FedloomError
from fedloom.engine.folder import Run
from fedloom.report.dash import Dash, stamp
from fedloom.report.export import escape, proper
from fedloom.report.folders import load

FEW = {"limit_train": 10, "limit_test": 5}
SMALL = {"clients": 4, "rounds": 2, "width": 4, "features": 16, "norm": True, "steps": 2} | FEW


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with two seeds each, as a comparison leaves them."""
    folder = tmp_path_factory.mktemp("runs") / "C"
    for method in ("local", "fedbn"):
        for seed in (0, 1):
            fedloom.run(method, "digits4", seed=seed, out=folder / f"{method}-s{seed}", **SMALL)
    return folder


@pytest.fixture
def runs(done: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    shutil.copytree(done, tmp_path / "C")
    return tmp_path / "C"


@pytest.fixture
def call(fedloom, monkeypatch: pytest.MonkeyPatch):
    """The command line on a terminal of unknown width."""
    monkeypatch.delenv("COLUMNS")
    return fedloom


def test_one_run_many_runs_or_a_folder_of_runs(call, runs: Path, tmp_path: Path) -> None:
    code, out, _ = call("report", runs / "fedbn-s0")
    assert code == 0 and "report.html" in out
    assert "1 seed, before local training" in (runs / "fedbn-s0/report.html").read_text()
    assert call("report", runs / "fedbn-s0", runs / "local-s0")[0] == 0
    assert "Better" in (tmp_path / "report.html").read_text()
    assert call("report", runs)[0] == 0
    text = (runs / "report.html").read_text()
    assert text.count("2 seeds, before local training") == 2 and "Gain over training alone" in text
    assert "torch 2" in text  # versions are recorded with the run
    assert call("report", tmp_path, "--out", "all.html")[0] == 0  # whatever runs lie below
    assert "2 seeds" in (tmp_path / "all.html").read_text()


def test_an_unfinished_run_beside_local(call, runs: Path) -> None:
    (runs / "fedbn-s0/summary.json").unlink()
    lines = (runs / "fedbn-s0/metrics.jsonl").read_text().splitlines(keepends=True)
    (runs / "fedbn-s0/metrics.jsonl").write_text(lines[0] + lines[1][:40])  # a kill may cut a line
    assert Run.load(runs / "fedbn-s0").clients == json.loads(lines[0])["clients"]["before"]
    code, _, err = call("report", runs / "fedbn-s0", runs / "local-s0", "--out", "r.html")
    assert (code, err) == (0, "")
    text = Path("r.html").read_text()
    assert "unfinished, round 2 of 2" in text  # as timing tells; one of them is evaluated
    assert "Gain over training alone" in text
    (runs / "fedbn-s1/metrics.jsonl").unlink()
    (runs / "fedbn-s1/summary.json").unlink()
    assert call("report", runs)[0] == 0


def test_a_boards_title_figures_and_order_are_taken_over(call, runs: Path) -> None:
    board = {
        "title": "My comparison",
        "settings": {"target": 0.6},
        "rows": [
            {"method": "fedbn", "seeds": [0, 1], "flops_per_round": 5e9},
            {"method": "gone", "failed": "seed 0: NaN"},
        ],
        "runs": [{"method": "fedbn", "seed": 0}, {"method": "local", "seed": 0}],
    }
    (runs / "leaderboard.json").write_text(json.dumps(board))
    assert call("report", runs)[0] == 0
    text = (runs / "report.html").read_text()
    for said in (
        "<h1>My comparison</h1>",
        "pairs of seed and client",  # tests need no board
        "failed: seed 0: NaN",
        "GFLOP",
        "target <b>60.0 %",
    ):
        assert said in text
    (runs / "leaderboard.json").write_text(json.dumps(board["rows"]))  # as it once was
    assert load([runs])[1] == {"rows": board["rows"]}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["report", "nowhere"], "there is no folder nowhere."),
        (["report", "empty"], "empty: no run is in there"),
        (["report", "C", "--format", "sgv"], "unknown format 'sgv'; did you mean 'svg'?"),
        (
            ["report", "old"],
            "old/run was written by an older version of fedloom (format 0, this one has format 1)",
        ),
        (
            ["report", "odd"],
            "odd/run cannot be read: unknown key 'methode'; did you mean 'method'?",
        ),
        (["report", "broken"], "leaderboard.json is damaged"),
        (["dash", "C/fedbn-s0/config.toml"], "is a file, not a folder of runs."),
    ],
)
def test_bad_input_is_one_clear_sentence(
    call, runs: Path, tmp_path: Path, args: list[str], said: str
) -> None:
    (tmp_path / "empty").mkdir()
    for name, text in (("old", ""), ("odd", "format = 1\n")):
        (tmp_path / name / "run").mkdir(parents=True)
        (tmp_path / name / "run/config.toml").write_text(f'{text}methode = "fedavg"\n')
    shutil.copytree(runs, tmp_path / "broken")
    (tmp_path / "broken/leaderboard.json").write_text("{")
    code, out, err = call(*args)
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and said in err


def test_gains_can_be_against_another_method(call, runs: Path) -> None:
    assert call("report", runs, "--against", "fedbn")[0] == 0
    text = (runs / "report.html").read_text()
    assert "Gain over fedbn" in text and "Against fedbn" in text
    code, _, err = call("report", runs, "--against", "fedbm")
    assert code == 2 and "unknown method to compare against 'fedbm'; did you mean 'fedbn'?" in err


def test_export_writes_every_figure_and_a_table(call, runs: Path) -> None:
    code, out, _ = call("report", runs, "--format", "svg,pdf,png,tex")
    assert code == 0 and "files" in out
    found = {p.name for p in (runs / "figures").iterdir()}
    for name in (
        "personal-by-round",
        "personal-by-traffic",
        "personal-by-time",
        "domains",
        "fairness",
        "gain",
        "clients",
    ):
        assert {f"{name}.svg", f"{name}.pdf", f"{name}.png"} <= found
    assert len(found) >= 37 and not (runs / "report.html").exists()
    for path in (runs / "figures").glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
        assert "var(" not in path.read_text()
    for path in (runs / "figures").glob("*.pdf"):
        assert path.read_bytes().startswith(b"%PDF")
    assert (
        "fedbn" in (runs / "figures/personal-by-round.svg").read_text()
    )  # the legend is in the figure
    tex = (runs / "figures/leaderboard.tex").read_text()
    rows = [line for line in tex.splitlines() if line.startswith(("Local &", "FedBN &"))]
    assert r"\caption{Local, FedBN on digits4, domains. " in tex
    assert r"\label{tab:local-fedbn-on-digits4-domains}" in tex
    columns = tex.split(r"\begin{tabular}{l")[1].split("}")[0]
    assert len(rows) == 2 and all(row.count("&") == len(columns) for row in rows)
    assert r"\pm" in tex and tex.count(r"\begin{") == tex.count(r"\end{") == 2
    summaries = [json.loads((runs / f"fedbn-s{s}/summary.json").read_text()) for s in (0, 1)]
    mean = sum(s["personal"]["accuracy_mean"]["best_by_validation"] for s in summaries) / 2
    assert f"{100 * mean:.1f}" in next(row for row in rows if row.startswith("FedBN"))


def test_the_latex_table_has_the_columns_asked_for(call, runs: Path) -> None:
    assert call("report", runs, "--format", "tex", "--columns", "worst_client,personal")[0] == 0
    tex = (runs / "figures/leaderboard.tex").read_text()
    assert r"Method & Worst client (\%) & Personal (\%) \\" in tex
    code, _, err = call("report", runs, "--format", "tex", "--columns", "wurst_client")
    assert code == 2 and "did you mean 'worst_client'?" in err


def test_methods_have_the_names_that_papers_write() -> None:
    names = (
        "fedavg",
        "fedavg-ft",
        "fpl+dfdc",
        "fedprox (mu=0.1)",
        "mine",
        "fedavg-after",
        "scaffold",
    )
    assert list(map(proper, names)) == [
        "FedAvg", "FedAvg-FT", "FPL+DFDC", "FedProx (mu=0.1)", "mine", "FedAvg-after", "SCAFFOLD",
    ]  # fmt: skip


def test_every_method_has_such_a_name() -> None:
    unspelled = [name for name in lookup.names() if proper(name) == name]
    assert len(lookup.names()) >= 45 and not unspelled


def test_latex_is_escaped() -> None:
    assert escape("a_b & 50% \u03c3 {x}\\") == r"a\_b \& 50\% $\sigma$ \{x\}\textbackslash{}"


# -- dash -----------------------------------------------------------------------------------------
@pytest.fixture
def server(runs: Path) -> Iterator[Dash]:
    made = Dash(runs, 0)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join(10)
    made.server_close()


def ask(server: Dash, path: str, host: str | None = None) -> tuple[int, str]:
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_dash_serves_this_machine_only(server: Dash) -> None:
    assert server.server_address[0] == "127.0.0.1"
    status, text = ask(server, "/")
    assert (
        status == 200
        and "connect-src 'self'" in text
        and "setInterval" in text
        and "2 seeds" in text
    )
    assert len(text) < 1_000_000  # Plotly is not part of it: a browser keeps that
    assert '<script src="plotly.js">' in text and "Plotly" in ask(server, "/plotly.js")[1]
    sections = ("runs", "curves", "leaderboard")
    runs, curves, board = (text.index(f'<section id="{name}"') for name in sections)
    assert runs < curves < text.index('class="verdict"') < board
    status, part = ask(server, "/main")
    assert status == 200 and part.startswith('<div id="all">') and "<style>" not in part
    assert ask(server, "/etc/passwd")[0] == 404 and ask(server, "/../C/config.toml")[0] == 404
    assert ask(server, "/", host="evil.example")[0] == 403
    with pytest.raises(FedloomError, match="cannot listen on port"):
        Dash(server.folder, server.server_address[1])


def test_dash_notices_what_runs_write(server: Dash, runs: Path) -> None:
    before = ask(server, "/stamp")
    assert before[0] == 200 and ask(server, "/stamp") == before
    with open(runs / "fedbn-s0/timing.jsonl", "a") as file:
        file.write('{"round": 3, "seconds": 1.0, "peak_rss_mb": 1.0}\n')
    assert ask(server, "/stamp") != before
    shutil.copytree(runs / "fedbn-s0", runs / "another")
    (runs / "another/config.toml").write_text("broken = \n")
    assert ask(server, "/main")[0] == 503  # said, and the server goes on
    shutil.rmtree(runs / "another")
    assert ask(server, "/main")[0] == 200


def test_dash_waits_for_the_first_run(tmp_path: Path) -> None:
    made = Dash(tmp_path / "later", 0)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    try:
        page = ask(made, "/")[1]
        assert "No evaluated round yet" in page and '<section id="leaderboard"' not in page
        before = ask(made, "/stamp")
        (tmp_path / "later").mkdir()
        assert "No evaluated round yet" in ask(made, "/main")[1]
        assert ask(made, "/stamp") != before and stamp(tmp_path) == stamp(tmp_path)
    finally:
        made.shutdown()
        thread.join(10)
        made.server_close()


def test_dash_refreshes_in_a_browser(browser, server: Dash, runs: Path) -> None:
    (runs / "fedbn-s1/summary.json").rename(runs / "kept.json")
    browser.open(server.address)
    assert "round 2 of 2" in browser.js("document.querySelector('#runs').textContent")
    browser.js("document.querySelector('#board [data-column=\"0\"]').click()")
    browser.js("document.querySelectorAll('#curves .tab > label')[1].click()")
    browser.rest(2.5)  # it has looked once
    (runs / "kept.json").rename(runs / "fedbn-s1/summary.json")
    browser.until(
        lambda: "round 2 of 2" not in browser.js("document.querySelector('#runs').textContent")
    )
    # what the reader had chosen is kept
    browser.until(
        lambda: browser.js("document.querySelector('#board [aria-sort]')?.textContent") == "Method"
    )
    assert browser.js("document.querySelectorAll('#curves .tab > input')[1].checked")
    assert browser.logged == []
    assert all(address.startswith(server.address) for address in browser.asked)
