"""What docs/data.md says about one's own data, typed as it is printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fedloom
from fedloom.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8")
SECTION = PAGE.partition("## Your own data")[2].partition("\n## ")[0]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", SECTION, re.DOTALL)


@pytest.fixture
def skin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder `skin` with a manifest whose columns are those of the page."""
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (header,) = [block.splitlines()[0] for block in blocks("csv")]
    lines = [header]
    for patient in range(20):
        site, label = ("north", "south")[patient % 2], ("benign", "malignant")[patient // 10]
        part = "test" if patient % 5 == 4 else "train"
        for i in range(3):
            file = Path("skin") / site / f"{patient}{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (10 * patient, 40 * i, 0)).save(file)
            lines.append(f"{site}/{file.name},{label},{site},p{patient},{part}")
    Path("skin/list.csv").write_text("\n".join(lines))
    return tmp_path


def test_the_commands_of_the_page_work(skin: Path) -> None:
    (console,) = blocks("console")
    outputs = []
    for line in console.splitlines():
        words = shlex.split(line, comments=True)[1:]
        words = ["16" if word == "64" else word.replace("size=64", "size=16") for word in words]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        outputs.append(done.output)
    check, show, run = outputs
    assert "48 training and 12 test samples" in check and "20 groups" in check
    assert re.search(r"groups\s+20", show) and re.search(r"0\s+north\s+\d+\s+\d+\s+6\s+10", show)
    assert run


def test_the_python_of_the_page_works(tmp_path: Path) -> None:
    (code,) = blocks("python")
    names: dict[str, object] = {}
    exec(code, names)
    run = names["run"]
    assert isinstance(run, fedloom.Run)
    assert run.summary["personal"]["accuracy_mean"]["last"] > 0.7


def test_class_weights_let_a_rare_class_count() -> None:
    """With nine healthy samples for each ill one, unweighted training finds nobody ill."""
    rng = torch.Generator().manual_seed(0)
    y = (torch.arange(2000) % 10 == 0).long()
    x = 0.8 * y[:, None] + torch.randn(2000, 2, generator=rng)
    test = torch.arange(2000) // 10 % 2 == 0
    world = fedloom.federate(fedloom.Dataset(x, y, test=test), "iid", clients=2)
    found = {}
    for weights in ("none", "balanced"):
        done = fedloom.run(
            "fedavg", world, model="linear", rounds=4, epochs=3, lr=0.1, class_weights=weights
        )
        found[weights] = done.summary["personal"]["balanced_accuracy_pooled"]["last"]
    assert found["none"] < 0.55
    assert found["balanced"] > 0.6


def test_class_weights_are_those_of_the_formula() -> None:
    """Weights are n / (classes present * samples of the class); absent classes have none."""
    from fedloom.client.job import Job
    from fedloom.client.training import Training
    from fedloom.engine.config import build
    from fedloom.engine.setup import Setup

    y = torch.tensor([0, 0, 0, 1, 0, 0, 0, 1])
    data = fedloom.Dataset(torch.zeros(8, 2), y, test=[False] * 8, classes=("a", "b", "c"))
    world = fedloom.federate(data, "iid", clients=1, validation=0)
    config = build({"partition": "given", "model": "linear"})
    worker = Setup.from_config(config, federation=world).worker
    job = Job(worker, 0, 1, Training(class_weights="balanced"))
    assert job.class_weights is not None
    assert job.class_weights.tolist() == pytest.approx([8 / (2 * 6), 8 / (2 * 2), 0.0])
    assert Job(worker, 0, 1, Training()).class_weights is None


def test_a_method_that_weighs_no_classes_says_so() -> None:
    world = fedloom.federate(fedloom.Dataset(torch.randn(40, 4), [0, 1] * 20), "iid", clients=2)
    with pytest.raises(fedloom.FedloomError, match="fedrod has a loss of its own"):
        fedloom.run("fedrod", world, model="linear", rounds=1, class_weights="balanced")
