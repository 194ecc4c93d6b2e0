"""Every registered method passes every check."""

from collections import Counter
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import fedloom
from fedloom.client.training import Training
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import find, make, names, plugins
from fedloom.engine.schedule import Schedule
from fedloom.testing.checks import CHECKS, Check, applicable
from fedloom.testing.small_world import federation, trace


def test_nothing_is_left_out() -> None:
    """A loop over an empty collection cannot fail; these two are counted."""
    assert {"local", "fedavg", "fedprox", "fedper", "fedbn", "scaffold"} <= set(names())
    personal = {
        "fedavg-ft",
        "perfedavg",
        "pfedme",
        "fedrep",
        "fedproto",
        "ditto",
        "apfl",
        "fedrod",
        "fedamp",
        "fedala",
    }
    assert personal | {"fedphp", "fedfomo"} <= set(names())
    assert len(CHECKS) == 20
    assert set(plugins()) >= {"daa", "dfdc", "fedgr"}


# A check that does not apply to a method is not collected.
PAIRS = [(name, check) for name in names() for check in applicable(make(name))]


def test_no_pair_gets_lost() -> None:
    """Checks that do not apply are few and known; all others are collected."""
    reasons = Counter(check.why_not(make(name)) for name in names() for check in CHECKS)
    assert reasons.pop(None) == len(PAIRS) == 1282
    assert len(PAIRS) == len(names()) * len(CHECKS) - sum(reasons.values())
    assert len(reasons) == 5 and all(reasons)


@pytest.mark.parametrize(("name", "check"), PAIRS, ids=str)
def test_contract(name: str, check: Check) -> None:
    check(make(name))


# What a plug-in is most likely to break; the other checks of plug-ins are slow in sum.
OFTEN = {"neutral", "alone", "absence", "resume", "copies", "roles", "frozen", "device"}
PLUGGED = [(name, check) for name in plugins() for check in applicable(make(f"fedavg+{name}"))]


def _at_times(name: str, check: Check) -> object:
    marks = [] if check.name in OFTEN else [pytest.mark.slow]
    return pytest.param(name, check, marks=marks, id=f"{name}-{check}")


def test_no_check_of_a_plug_in_gets_lost() -> None:
    reasons = Counter(check.why_not(make(f"fedavg+{n}")) for n in plugins() for check in CHECKS)
    assert reasons.pop(None) == len(PLUGGED) == 419
    assert set(reasons) == {
        "it declares no neutral values",
        "it says that one client is not plain training (alone = None)",
    }
    assert {check.name for _, check in PLUGGED} >= OFTEN


@pytest.mark.parametrize(("name", "check"), [_at_times(*pair) for pair in PLUGGED])
def test_contract_of_plug_ins(name: str, check: Check) -> None:
    check(make(f"fedavg+{name}"))


@pytest.mark.parametrize("name", names())
def test_nine_in_ten_lost(name: str) -> None:
    """One-class clients of which nine in ten are lost each round: it ends with finite numbers."""
    world = federation(sizes=[20] * 6, only={k: [k % 3] for k in range(6)})
    seen = trace(make(name), world, rounds=4, dropouts=0.9)
    assert sum(len(m["lost"]) for m in seen.metrics) >= 18, "most were lost"
    for value in seen.server.values():
        assert not isinstance(value, Tensor) or torch.isfinite(value).all()
    evaluated = [m["clients"][find(name).traits.stage] for m in seen.metrics]
    assert all(None not in accuracies for accuracies in evaluated), "lost ones have a model too"


@pytest.mark.parametrize("name", names())
def test_settings_have_names_of_their_own(name: str) -> None:
    """A setting that training or the schedule also has would be ambiguous without its section."""
    own = {f.name for f in fields(find(name))}
    others = set(Training.model_fields) | set(Schedule.model_fields)
    assert not own & others


@pytest.mark.parametrize("name", names())
def test_a_partition_made_by_pfllib(name: str, tmp_path: Path) -> None:
    """Its folder can be given to any method: the clients are the folder's."""
    rng = np.random.default_rng(0)
    for part, n in (("train", 12), ("test", 6)):
        (tmp_path / part).mkdir()
        for k in range(3):
            rows = {
                "x": rng.random((n + k, 1, 8, 8)).astype(np.float32),
                "y": np.arange(n + k) % 2 + (k == 2),
            }
            np.savez_compressed(tmp_path / part / f"{k}.npz", data=np.array(rows, dtype=object))
    (tmp_path / "config.json").write_text('{"num_clients": 3, "num_classes": 3}')
    if find(name).traits.world == "dual":  # these need images and texts in one space, and say so
        with pytest.raises(FedloomError, match="encoder"):
            fedloom.run(name, data=str(tmp_path), rounds=2, model="mlp", hidden=[8])
        return
    run = fedloom.run(name, data=str(tmp_path), rounds=2, model="mlp", hidden=[8])
    clients = run.federation["clients"]
    assert [c["test"] for c in clients] == [6, 7, 8]
    assert [[n > 0 for n in c["counts"]] for c in clients] == [
        [True, True, False],
        [True, True, False],
        [False, True, True],
    ]
    assert run.headline["personal"]["accuracy_mean"] == pytest.approx(np.mean(run.clients))
