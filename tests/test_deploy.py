"""After training: newcomers, and models as files."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedloom.cli.main
from fedloom import run
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make, names
from fedloom.deploy import export, load, personalise, predict, trained
from fedloom.models.onnx import close, differing
from fedloom.testing import small_world
from fedloom.testing.checks import check_export

FEW = {"limit_train": 10, "limit_test": 5}
SMALL = {"clients": 4, "rounds": 1, "width": 4, "features": 16, "eval_every": 1, "steps": 6} | FEW


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
    assert (found.train, found.test) == (6, 4)
    x, y = found.worker.federation.samples(4, "test")
    assert found.after == pytest.approx(float((found.predict(x).argmax(1) == y).float().mean()))
    read, _ = load(export(found, tmp_path / "model"))
    assert torch.allclose(read(x), found.predict(x), atol=1e-6)
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
    served = trained(runs["fedavg"])
    read, told = load(export(served, tmp_path / "common"))
    assert told["model"] == "cnn" and len(told["classes"]) == 10
    assert told["input"]["dtype"] == "uint8"
    x = served.raw.x[:5]
    assert torch.allclose(read(x), served.predict(x), atol=1e-6)
    with pytest.raises(FedloomError, match="no common model"):
        trained(runs["fedper"])
    for name in ("fedper", "fedproto"):
        own = trained(runs[name], client=2)
        read, _ = load(export(own, tmp_path / name))
        assert torch.allclose(read(x), own.predict(x), atol=1e-5)
    with pytest.raises(FedloomError, match="numbered from 0 to 3"):
        trained(runs["fedper"], client=4)
    with pytest.raises(FedloomError, match=r"no exported model: it has no config\.json"):
        load(tmp_path)


def test_clients_have_the_names_of_their_domains(runs: dict[str, Path]) -> None:
    domains = [
        c["domain"] for c in json.loads((runs["fedper"] / "federation.json").read_text())["clients"]
    ]
    assert len(set(domains)) == 4
    x = trained(runs["fedper"], 0).raw.x[:5]
    for k, name in enumerate(domains):
        by_name = trained(runs["fedper"], name).predict(x)
        assert torch.equal(by_name, trained(runs["fedper"], str(k)).predict(x))
    with pytest.raises(FedloomError, match=domains[0]):
        trained(runs["fedper"], domains[0] + "x")


def test_a_function_is_not_exported(runs: dict[str, Path], tmp_path: Path) -> None:
    served = replace(trained(runs["fedavg"]), predict=lambda x: x)
    with pytest.raises(FedloomError, match="predicts with a function"):
        export(served, tmp_path / "none")
    ecalp = replace(served, worker=small_world.place(make("ecalp")))
    with pytest.raises(FedloomError, match="depends on the other samples"):
        export(ecalp, tmp_path / "none")


def test_the_contract_refuses_a_method_that_cannot_be_exported() -> None:
    from fedloom.methods.fedavg import FedAvg

    class Function(FedAvg):
        def personal(self, down, state, local):  # type: ignore[no-untyped-def]
            predict = super().personal(down, state, local)
            return lambda x: predict(x)

    with pytest.raises(FedloomError, match="predicts with a function"):
        check_export(Function())


def test_scores_that_differ_are_not_close() -> None:
    a = torch.tensor([[1.0, -torch.inf, 3.0]])
    assert close(a, a + 1e-6)
    assert not close(a, a + 1e-3)
    assert not close(a, torch.tensor([[1.0, 2.0, 3.0]]))
    assert not close(a * torch.nan, a)
    assert differing(torch.cat([a, a + 1, a]), torch.cat([a, a, a])) == [1]


def test_onnx_without_its_packages_names_the_extra(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(FedloomError, match=r"fedloom\[onnx\]"):
        export(trained(runs["fedavg"]), tmp_path / "onnx", onnx=True)


def test_predictions_of_files(runs: dict[str, Path], tmp_path: Path) -> None:
    """An image, a folder and a list of paths give what the engine gives for the same pixels."""
    classes = shape(runs["fedavg"])[1]
    photos = pictures(tmp_path / "photos", classes[:2])
    export(trained(runs["fedavg"]), tmp_path / "model")
    answers = predict(tmp_path / "model", photos)
    assert [a.sample for a in answers][:2] == [f"test/{min(classes[:2])}/{j}.png" for j in (0, 1)]
    assert answers == predict(runs["fedavg"], photos)
    file = photos / answers[0].sample
    served = trained(runs["fedavg"])
    side = served.raw.x.shape[-1]
    image = Image.open(file).convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
    x = torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())[None]
    probabilities = torch.softmax(served.predict(x), 1)[0]
    (alone,) = predict(tmp_path / "model", file)
    for c, name in enumerate(served.raw.classes):
        assert alone.classes[name] == pytest.approx(float(probabilities[c]), abs=1e-5)
    assert list(alone.classes.values()) == sorted(alone.classes.values(), reverse=True)
    (tmp_path / "list.csv").write_text(f"path\nphotos/{answers[0].sample}\n")
    (listed,) = predict(tmp_path / "model", tmp_path / "list.csv")
    assert listed.classes == pytest.approx(alone.classes)
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(FedloomError, match=r"broken\.png is not an image"):
        predict(tmp_path / "model", tmp_path / "broken.png")
    with pytest.raises(FedloomError, match="holds one model"):
        predict(tmp_path / "model", file, client="0")


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
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["fedloom", "predict", str(tmp_path / "c"), str(data)])
    with pytest.raises(SystemExit) as end:
        fedloom.cli.main.main()
    lines = capsys.readouterr().out.splitlines()
    assert end.value.code == 0 and len(lines) == 15
    assert all(line.count(" %") == 3 for line in lines)


def test_a_frozen_head_and_a_fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedPACT's newcomer: the head as it is, a cache from a few images; exported and read back."""
    from fedloom import deploy
    from fedloom.encoders import Encoder, Preprocess

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
    read, told = load(export(found, tmp_path / "model"))
    assert told["pieces"]["head"]["kind"] == "CacheHead" and told["input"]["encoder"] == "checks"
    x = found.worker.federation.samples(2, "test")[0]
    raw = found.raw.take(torch.from_numpy(found.worker.rows(2, "test")))
    assert raw.dtype == torch.uint8
    assert torch.allclose(read(raw), found.predict(x), atol=1e-5)
    common = trained(tmp_path / "run")
    read, told = load(export(common, tmp_path / "common"))
    assert told["pieces"]["head"] == {"kind": "TextHead", "scale": 10.0}
    rows = torch.arange(len(common.raw.y))
    assert torch.allclose(
        read(common.raw.take(rows)), common.predict(common.worker.samples(rows)), atol=1e-5
    )


def test_every_method_says_which_of_the_servers_tensors_are_by_client() -> None:
    """A newcomer can be made room for, or the method says that it cannot."""
    from fedloom.engine.engine import first
    from fedloom.engine.setup import widened

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
    export(trained(runs["fedper"], 1), tmp_path / "out")
    assert not (tmp_path / "out" / "model.onnx").exists()
