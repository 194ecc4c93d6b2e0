"""`fedloom predict` says what the engine says, for every method.

Each method runs on 200 training and 200 test images; its model is exported, and asked about the
test images as files. `make test` has a method for each kind of predictor, `make test-all`
(FEDLOOM_ALL=1) every method but ECALP, whose prediction for a sample depends on the others.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedloom.client.context import ClientContext
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make, names
from fedloom.data.catalogue import Source
from fedloom.data.catalogue import load as load_data
from fedloom.data.dataset import Dataset
from fedloom.deploy import Served, export, load, personalise, predict, trained
from fedloom.encoders import IMAGE, Encoder, Preprocess
from fedloom.engine.run import run  # as fedloom.run, without a report
from fedloom.testing import small_world

TOLERANCE = 1e-4
ONE_OF_A_KIND = ("fedavg", "fedproto", "fedrod", "feddtr", "harmofl", "fedpact")
# Networks for methods that do not work on a plain one; dual encoders are `checks`, see below.
NETWORKS: dict[str, dict[str, Any]] = {
    "fedgc": {"model": "vpt"},
    "fedgcr": {"model": "vpt"},
    "fedpcl": {"model": "projection", "encoder": "vit-mini"},
}
PLAIN = {"model": "cnn", "width": 4, "features": 16, "norm": True}


class Pixels(nn.Module):
    """Grey pixels without their mean, as features."""

    def forward(self, x: Tensor) -> Tensor:
        grey = x.mean(1).flatten(1)
        return nn.functional.normalize(grey - grey.mean(1, keepdim=True), dim=1)


@pytest.fixture
def dual(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dual encoder that costs nothing, under the name `checks`."""
    encoder = Encoder("checks", 64, Preprocess(8), Pixels, settings="pixels of a test")
    pair = replace(small_world.small_dual(), image=encoder)
    monkeypatch.setattr("fedloom.parts.prompts.dual", lambda name: pair)
    monkeypatch.setitem(IMAGE._entries, "checks", lambda: encoder)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test images of every run, in their order, as files."""
    folder = tmp_path_factory.mktemp("photos")
    for i, pixels in enumerate(shown(samples())):
        Image.fromarray(pixels.numpy().transpose(1, 2, 0)).save(folder / f"{i:03}.png")
    return folder


def samples() -> Dataset:
    return load_data("digits4", Source(limit_train=5, limit_test=5))


def shown(data: Dataset) -> Tensor:
    """The test images, as they are stored."""
    return data.take(data.test.nonzero().flatten())


def run_of(
    name: str, out: Path, network: dict[str, Any] | None = None, client: str | None = None
) -> Served:
    """A trained model of a method: a client's own, by its name, or the common one."""
    method = make(name)
    network = network or NETWORKS.get(name, PLAIN)
    if method.traits.world == "dual":
        network = {"model": "linear", "encoder": "checks"}
    run(
        name,
        "digits4",
        partition="domains",
        clients=4,
        rounds=1,
        limit_train=5,
        limit_test=5,
        steps=2,
        out=out,
        **network,
    )
    return trained(out, client or client_of(name))


def client_of(name: str) -> str | None:
    if make(name).traits.personalised:
        return "photo"
    return None


def engine_says(served: Served) -> Tensor:
    """Probabilities of the engine's own predictor, for samples as the engine stores them."""
    rows = served.raw.test.nonzero().flatten()
    return torch.softmax(served.predict(served.worker.samples(rows)), 1)


def probabilities(answers: list[Any], classes: tuple[str, ...]) -> Tensor:
    """What `predict` found, class by class."""
    rows = []
    for answer in answers:
        rows.append([answer["classes"][name] for name in classes])
    return torch.tensor(rows)


def chosen() -> list[str]:
    if os.environ.get("FEDLOOM_ALL") == "1":
        return [name for name in names() if not make(name).traits.transductive]
    return list(ONE_OF_A_KIND)


@pytest.mark.parametrize("name", chosen())
@pytest.mark.usefixtures("dual")
def test_predictions_are_the_engines(
    name: str, photos: Path, tmp_path: Path, fedloom: Callable[..., tuple[int, str, str]]
) -> None:
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")
    served = run_of(name, tmp_path / "run")
    expected = engine_says(served)
    assert len(expected) == 200
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        export(served, tmp_path / "model", onnx=True)
    told = [str(w.message) for w in said if "onnxruntime and torch disagree" in str(w.message)]
    for file, undecided in (("model", 0), ("model/model.onnx", 2 * (name == "harmofl"))):
        code, out, err = fedloom("predict", tmp_path / file, photos, "--json")
        assert code == 0, err
        found = probabilities(json.loads(out), served.raw.classes)
        apart = ((found - expected).abs() > TOLERANCE).any(1)
        assert int(apart.sum()) <= undecided, f"{file}: {(found - expected).abs().max()}"
        assert not apart.any() or told, "whoever exports is told"


def test_the_run_itself_gives_what_it_has_written_down(tmp_path: Path, photos: Path) -> None:
    """Accuracies from `predict` are those of the run's last evaluation."""
    served = run_of("fedper", tmp_path / "run")
    data = samples()
    truth = data.y[data.test]
    domains = data.domain[data.test]
    for k, written in enumerate(served.run.clients):
        name = served.run.federation["clients"][k]["domain"]
        answers = predict(tmp_path / "run", photos, client=name)
        mine = [i for i in range(200) if data.domains[int(domains[i])] == name]
        right = [next(iter(answers[i].classes)) == data.classes[int(truth[i])] for i in mine]
        assert len(right) == 50 and np.mean(right) == pytest.approx(written)


@pytest.mark.parametrize("name", ["fedper", "fedavg"])
def test_a_model_is_served_with_the_statistics_it_was_scored_with(
    name: str, tmp_path: Path
) -> None:
    """Own statistics of BatchNorm make another model of the common one for each client."""
    out = tmp_path / "run"
    served = run_of(name, out, PLAIN | {"eval_stats": "own"}, client="photo")
    federation = served.worker.federation
    norms = set()
    for k, written in enumerate(served.run.clients):
        served = trained(out, k)
        x, y = federation.samples(k, "test")
        model, _ = load(export(served, tmp_path / str(k)))
        for answers in (served.predict(x), model(x)):
            assert float((answers.argmax(1) == y).double().mean()) == pytest.approx(written)
        running = [t for n, t in model.state_dict().items() if n.endswith("running_mean")]
        norms.add(float(torch.cat(running).sum()))
    assert len(norms) == 4
    if name == "fedavg":
        with pytest.raises(FedloomError, match="other statistics of BatchNorm for each client"):
            trained(out)
        with pytest.raises(FedloomError, match=r"--client NUMBER` writes it as one of the run's"):
            personalise(out, "digits4")


def test_a_newcomers_model_has_its_own_statistics(tmp_path: Path) -> None:
    """So it is scored in `before`, and so it is exported."""
    out = tmp_path / "run"
    run_of("fedper", out, PLAIN | {"eval_stats": "own"})
    found = personalise(out, "digits4")
    x, y = found.worker.federation.samples(4, "test")
    before = found.predict(x)
    assert found.after == pytest.approx(float((before.argmax(1) == y).double().mean()))
    local = ClientContext(found.worker, 4, 2)
    local.renormalise()
    torch.testing.assert_close(found.predict(x), before)


def test_several_samples_are_named_as_they_were_given(tmp_path: Path, photos: Path) -> None:
    run_of("fedavg", tmp_path / "run")
    first, second = sorted(photos.rglob("*.png"))[:2]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "photo.png").write_bytes(second.read_bytes())
    together = predict(tmp_path / "run", [first, tmp_path / "one"])
    assert [each.sample for each in together] == [
        str(first),
        str(tmp_path / "one" / "photo.png"),
    ]
    for path, answer in zip((first, second), together, strict=True):
        (alone,) = predict(tmp_path / "run", path)
        assert alone.sample == path.name
        assert list(alone.classes.values()) == pytest.approx(list(answer.classes.values()))


def test_only_ecalp_is_refused(tmp_path: Path) -> None:
    assert [name for name in names() if make(name).traits.transductive] == ["ecalp"]
    served = run_of("fedavg", tmp_path / "run")
    other = replace(served, worker=small_world.place(make("ecalp")))
    with pytest.raises(FedloomError, match="depends on the other samples"):
        export(other, tmp_path / "model")


TEXTS = {"good": ["a fine film", "fine, fine work"], "bad": ["a dull film", "dull work"]}


def test_texts_are_read_with_the_list_of_words(
    tmp_path: Path, fedloom: Callable[..., tuple[int, str, str]]
) -> None:
    """The list goes with the model, so a text has the numbers that it had in training."""
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    lines = ["label,text"]
    for i in range(10):
        for label, texts in TEXTS.items():
            lines += [f'{label},"{text} {i}"' for text in texts]
    (tmp_path / "reviews.csv").write_text("\n".join(lines) + "\n")
    out = tmp_path / "run"
    run("fedavg", str(tmp_path / "reviews.csv"), partition="iid", clients=2, rounds=2, out=out)
    served = trained(out)
    assert served.raw.words is not None and "dull" in served.raw.words
    model = export(served, tmp_path / "model", onnx=True)
    asked = ["text", *(f'"{text}"' for texts in TEXTS.values() for text in texts)]
    (tmp_path / "asked.csv").write_text("\n".join([*asked, "never seen words"]) + "\n")
    for file in (model, model / "model.onnx", out):
        code, found, err = fedloom("predict", file, tmp_path / "asked.csv", "--json")
        assert code == 0, err
        answers = json.loads(found)
        assert len(answers) == 5
    x = torch.zeros(1, served.raw.x.shape[1], dtype=torch.int64)
    for place, word in enumerate(("a", "fine", "film")):
        x[0, place] = 2 + served.raw.words.index(word)
    row = torch.softmax(served.predict(x), 1)[0]
    for name, share in zip(served.raw.classes, row.tolist(), strict=True):
        assert answers[0]["classes"][name] == pytest.approx(share, abs=TOLERANCE)


def test_a_frozen_vit_is_in_the_file(
    tmp_path: Path, photos: Path, tiny_vit: Callable[..., Path]
) -> None:
    """The network around a ViT does not contain it, the exported one does."""
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    network = {"model": "vpt", "vit": f"hf:{tiny_vit()}"}
    served = run_of("fedavg", tmp_path / "run", network)
    expected = engine_says(served)
    model = export(served, tmp_path / "model", onnx=True)
    for file in (model, model / "model.onnx"):
        found = probabilities(list(map(asdict, predict(file, photos))), served.raw.classes)
        assert torch.allclose(found, expected, atol=TOLERANCE)
    tensors = load_file(model / "model.safetensors")
    weights = [name for name in tensors if ".frozen.vit." in name]
    assert len(weights) > 20
    assert not any(".frozen.vit." in name for name in served.worker.tensors)
    # What the folder holds is what counts, not what this machine has under that name.
    zeroed = weights[0]
    tensors[zeroed] = torch.zeros_like(tensors[zeroed])
    save_file(tensors, model / "model.safetensors")
    assert torch.equal(load(model)[0].state_dict()[zeroed], tensors[zeroed])
    del tensors[zeroed]
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(FedloomError, match=r"not those of its config\.json .*export the run anew"):
        load(model)
