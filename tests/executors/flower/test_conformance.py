"""The same numbers in one process and over a Flower grid, for every method."""

import numpy as np
import pytest

from fedloom.core.lookup import make, names
from fedloom.core.payload import Payload
from fedloom.testing import small_world
from fedloom.testing.small_world import network, trace, usual, with_frozen_stem


def flat(record: object) -> list[float]:
    """All numbers of a record, in a fixed order."""
    if isinstance(record, dict):
        return [x for key in sorted(record, key=str) for x in flat(record[key])]
    if isinstance(record, list):
        return [x for value in record for x in flat(value)]
    return [] if record is None or isinstance(record, str) else [float(record)]


@pytest.mark.parametrize("name", names())
def test_as_in_one_process(name: str, world) -> None:
    method = make(name)
    expected = usual(method)
    here = world(method)
    seen = here.run()
    assert len(seen.metrics) == len(expected.metrics) == 3
    for mine, theirs in zip(seen.metrics, expected.metrics, strict=True):
        if (
            method.traits.personalised
        ):  # a common model beside personal ones would need the whole server at the clients
            assert mine["common"] is None
            theirs = {
                **theirs,
                "common": None,
                "validation": {**theirs["validation"], "common": None},
            }
            theirs["clients"] = {s: v for s, v in theirs["clients"].items() if s != "common"}
        assert "figures" not in mine  # these may need test samples, which stay at the sites
        theirs = {part: value for part, value in theirs.items() if part != "figures"}
        assert mine.keys() == theirs.keys()
        for part in mine:
            assert np.allclose(flat(mine[part]), flat(theirs[part]), atol=1e-5, rtol=0), part
    assert seen.server.equal(expected.server), "the server differs"
    for k in range(4):
        assert here.state(k).equal(Payload.decode(expected.states[-1][k])), (
            f"client {k} remembers something else"
        )
    assert all(not e["refused"] and not e["silent"] and not e["absent"] for e in here.book.answers)
    assert {e["kind"] for e in here.book.answers} == {"hello", "client", "before"}


@pytest.mark.parametrize("name", ["fedavg", "fedper"])
def test_metrics_of_scores_as_in_one_process(name: str, world) -> None:
    expected = trace(make(name), metric="auc")
    seen = world(make(name)).run(metric="auc")
    keys = {f"{name}_mean" for name in ("auc", "nll", "ece", "balanced_accuracy", "macro_f1")}
    assert keys | {"majority_mean", "recall_classes"} <= seen.metrics[-1]["personal"].keys()
    for mine, theirs in zip(seen.metrics, expected.metrics, strict=True):
        assert mine["personal"].keys() == theirs["personal"].keys()
        assert flat(mine["personal"]) == pytest.approx(flat(theirs["personal"]), abs=1e-5)
        assert mine["validation"]["personal"] == pytest.approx(
            theirs["validation"]["personal"], abs=1e-5
        )


@pytest.mark.parametrize("name", ["fedavg", "fedper", "scaffold"])
def test_frozen_layers_as_in_one_process(name: str, world, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each site has the frozen layers already, so they are not sent."""
    expected = trace(make(name), model=with_frozen_stem(network()))
    monkeypatch.setattr(small_world, "network", lambda: with_frozen_stem(network()))
    here = world(make(name))
    seen = here.run()
    assert seen.server.equal(expected.server)
    assert not [n for n in seen.server if n.startswith("model/body.0.")]
    for k in range(4):
        assert here.state(k).equal(Payload.decode(expected.states[-1][k]))
