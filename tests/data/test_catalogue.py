"""Names, paths and settings of data sets, and how they are put together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.core.errors import FedloomError
from fedloom.data.catalogue import (
    ABOUT,
    KNOWN,
    MODEL_FOR,
    Source,
    keep_classes,
    keep_domains,
    kind_of,
    load,
    locate,
)
from fedloom.data.federation import federate
from fedloom.engine.config import build


def npz(path: Path, n: int = 40, **extra: np.ndarray) -> Path:
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (n, 16, 16, 3), dtype=np.uint8),
        "y_train": np.arange(n) % 4,
        "x_test": rng.integers(0, 256, (12, 16, 16, 3), dtype=np.uint8),
        "y_test": np.arange(12) % 4,
    }
    np.savez(path, **{**arrays, **extra})
    return path


def test_every_known_set_has_a_model_and_a_line() -> None:
    assert len(KNOWN) == 33 and set(ABOUT) == {"digits4", *KNOWN}
    assert {k.kind for k in KNOWN.values()} == set(MODEL_FOR)


def test_a_path_is_a_data_set(tmp_path) -> None:
    path = npz(tmp_path / "mine.npz")
    data = load(str(path))
    assert (len(data.y), int(data.test.sum()), tuple(data.x.shape[1:])) == (52, 12, (3, 16, 16))
    assert kind_of(str(path)) == "image" and build({"data": str(path)}).model == "cnn"


def test_the_root_is_given_or_taken_from_the_environment(tmp_path, monkeypatch) -> None:
    npz(tmp_path / "cifar10.npz")
    monkeypatch.delenv("FEDLOOM_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    assert locate("cifar10") is None
    with pytest.raises(
        FedloomError, match=r"cifar10 is not in .*home/fedloom; `fedloom data get cifar10` or"
    ):
        load("cifar10")
    assert len(load("cifar10", root=str(tmp_path)).y) == 52
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))
    assert len(load("cifar10").y) == 52
    with pytest.raises(FedloomError, match="pacs is not in"):
        load("pacs")


def test_an_unknown_name_suggests_the_nearest(tmp_path) -> None:
    with pytest.raises(
        FedloomError, match="unknown data set or path 'cifar-10'; did you mean 'cifar10'"
    ):
        load("cifar-10")


def test_only_some_classes_and_domains() -> None:
    data = load("digits4", Source(only_classes=("7", "1"), only_domains=("street", "photo")))
    assert data.classes == ("7", "1") and data.domains == ("street", "photo")
    assert len(data.y) == 2 * 2 * 150 and set(data.y.tolist()) == {0, 1}
    whole = load("digits4")
    kept = keep_classes(whole, ("7", "1"))
    assert torch.equal(whole.x[whole.y == 7][:3], kept.x[kept.y == 0][:3])
    assert int(keep_domains(whole, ("photo",)).domain.max()) == 0
    numbered = replace(whole, classes=tuple("abcdefghij"))
    assert keep_classes(numbered, ("7", "b")).classes == ("h", "b")
    with pytest.raises(FedloomError, match=r"unknown class of digits4 'seven'"):
        keep_classes(whole, ("seven",))
    with pytest.raises(
        FedloomError, match=r"unknown domain of digits4 'streat'; did you mean 'street'"
    ):
        keep_domains(whole, ("streat",))


def test_only_the_first_samples_of_each_class_and_domain() -> None:
    whole, few = load("digits4"), load("digits4", Source(limit_train=3, limit_test=2))
    assert len(few.y) == 4 * 10 * (3 + 2) and int(few.test.sum()) == 4 * 10 * 2
    for test, n in ((False, 3), (True, 2)):
        group = (whole.domain == 2) & (whole.y == 7) & (whole.test == test)
        kept = (few.domain == 2) & (few.y == 7) & (few.test == test)
        assert torch.equal(few.x[kept], whole.x[group][:n])
    assert torch.equal(load("digits4", Source(limit_test=300)).x, whole.x)  # there are no more


def test_size_flatten_and_stress() -> None:
    assert tuple(load("digits4", Source(size=16)).x.shape[1:]) == (3, 16, 16)
    flat = load("digits4", Source(flatten=True))
    assert flat.kind == "vector" and flat.x.dtype == torch.float32 and flat.x.shape[1] == 3072
    assert build({}, {"flatten": True}).model == "mlp"
    plain = load("digits4")
    noisy = load("digits4", Source(label_noise=0.3), seed=1)
    changed = plain.y != noisy.y
    assert (
        0.25 < float(changed[~plain.test].float().mean()) < 0.35 and not changed[plain.test].any()
    )
    assert not torch.equal(noisy.y, load("digits4", Source(label_noise=0.3), seed=2).y)
    assert load("digits4", Source(nonsense="digits")).classes != plain.classes
    shaken = load("digits4", Source(image_noise="gaussian"))
    assert torch.equal(shaken.x[plain.test], plain.x[plain.test]) and not torch.equal(
        shaken.x, plain.x
    )


def test_merged_parts_are_cut_at_random_per_client() -> None:
    data = load("digits4")
    made = federate(
        data, "dirichlet", clients=10, seed=0, validation=0.0, split="merged", merged_share=0.75
    )
    used = np.concatenate([np.concatenate([c.train, c.test]) for c in made.clients])
    assert (
        len(np.unique(used)) == len(used) == len(data.y)
    )  # the official test part is dealt out too
    for client in made.clients:
        whole = len(client.train) + len(client.test)
        assert len(client.train) == int(0.75 * whole + 1e-9)
    assert any(data.test.numpy()[c.train].any() for c in made.clients)


def test_augmentation_is_keyed_and_changes_training(tmp_path) -> None:
    from fedloom.engine.run import run

    settings = {"clients": 4, "rounds": 1, "width": 4, "features": 16}
    plain, shaken, again = (
        run("fedavg", "digits4", **settings, **more)
        for more in ({}, {"augment": ["crop", "flip"]}, {"augment": ["crop", "flip"]})
    )
    assert plain.metrics != shaken.metrics
    assert shaken.metrics == again.metrics
    with pytest.raises(FedloomError, match="augment"):
        run("fedavg", "digits4", **settings, augment=["blur"])
