"""Everything that computes does so on an accelerator: models, exports, newcomers, views, encoders.

With `FEDLOOM_DEVICE=cuda` the same tests run on a real device, and figures are compared roughly.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn

import fedloom
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.device import CPU, Device
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.data.federation import Federation
from fedloom.deploy import export, load, personalise, predict, trained
from fedloom.encoders import Cache, Encoder, Preprocess, encode, image
from fedloom.engine.engine import Engine
from fedloom.engine.folder import Run
from fedloom.engine.schedule import Schedule
from fedloom.executors.base import Task as Work
from fedloom.executors.base import execute
from fedloom.executors.inplace import Inplace
from fedloom.models import MODELS, Task, build
from fedloom.report.entries import RunData, gather
from fedloom.report.feature_plots import look
from fedloom.report.feature_plots.opened import opened
from fedloom.testing import on_device
from fedloom.testing.on_device import accelerator, compare, roughly_same
from fedloom.testing.pretend import named_device, pretend
from fedloom.testing.small_world import federation, place, trace

pytestmark = pytest.mark.skipif(
    on_device.why_not(make("fedavg")) is not None,
    reason=str(on_device.why_not(make("fedavg"))),
)
NEAR = 1e-3  # how far figures of a real device may be from the CPU's
ATTENTION = 1e-5  # torch has a quicker kernel for it on the CPU, which rounds otherwise
VIT = Callable[..., Path]


def agree(cpu: Tensor, device: Tensor, near: float = 0.0) -> bool:
    """Whether tensors are equal to the bit, or nearly; those of a real device always nearly."""
    if named_device():
        near = NEAR
    if not near:
        return torch.equal(cpu, device.cpu())
    return torch.allclose(cpu.float(), device.cpu().float(), rtol=near, atol=near)


def trees_agree(cpu: Tree, device: Tree, near: float = 0.0) -> bool:
    return bool(cpu) and all(agree(cpu[name], device[name], near) for name in cpu)


# -- models -------------------------------------------------------------------------------------


def images(size: int) -> Federation:
    world = federation(sizes=(12, 12))
    times = size // 8
    return replace(world, data=replace(world.data, x=world.data.x.repeat(1, 1, times, times)))


def segments() -> Federation:
    """Each pixel's class is whether it is bright."""
    world = images(8)
    masks = (world.data.x[:, 0] > 128).long()
    classes = ("dark", "bright")
    return replace(world, data=replace(world.data, y=masks, classes=classes))


def texts() -> Federation:
    world = images(8)
    tokens = (world.data.x[:, 0, 0] // 16).long()
    return replace(world, data=replace(world.data, x=tokens, vocabulary=16))


CASES: dict[str, tuple[Callable[[], Federation], dict[str, Any]]] = {
    "cnn": (lambda: images(16), {"width": 4, "features": 16}),
    "resnet10": (lambda: images(8), {"width": 8}),
    "resnet18": (lambda: images(8), {"width": 8, "stem": "small"}),
    "mlp": (lambda: images(8), {}),
    "linear": (lambda: images(8), {}),
    "projection": (lambda: images(8), {}),
    "fasttext": (texts, {"features": 8}),
    "unet": (segments, {"width": 4, "depth": 2}),
    "vpt": (lambda: images(8), {"dropout": 0.0}),
    "pretrained": (lambda: images(8), {}),
    "hf:": (lambda: images(8), {}),
}
ELSEWHERE = {"minilm", "py:", "timm:", "torchvision:"}  # these need words, a file, or packages


def test_no_model_is_left_out() -> None:
    assert set(CASES) | ELSEWHERE == set(MODELS.names())


@pytest.mark.parametrize("name", CASES)
def test_models_give_the_cpus_bits(
    name: str, tiny_vit: VIT, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLOOM_FAST", "0")  # the CPU's shortcuts for large layers round otherwise
    make_world, options = CASES[name]
    if name == "vpt":
        options = {**options, "vit": f"hf:{tiny_vit()}"}
    if name == "pretrained":
        options = {**options, "weights": f"hf:{tiny_vit()}"}
    if name == "hf:":
        name = f"hf:{tiny_vit()}"
    world = make_world()
    data = world.data

    def run(device: Device) -> tuple[Payload, list[dict[str, Any]]]:
        torch.manual_seed(0)
        net = build(
            name, Task(tuple(data.x.shape[1:]), len(data.classes), data.vocabulary), **options
        )
        training = Training(batch=6, lr=0.05)
        worker = ClientWorker(make("fedavg"), world, net, training, 0, devices=(device,))
        records: list[dict[str, Any]] = []

        class Note:
            def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
                records.append(record or {})

        engine = Engine(worker, Inplace(worker), Schedule(rounds=2), [Note()])
        engine.run()
        return engine.server, records

    expected, seen_on_cpu = run(CPU)
    with accelerator() as device:
        server, seen = run(device)
    near = 0.0
    if name in ("vpt", "pretrained") or name.startswith("hf:"):
        near = ATTENTION
    assert trees_agree(expected.tree("model"), server.tree("model"), near)
    if not near and not named_device():
        assert seen == seen_on_cpu


@pytest.mark.parametrize("last", [False, True])
def test_both_layouts_agree_nearly(last: bool) -> None:
    def run(device: Device, wanted: bool | None) -> Tree:
        torch.manual_seed(0)
        net = build("cnn", Task((1, 16, 16), 4), width=4, features=16)
        training = Training(batch=6, lr=0.05, channels_last=wanted)
        worker = ClientWorker(make("fedavg"), images(16), net, training, 0, devices=(device,))
        assert worker.channels_last is (wanted is not False)
        engine = Engine(worker, Inplace(worker), Schedule(rounds=2))
        engine.run()
        return engine.server.tree("model")

    expected = run(CPU, None)
    with accelerator() as device:
        assert trees_agree(expected, run(device, last), 1e-5)


def test_prompts_on_a_vit_with_cached_features(tiny_vit: VIT) -> None:
    """FedGCR's own setting: rows of pixels and features, its net of prompts, groups of clients."""
    encoder = image(f"hf:{tiny_vit()}")
    world = images(8).encode(encoder, pixels=True)

    def run(device: str) -> dict[str, float]:
        found = fedloom.run(
            "fedgcr", world, model="vpt", rounds=2, batch=6, device=device, dropout=0.0
        )
        assert found.summary["device"]["name"] == device
        losses: dict[str, float] = found.metrics[-1]["loss"]
        return losses

    expected = run("cpu")
    with accelerator() as device:
        found = run(str(device))
    assert expected and found == pytest.approx(expected, rel=NEAR)


# -- methods that add noise; the contract tries all with their defaults ----------------------------


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "exponential", "dp"])
def test_noise_on_prototypes_is_the_same_everywhere(kind: str) -> None:
    compare(make("fedpcl", {"perturb": kind}))


# -- after training ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A round of some methods on digits4, on the CPU."""
    root, made = tmp_path_factory.mktemp("runs"), {}
    small = {"clients": 4, "rounds": 1, "width": 4, "features": 16, "steps": 4, "limit_train": 10}
    for name in ("fedper", "fedproto"):
        made[name] = root / name
        fedloom.run(name, "digits4", out=made[name], **small)
    return made


@pytest.fixture
def mine(runs: dict[str, Path], tmp_path: Path) -> Path:
    """A newcomer's few images of two classes."""
    rng = np.random.default_rng(0)
    for part, n in (("train", 3), ("test", 2)):
        for level, name in enumerate(Run.load(runs["fedper"]).federation["classes"][:2]):
            (tmp_path / "mine" / part / name).mkdir(parents=True)
            for j in range(n):
                pixels = rng.integers(0, 40, (28, 28)) + 90 * level
                file = tmp_path / "mine" / part / name / f"{j}.png"
                Image.fromarray(pixels.astype(np.uint8)).save(file)
    return tmp_path / "mine"


@pytest.mark.parametrize("method", ["fedper", "fedproto"])
def test_a_newcomer_gets_the_same_model_and_the_same_file(
    method: str, runs: dict[str, Path], mine: Path, tmp_path: Path
) -> None:
    expected = personalise(runs[method], str(mine))
    with accelerator() as device:
        found = personalise(runs[method], str(mine), device=str(device))
        assert found.worker.device == device
        assert (found.train, found.test) == (6, 4)
        export(found, tmp_path / "device")
    export(expected, tmp_path / "cpu")
    theirs, ours = load(tmp_path / "cpu")[0], load(tmp_path / "device")[0]
    pairs = zip(theirs.state_dict().items(), ours.state_dict().items(), strict=True)
    assert all(a == b and agree(x, y) for (a, x), (b, y) in pairs)
    if not named_device():
        assert (found.before, found.after) == (expected.before, expected.after)


def test_a_model_predicts_the_same_from_a_run_and_from_a_file(
    runs: dict[str, Path], mine: Path, tmp_path: Path
) -> None:
    photos = mine / "test"
    photo = next(photos.rglob("*.png"))
    expected = predict(runs["fedper"], photo, client=2)
    with accelerator() as device:
        served = trained(runs["fedper"], 2, device=str(device))
        exported = export(served, tmp_path / "model")
        for found in (
            predict(runs["fedper"], photo, client=2, device=str(device)),
            predict(exported, photo, device=str(device)),
        ):
            for one, other in zip(expected, found, strict=True):
                assert other.classes == pytest.approx(one.classes, rel=NEAR, abs=NEAR)
                if not named_device():
                    assert other == one


def test_an_onnx_file_stays_on_the_cpu(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.touch()
    with accelerator() as device, pytest.raises(fedloom.FedloomError, match="onnxruntime"):
        predict(file, tmp_path, device=str(device))


def test_views_of_features(runs: dict[str, Path]) -> None:
    run = Run.load(runs["fedper"])
    entry = gather([RunData.of(run)])[0]
    expected = opened(entry, run, {}).features(1, "test", 20)
    with accelerator() as device:
        found = opened(entry, run, {}, str(device)).features(1, "test", 20)
        views = look([run], Console(file=io.StringIO()), str(device))
    assert agree(expected[0], found[0]) and torch.equal(expected[1], found[1])
    assert {"Features of test samples (t-SNE)", "Grad-CAM"} <= set(views)


# -- encoders --------------------------------------------------------------------------------------


def test_an_encoder_computes_on_the_device(tmp_path: Path) -> None:
    data = federation().data
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))
    encoder = Encoder("small", 5, Preprocess(8), lambda: network, settings="device test")
    expected = encoder.encode(data.x)
    with accelerator() as device:
        encoded = encode(data, [encoder], cache=Cache(tmp_path), device=device)
    assert agree(expected, torch.as_tensor(encoded.x))


def test_a_vit_encodes_views_on_the_device(tiny_vit: VIT, tmp_path: Path) -> None:
    data, encoder = federation().data, image(f"hf:{tiny_vit()}")
    rows = torch.arange(4)

    def views(where: Path, device: Device) -> Tensor:
        made: Any = encode(
            data, [encoder], cache=Cache(where), views=2, augment=("flip", "crop"), device=device
        )
        return made.x.drawn(rows, torch.Generator().manual_seed(0))

    expected = views(tmp_path / "cpu", CPU)
    with accelerator() as device:
        assert agree(expected, views(tmp_path / "device", device), ATTENTION)


def test_a_vit_is_trained_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="the extra 'encoders' is not installed")
    from fedloom.encoders.pretrain import pretrain, settings

    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(12):
        pixels = rng.integers(0, 255, (8, 8, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i}.png")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 36, 5))
    teacher = Encoder("teacher", 5, Preprocess(6), lambda: network)
    small = settings({"size": 8, "patch": 4, "width": 8, "layers": 1, "heads": 2, "epochs": 1})

    def learnt(where: str, device: Device) -> Tree:
        monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / f"cache-{where}"))
        pretrain(str(tmp_path / "photos"), teacher, tmp_path / where, small, device=device)
        return Tree(load_file(tmp_path / where / "model.safetensors"))

    expected = learnt("cpu", CPU)
    with accelerator() as device:
        found = learnt("device", device)
        # The bias of keys changes no attention, so its gradient is rounding, which Adam enlarges.
        told = [name for name in expected if not name.endswith("key.bias")]
        assert trees_agree(expected.only(told), found, ATTENTION)


# -- what it costs ---------------------------------------------------------------------------------


@pytest.mark.skipif(named_device() is not None, reason="a real device counts nothing")
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto", "fedproto", "feddyn", "fedntd"])
def test_every_tensor_of_a_payload_moves_once(name: str) -> None:
    """Beside payloads, a client's task moves a few rows of numbers: which samples, and counts."""
    method = make(name)
    with pretend() as counts:
        worker = place(method, device=on_device.Pretend())
        engine = Engine(worker, Inplace(worker), Schedule(rounds=1))
        engine.run()
        down, state = method.download(engine.server, 0), engine.store.get(0)
        sent = sum(isinstance(v, Tensor) for v in [*down.values(), *state.values()])
        before = counts.copy()
        result = execute(worker, Work("client", 2, (0,), down, state))
        moved = counts - before
    back = [*result.upload.values(), *result.state.values()]
    received = sum(isinstance(value, Tensor) for value in back)
    fits = 1 + (name == "ditto")
    assert sent <= moved.to_device <= sent + 5 * fits
    assert received <= moved.to_host <= received + fits  # losses are read once per fit
    assert moved.waits <= 4  # FedProto's means of classes: which of them there are


# -- the comparison with a real device ----------------------------------------------------------


def test_a_named_device_is_compared_roughly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that real devices take, here with the CPU."""
    monkeypatch.setenv("FEDLOOM_DEVICE", "cpu")
    for name in ("fedavg", "local", "f2dc"):
        compare(make(name))
    with accelerator() as device:
        assert device == CPU


def test_other_random_numbers_are_no_difference_but_less_training_is() -> None:
    method = make("fedavg")
    usual, noisy = trace(method), trace(method, device=on_device.OtherNoise())
    assert not usual.server.equal(noisy.server), "its network has dropout"
    roughly_same(usual, noisy, noisy)
    with pytest.raises(AssertionError, match=r"the server's .* differs by"):
        roughly_same(usual, trace(method, rounds=1), noisy)
