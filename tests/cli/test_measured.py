"""What a method measures of itself is shown wherever a run is told of."""

from __future__ import annotations

import json

from tests.cli.test_main import SMALL


def test_the_error_of_averaging_factors_apart_is_shown(fedloom, tmp_path) -> None:
    """On the console, in summary.json and in the report."""
    code, out, _ = fedloom("run", "lora-fair", *SMALL, "--set", "rank=2", "--out", "A")
    assert code == 0
    summary = json.loads((tmp_path / "A/summary.json").read_text())
    last = json.loads((tmp_path / "A/metrics.jsonl").read_text().splitlines()[-1])
    figures = summary["figures"]
    assert set(figures) == {"averaging_error", "mended_error"}
    error = figures["averaging_error"]["last"]
    assert error == last["figures"]["averaging_error"] > 0
    assert f"measured: averaging error {error:.3g}" in out
    page = (tmp_path / "A/report.html").read_text()
    assert "Measured: averaging error" in page and "Measured: mended error" in page


def test_a_method_that_measures_nothing_shows_nothing(fedloom, tmp_path) -> None:
    code, out, _ = fedloom("run", "fedavg", *SMALL, "--out", "A")
    assert code == 0 and "measured:" not in out
    assert not json.loads((tmp_path / "A/summary.json").read_text())["figures"]
    assert "Measured:" not in (tmp_path / "A/report.html").read_text()
