"""Distributions in place of lists, beside what the list gives."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedloom.metrics.distribution import Coded, Distribution
from fedloom.metrics.fairness import worst_share
from fedloom.metrics.summary import client_spread, client_values

VALUES = np.array([0.5, 0.25, np.nan, 1.0, 0.75])
DOMAINS = ["a", "b", "b", None, "a"]


def test_a_distribution_has_what_the_list_has() -> None:
    found = Distribution.of(VALUES, DOMAINS)
    assert found is not None and found.n == 4
    assert (found.least, found.quantiles[50], found.most) == (0.25, 0.625, 1.0)
    assert found.domains == {"": (1, 1.0, 1.0), "a": (2, 1.25, 0.8125), "b": (1, 0.25, 0.0625)}
    assert found.mean == pytest.approx(0.625) and found.std == pytest.approx(np.nanstd(VALUES))
    assert (found.lowest_tenth, found.highest_tenth) == (0.25, 1.0)
    assert Distribution.of(np.array([np.nan]), ["a"]) is None


def test_the_worst_tenth_is_that_of_the_list() -> None:
    values = np.random.default_rng(0).random(37)
    found = Distribution.of(values, Coded(np.full(37, -1), ()))
    assert found is not None
    assert found.lowest_tenth == pytest.approx(worst_share(values.tolist()))


def test_a_line_is_read_back() -> None:
    found = Distribution.of(VALUES, DOMAINS)
    assert found is not None
    line = json.loads(json.dumps({"clients": {"before": found.plain()}}))
    assert client_spread(line, "before", "accuracy") == found
    assert client_values(line, "before", "accuracy") == []
    listing = {"clients": {"before": [0.5, None]}}
    assert client_spread(listing, "before", "accuracy") is None
    assert client_values(listing, "before", "accuracy") == [0.5, None]
