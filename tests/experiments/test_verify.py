"""`fedloom verify`, beside a stand-in for a checkout of PFLlib."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.experiments.verify import COUNTERPARTS, Work, parsed, run_theirs, verify

MAIN = """
import json, sys
json.dump(sys.argv[1:], open("asked.json", "w"))
for number, accuracy in enumerate([0.1, 0.25, 0.5]):
    print(f"-------------Round number: {number}-------------")
    print("Averaged Train Loss: 2.0000")
    print(f"Averaged Test Accuracy: {accuracy:.4f}")
    print("Std Test Accuracy: 0.9000")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two clients with a few images of 16 pixels, and a program that prints as PFLlib does."""
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "main.py").write_text(MAIN)
    data = tmp_path / "dataset" / "Tiny"
    rng = np.random.default_rng(0)
    for part, count in (("train", 8), ("test", 4)):
        (data / part).mkdir(parents=True)
        for k in range(2):
            x = rng.normal(size=(count, 1, 16, 16)).astype(np.float32)
            stored = {"x": x, "y": np.arange(count) % 3}
            np.savez_compressed(data / part / f"{k}.npz", data=stored)
    (data / "config.json").write_text(json.dumps({"num_clients": 2, "num_classes": 3}))
    return tmp_path


def test_both_sides_are_printed_round_by_round(checkout: Path, fedloom) -> None:
    code, out, err = fedloom(
        "verify", "fedprox", "--against", checkout, "--data", "Tiny", "--rounds", 2, "--json"
    )
    assert code == 0, err
    rows = json.loads(out)
    assert [(row["round"], row["theirs"]) for row in rows] == [(1, 0.25), (2, 0.5)]
    assert all(row["ours"] * 8 == round(row["ours"] * 8) for row in rows)
    asked = json.loads((checkout / "system" / "asked.json").read_text())
    wanted = dict(zip(asked[::2], asked[1::2], strict=True))
    assert wanted["--algorithm"] == "FedProx" and wanted["--mu"] == "0.01"
    assert wanted["--num_clients"] == "2" and wanted["--num_classes"] == "3"


def test_what_the_program_says_last_is_passed_on(checkout: Path) -> None:
    (checkout / "system" / "main.py").write_text("import no_such_package")
    work = Work("fedavg", checkout, "Tiny")
    with pytest.raises(FedloomError, match=r"no_such_package.*--python"):
        run_theirs(work, work.counterpart, sys.executable)


def test_wrong_inputs_are_named(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match="did you mean 'fedper'"):
        verify(Work("fedpr", checkout, "Tiny"))
    with pytest.raises(FedloomError, match=r"no system/main\.py"):
        verify(Work("fedper", tmp_path / "dataset"))
    with pytest.raises(FedloomError, match=r"generate_MNIST\.py"):
        verify(Work("fedper", checkout))


def test_a_round_of_zero_is_the_model_before_training() -> None:
    assert parsed("Round number: 0\nAveraged Test Accuracy: 0.9\n") == {}


@pytest.mark.parametrize("method", COUNTERPARTS)
def test_options_are_settings_of_ours(method: str) -> None:
    counterpart = COUNTERPARTS[method]
    ours = make(method, counterpart.ours)
    assert all(hasattr(ours, name) for name in counterpart.options)
    assert counterpart.stage in ("before", "after")


# First weights and batches differ, so the two agree as two seeds do; a common model, which learns
# slowly at first, scatters more.
APART = {"fedper": 0.02, "fedrep": 0.02, "fedala": 0.02, "fedproto": 0.02, "fedavg": 0.06}


@pytest.mark.slow
@pytest.mark.parametrize("method", APART)
def test_pfllib_itself_agrees_on_its_mnist(method: str) -> None:
    """FEDLOOM_PFLLIB is a checkout that has dealt out MNIST; FEDLOOM_PFLLIB_PYTHON runs it."""
    checkout = os.environ.get("FEDLOOM_PFLLIB")
    if checkout is None:
        pytest.skip("FEDLOOM_PFLLIB names no checkout of PFLlib")
    python = os.environ.get("FEDLOOM_PFLLIB_PYTHON", sys.executable)
    rows = verify(Work(method, Path(checkout).resolve(), rounds=2), python)
    print(method, [(row.round, row.theirs, round(row.ours, 4)) for row in rows])
    last = rows[-1]
    assert last.round == 2
    assert abs(last.ours - last.theirs) <= APART[method]
