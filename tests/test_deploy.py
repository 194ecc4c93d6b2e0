"""After training: newcomers, and models as files."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedloom.cli.main
from fedloom import run
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import names
from fedloom.deploy import export, load, personalise, trained

SMALL = {"clients": 4, "rounds": 1, "width": 4, "features": 16, "eval_every": 1, "steps": 6}


def pictures(folder: Path, classes: list[str], train: int = 3, test: int = 2) -> Path:
    """Noisy squares, brighter for later classes, in folders as users have them."""
    rng = np.random.default_rng(0)
    for part, n in (("train", train), ("test", test)):
        for i, name in enumerate(classes if n else []):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for j in range(n):
                pixels = rng.integers(0, 40, (28, 28)) + 40 * i
                Image.fromarray(pixels.astype(np.uint8)).save(folder / part / name / f"{j}.png")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A round of some methods on digits4."""
    place = tmp_path_factory.mktemp("runs")
    made = {}
    for name in ("fedper", "fedavg", "fedamp", "fedproto"):
        made[name] = place / name
        run(name, "digits4", out=made[name], **SMALL)
    return made


def shape(folder: Path) -> tuple[int, list[str]]:
    told = json.loads((folder / "federation.json").read_text())
    return len(told["clients"]), told["classes"]


def test_a_newcomer_gets_a_model_of_its_own_and_the_run_stays(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    before = {p: p.read_bytes() for p in sorted(runs["fedper"].rglob("*")) if p.is_file()}
    names_ = shape(runs["fedper"])[1]
    data = pictures(tmp_path / "mine", [names_[7], names_[2]])
    found = personalise(runs["fedper"], str(data))
    assert (found.train, found.test) == (6, 4) and found.after is not None and 0 <= found.after <= 1
    out = export(found.predict, found.worker, found.run.config, tmp_path / "model")
    x = found.worker.federation.data.prepare(found.worker.federation.samples(4, "test")[0])
    assert torch.allclose(
        load(out)(x), found.predict(found.worker.federation.samples(4, "test")[0]), atol=1e-6
    )
    assert {p: p.read_bytes() for p in sorted(runs["fedper"].rglob("*")) if p.is_file()} == before


def test_prototype_methods_take_newcomers_too(runs: dict[str, Path], tmp_path: Path) -> None:
    data = pictures(tmp_path / "mine", shape(runs["fedproto"])[1][:2], test=0)
    found = personalise(runs["fedproto"], str(data))
    assert found.test == 0 and found.after is None and found.seconds > 0


def test_those_that_cannot_say_why(runs: dict[str, Path], tmp_path: Path) -> None:
    data = str(pictures(tmp_path / "mine", shape(runs["fedavg"])[1][:2]))
    with pytest.raises(FedloomError, match="gives everybody the common model"):
        personalise(runs["fedavg"], data)
    with pytest.raises(FedloomError, match="a newcomer has sent nothing"):
        personalise(runs["fedamp"], data)
    strange = pictures(tmp_path / "strange", ["no such class"])
    with pytest.raises(FedloomError, match="no such class"):
        personalise(runs["fedper"], str(strange))
    ten = {
        "y_train": np.arange(10),
        "y_test": np.arange(10),
        "classes": np.array(shape(runs["fedper"])[1]),
    }
    for x, why in [
        (np.zeros((10, 7), np.float32), "holds vectors; images, to be scaled to size="),
        (
            np.zeros((10, 9, 9), np.uint8),
            r"samples of shape \(1, \d+, \d+\), this run was trained on \(3, \d+, \d+\)",
        ),
    ]:
        np.savez(tmp_path / "other.npz", x_train=x, x_test=x, **ten)
        with pytest.raises(FedloomError, match=why):
            personalise(runs["fedper"], str(tmp_path / "other.npz"))


def test_common_and_personal_models_are_exported(runs: dict[str, Path], tmp_path: Path) -> None:
    predict, worker, done = trained(runs["fedavg"])
    out = export(predict, worker, done.config, tmp_path / "common")
    told = json.loads((out / "config.json").read_text())
    assert told["model"] == "cnn" and len(told["classes"]) == 10 and told["input"]["bytes"] is True
    x = worker.federation.data.x[:5]
    assert torch.allclose(load(out)(worker.prepare(x)), predict(x), atol=1e-6)
    with pytest.raises(FedloomError, match="no common model"):
        trained(runs["fedper"])
    own, worker, done = trained(runs["fedper"], client=2)
    assert torch.allclose(
        load(export(own, worker, done.config, tmp_path / "own"))(worker.prepare(x)),
        own(x),
        atol=1e-6,
    )
    with pytest.raises(FedloomError, match="numbered from 0 to 3"):
        trained(runs["fedper"], client=4)


def test_what_is_not_a_network_is_not_exported(runs: dict[str, Path], tmp_path: Path) -> None:
    predict, worker, done = trained(runs["fedproto"], client=0)
    with pytest.raises(FedloomError, match="predicts with more than a network"):
        export(predict, worker, done.config, tmp_path / "none")
    with pytest.raises(FedloomError, match=r"no exported model: it has no config\.json"):
        load(tmp_path)


def test_onnx_agrees_with_torch(runs: dict[str, Path], tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")
    predict, worker, done = trained(runs["fedavg"])
    out = export(predict, worker, done.config, tmp_path / "onnx", onnx=True)
    x = worker.prepare(worker.federation.data.x[:3])
    said = ort.InferenceSession(str(out / "model.onnx")).run(None, {"x": x.contiguous().numpy()})[0]
    assert np.abs(said - load(out)(x).detach().numpy()).max() < 1e-4


def test_onnx_without_its_packages_names_the_extra(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    predict, worker, done = trained(runs["fedavg"])
    with pytest.raises(FedloomError, match=r"fedloom\[onnx\]"):
        export(predict, worker, done.config, tmp_path / "onnx", onnx=True)


def test_the_commands(
    runs: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = pictures(tmp_path / "mine", shape(runs["fedper"])[1][:3])
    told = [
        "personalise",
        str(runs["fedper"]),
        "--data",
        str(data),
        "--out",
        str(tmp_path / "m"),
        "--json",
    ]
    monkeypatch.setattr(sys, "argv", ["fedloom", *told])
    with pytest.raises(SystemExit) as end:
        fedloom.cli.main.main()
    assert end.value.code == 0
    assert (
        json.loads(capsys.readouterr().out)["train"] == 9
        and (tmp_path / "m" / "model.safetensors").exists()
    )
    monkeypatch.setattr(
        sys, "argv", ["fedloom", "export", str(runs["fedavg"]), "--out", str(tmp_path / "c")]
    )
    with pytest.raises(SystemExit) as end:
        fedloom.cli.main.main()
    assert end.value.code == 0 and (tmp_path / "c" / "config.json").exists()


def test_a_frozen_head_and_a_fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedPACT's newcomer: the head as it is, a cache from a few images; exported and read back."""
    from dataclasses import replace

    from fedloom import deploy
    from fedloom.encoders import Encoder, Preprocess
    from fedloom.testing import small_world

    class Pixels(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            grey = x.mean(1).flatten(1)
            return torch.nn.functional.normalize(grey - grey.mean(1, keepdim=True), dim=1)

    pair = small_world.small_dual()
    pair = replace(
        pair, image=Encoder("checks", 64, Preprocess(8), Pixels, settings="pixels of a test")
    )
    monkeypatch.setattr("fedloom.parts.prompts.dual", lambda name: pair)
    from fedloom.encoders import IMAGE

    monkeypatch.setitem(IMAGE._entries, "checks", lambda: pair.image)
    data = pictures(tmp_path / "data", ["zero", "one", "two"], train=8, test=4)
    run(
        "fedpact",
        str(data),
        partition="fewshot",
        clients=2,
        rounds=1,
        encoder="checks",
        model="linear",
        out=tmp_path / "run",
        server_epochs=2,
        validation=0.0,
    )
    mine = pictures(tmp_path / "mine", ["one", "two"])
    found = deploy.personalise(tmp_path / "run", str(mine))
    assert found.seconds > 0 and found.train == 6
    onnx = bool(
        find_spec("onnxruntime") and find_spec("onnxscript")
    )  # compared with torch as it is written
    out = export(found.predict, found.worker, found.run.config, tmp_path / "model", onnx=onnx)
    assert (out / "model.onnx").exists() == onnx
    told = json.loads((out / "config.json").read_text())
    assert told["head"]["kind"] == "cache" and told["input"]["encoder"] == "checks"
    x = found.worker.federation.samples(2, "test")[0]
    assert torch.allclose(load(out)(x), found.predict(x), atol=1e-6)
    common, worker, done = trained(tmp_path / "run")
    flat = export(common, worker, done.config, tmp_path / "common")
    assert json.loads((flat / "config.json").read_text())["head"] == {"kind": "text", "scale": 10.0}
    assert torch.allclose(load(flat)(x), common(x), atol=1e-6)


def test_every_method_says_which_of_the_servers_tensors_are_by_client() -> None:
    """A newcomer can be made room for, or the method says that it cannot."""
    from fedloom.core.lookup import make
    from fedloom.deploy import widened
    from fedloom.engine.engine import first
    from fedloom.testing import small_world

    asked = 0
    for name in names():
        method = make(name)
        if method.traits.by_client is None or not method.traits.personalised:
            continue
        worker = small_world.place(method)
        server = widened(first(worker), method, worker.clients)
        method.download(method.join(server, {}), worker.clients)
        asked += 1
    assert asked >= 15


def test_an_export_leaves_no_other_models_onnx(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.onnx").write_bytes(b"of another client")
    predict, worker, done = trained(runs["fedper"], 1)
    export(predict, worker, done.config, tmp_path / "out")
    assert not (tmp_path / "out" / "model.onnx").exists()
