"""Data sets in .npz files."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedloom.core.errors import FedloomError
from fedloom.data.readers.arrays import is_sparse, npz_keys, read_npz, read_npz_folder, resize
from fedloom.data.readers.splits import mod10

DATA = Path(os.environ.get("FEDLOOM_DATA") or "/nonexistent")


def real(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"FEDLOOM_DATA/{name} is absent")
    return DATA / name


def save(path: Path, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{k: np.asarray(v) for k, v in arrays.items()})
    return path


def made(
    path: Path, shape: tuple[int, ...] = (4, 4), dtype: Any = np.uint8, **changed: Any
) -> Path:
    """A file with six training and three test samples in three classes; None removes an array."""
    draw = np.random.default_rng(0).integers(0, 200, (9, *shape)).astype(dtype)
    arrays = {
        "x_train": draw[:6],
        "y_train": [0, 1, 2] * 2,
        "x_test": draw[6:],
        "y_test": [2, 1, 0],
        **changed,
    }
    return save(path, **{k: v for k, v in arrays.items() if v is not None})


def test_grey_images_keep_one_channel(tmp_path: Path) -> None:
    data = read_npz(made(tmp_path / "a.npz"), name="a")
    assert data.x.shape == (9, 1, 4, 4) and data.x.dtype == torch.uint8
    assert data.y.tolist() == [0, 1, 2, 0, 1, 2, 2, 1, 0] and data.y.dtype == torch.int64
    assert data.test.tolist() == [False] * 6 + [True] * 3
    assert data.classes == ("0", "1", "2") and data.domains == ("a",)


def test_colour_images_get_their_channels_first(tmp_path: Path) -> None:
    path = made(tmp_path / "a.npz", (4, 5, 3), classes=["x", "y", "z"])
    data = read_npz(path, name="a")
    with np.load(path) as file:
        assert torch.equal(data.x[2, 1], torch.from_numpy(file["x_train"][2, :, :, 1]))
    assert data.x.shape == (9, 3, 4, 5) and data.classes == ("x", "y", "z")
    assert read_npz(path, name="a", size=8).x.shape == (9, 3, 8, 8)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.uint8])
def test_vectors_become_float32(tmp_path: Path, dtype: Any) -> None:
    path = made(tmp_path / "a.npz", (7,), dtype)
    data = read_npz(path, name="a")
    assert data.x.shape == (9, 7) and data.x.dtype == torch.float32
    with np.load(path) as file:
        assert np.array_equal(data.x[:6].numpy(), file["x_train"].astype(np.float32))
    with pytest.raises(FedloomError, match="holds vectors; images, to be scaled to size="):
        read_npz(path, name="a", size=8)


def test_domains_in_stored_order_split_by_index(tmp_path: Path) -> None:
    x = np.arange(22, dtype=np.uint16)[:, None].repeat(3, 1)
    path = save(
        tmp_path / "a.npz", web_x=x[:12], web_y=[0, 1] * 6, amazon_x=x[12:], amazon_y=[1] * 10
    )
    data = read_npz(path, name="a")
    assert data.domains == ("web", "amazon") and data.x.dtype == torch.float32
    assert data.test.nonzero().flatten().tolist() == [8, 9, 12 + 8, 12 + 9]
    assert data.x[:, 0].tolist() == list(range(22))
    assert mod10(20).nonzero().flatten().tolist() == [8, 9, 18, 19]


def test_masks(tmp_path: Path) -> None:
    mask = np.zeros((9, 4, 4), np.uint8)
    mask[:, :2] = 1
    masked = {
        "y_train": None,
        "y_test": None,
        "mask_train": mask[:6],
        "mask_test": mask[6:].astype(bool),
    }
    data = read_npz(made(tmp_path / "a.npz", (4, 4, 3), **masked), name="a")
    assert data.y.shape == (9, 4, 4) and data.y.dtype == torch.int64 and int(data.y.sum()) == 9 * 8
    assert data.classes == ("background", "lesion")
    doubled = read_npz(tmp_path / "a.npz", name="a", size=8)
    assert doubled.y.shape == (9, 8, 8) and int(doubled.y.sum()) == 4 * 9 * 8
    named = read_npz(
        made(tmp_path / "b.npz", (4, 4, 3), **masked, classes=["skin", "mole"]), name="a"
    )
    assert named.classes == ("skin", "mole")
    with pytest.raises(FedloomError, match="a label is 255, but there are only 2 classes"):
        read_npz(
            made(tmp_path / "c.npz", (4, 4, 3), **{**masked, "mask_train": mask[:6] * 255}),
            name="a",
        )
    with pytest.raises(FedloomError, match="x_train and mask_train differ in height or width"):
        read_npz(made(tmp_path / "d.npz", (4, 5, 3), **masked), name="a")
    with pytest.raises(FedloomError, match=r"lacks mask_test\."):
        read_npz(made(tmp_path / "e.npz", (4, 4, 3), **{**masked, "mask_test": None}), name="a")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"y_test": None, "x_train": None}, r"lacks x_train, y_test\."),
        ({"y_train": [0, 1, 2]}, "x_train and y_train differ in length (6 and 3)"),
        (
            {"y_train": [0, 1, 3] * 2, "y_test": [0, 1, 3]},
            "no sample has the label 2 although labels go up to 3",
        ),
        ({"classes": ["a", "b"]}, "a label is 2, but there are only 2 classes"),
        ({"y_test": [0, -1, 2]}, "y_test holds a negative label, -1"),
        ({"y_test": [0.0, 1.0, 2.0]}, "y_test must hold whole numbers, holds float64"),
        ({"y_test": [[0], [1], [2]]}, "y_test must be one label per sample"),
        ({"y_test": 3}, "differ in length (3 and a single value)"),
        ({"x_test": np.zeros((3, 5, 5), np.uint8)}, "another size than"),
        ({"x_test": np.zeros((3, 5))}, "do not go together: images and vectors"),
        ({"x_test": np.zeros((3, 4, 4))}, "x_test must hold uint8 images"),
        ({"x_test": np.zeros((3, 4, 4, 2), np.uint8)}, "x_test must hold uint8 images"),
        ({"classes": "one"}, "classes must be a list of names"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    path = made(tmp_path / "a.npz", **changed)
    pattern = said if "\\" in said else re.escape(said)
    with pytest.raises(FedloomError, match=f"^{re.escape(str(path))}.*{pattern}"):
        read_npz(path, name="a")


def test_labels_may_have_gaps_if_classes_are_given(tmp_path: Path) -> None:
    path = made(tmp_path / "a.npz", y_train=[0, 1, 3] * 2, y_test=[0, 1, 3], classes=list("abcd"))
    assert read_npz(path, name="a").classes == ("a", "b", "c", "d")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match="found a, b"):
        read_npz(save(tmp_path / "a.npz", a=[1], b=[2]), name="a")
    with pytest.raises(FedloomError, match=r"lacks web_y\."):
        read_npz(save(tmp_path / "a.npz", web_x=np.ones((2, 2))), name="a")
    with pytest.raises(FedloomError, match=r"vectors of 3 values, .* of 2"):
        both = {
            "web_x": np.ones((2, 2)),
            "web_y": [0, 1],
            "cam_x": np.ones((2, 3)),
            "cam_y": [0, 1],
        }
        read_npz(save(tmp_path / "a.npz", **both), name="a")
    with pytest.raises(FedloomError, match="web_x: sample 0 holds a number that is not finite"):
        read_npz(save(tmp_path / "a.npz", web_x=[[np.nan]], web_y=[0]), name="a")
    with pytest.raises(FedloomError, match="holds no samples"):
        read_npz(save(tmp_path / "a.npz", web_x=np.ones((0, 2)), web_y=np.ones(0, int)), name="a")
    with pytest.raises(FedloomError, match="no such file"):
        read_npz(tmp_path / "none.npz", name="a")
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(FedloomError, match=r"one\.npy: is not an \.npz file"):
        read_npz(tmp_path / "one.npy", name="a")


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_pickles_are_refused_unopened(tmp_path: Path) -> None:
    objects = np.empty(6, object)
    objects[:] = Bomb(tmp_path / "exploded")
    with pytest.raises(
        FedloomError, match=r"a\.npz: y_train holds pickled objects; pickles are refused"
    ):
        read_npz(made(tmp_path / "a.npz", y_train=objects), name="a")
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    with pytest.raises(FedloomError, match=r"b\.npz: is not an \.npz file \(a pickle, perhaps"):
        read_npz(tmp_path / "b.npz", name="a")
    assert not (tmp_path / "exploded").exists()


def test_truncated_and_damaged_files(tmp_path: Path) -> None:
    path = made(tmp_path / "a.npz", (32, 32))
    whole = path.read_bytes()
    for kept in (0, 3, 100, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:kept])
        with pytest.raises(FedloomError, match=r"a\.npz: is (truncated|not an \.npz file)"):
            read_npz(path, name="a")
    harmed = bytearray(whole)
    harmed[1000] ^= 255  # inside x_train: the archive's own checksum does not fit
    path.write_bytes(harmed)
    with pytest.raises(FedloomError, match=r"a\.npz: is truncated or damaged at x_train"):
        read_npz(path, name="a")


def test_sparse_files_are_told_by_their_keys(tmp_path: Path) -> None:
    keys = [
        f"{d}_{p}_{f}"
        for d in "ab"
        for p in ("train", "test")
        for f in ("data", "indices", "indptr", "y")
    ]
    assert is_sparse(keys)
    assert not is_sparse(keys[:-1])
    assert not is_sparse(["x_train", "y_train", "x_test", "y_test"]) and not is_sparse([])
    path = save(tmp_path / "a.npz", **{k: [1] for k in keys})
    assert npz_keys(path) == tuple(keys)
    with pytest.raises(FedloomError, match="sparse rows"):
        read_npz(path, name="a")


def test_folder_brings_domains_to_one_size_and_colour(tmp_path: Path) -> None:
    made(tmp_path / "z.npz", (4, 4))
    made(tmp_path / "b.npz", (6, 6, 3))
    (tmp_path / "readme.txt").write_text("none")
    data = read_npz_folder(tmp_path, name="two")
    assert data.domains == ("b", "z") and data.x.shape == (18, 3, 6, 6)
    assert torch.equal(data.x[9:, 0], data.x[9:, 2])
    assert data.domain.tolist() == [0] * 9 + [1] * 9 and int(data.test.sum()) == 6
    assert read_npz_folder(tmp_path, name="two", size=5).x.shape == (18, 3, 5, 5)
    only = read_npz_folder(tmp_path, name="one", domains=["z"])
    assert only.domains == ("z",) and only.x.shape == (9, 1, 4, 4)
    assert read_npz_folder(tmp_path, name="two", domains=("z", "b")).domains == ("z", "b")
    with pytest.raises(FedloomError, match="unknown domain 'y'"):
        read_npz_folder(tmp_path, name="two", domains=["y"])


def test_folder_order_and_classes(tmp_path: Path) -> None:
    for d in ("svhn", "usps", "mnist"):
        made(tmp_path / f"{d}.npz")
    assert read_npz_folder(tmp_path, name="d").domains == ("mnist", "usps", "svhn")
    # A label that one domain lacks is no gap as long as another has it.
    made(tmp_path / "usps.npz", y_train=[0, 2] * 3, y_test=[0, 2, 2])
    assert read_npz_folder(tmp_path, name="d").classes == ("0", "1", "2")
    made(tmp_path / "usps.npz", classes=list("abc"))
    assert read_npz_folder(tmp_path, name="d").classes == ("a", "b", "c")
    made(tmp_path / "svhn.npz", classes=list("abd"))
    with pytest.raises(FedloomError, match=r"svhn\.npz: its classes are not those"):
        read_npz_folder(tmp_path, name="d")


def test_folder_refuses(tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match=r"holds no \.npz files"):
        read_npz_folder(tmp_path, name="d")
    with pytest.raises(FedloomError, match="no such folder"):
        read_npz_folder(tmp_path / "none", name="d")
    made(tmp_path / "a.npz", x_test=None)
    with pytest.raises(FedloomError, match=r"a\.npz: lacks x_test"):
        read_npz_folder(tmp_path, name="d")
    made(tmp_path / "a.npz")
    made(tmp_path / "b.npz", (3,))
    with pytest.raises(FedloomError, match="images and vectors"):
        read_npz_folder(tmp_path, name="d")


@pytest.mark.parametrize("size", [7, 16, 40])
def test_resize_agrees_with_pillow(size: int) -> None:
    x = np.random.default_rng(0).integers(0, 256, (3, 20, 20), dtype=np.uint8)
    got = resize(torch.from_numpy(x[:, None]), size).int().numpy()[:, 0]
    want = np.stack(
        [np.asarray(Image.fromarray(i).resize((size, size), Image.Resampling.BILINEAR)) for i in x]
    )
    assert np.abs(got - want.astype(int)).max() <= 1


def test_digits5() -> None:
    data = read_npz_folder(real("digits5"), name="digits5")
    assert data.domains == ("mnist", "usps", "mnist_m", "svhn", "chars74k_font")
    assert (
        data.x.shape[1:] == (3, 32, 32) and data.x.dtype == torch.uint8 and len(data.classes) == 10
    )
    assert torch.bincount(data.domain[~data.test]).tolist() == [20000, 7291, 3400, 1083, 8160]
    assert torch.bincount(data.domain[data.test]).tolist() == [5000, 2007, 1000, 949, 2000]


def test_single_file_sets() -> None:
    fashion = read_npz(real("fashion_mnist.npz"), name="fashion_mnist")
    assert fashion.x.shape == (12500, 1, 28, 28) and int(fashion.test.sum()) == 2500
    assert fashion.classes[:2] == ("T-shirt", "trouser")
    cifar = read_npz(real("cifar10.npz"), name="cifar10")
    assert cifar.x.shape == (6000, 3, 32, 32) and int(cifar.test.sum()) == 1000


def test_office_caltech_features() -> None:
    data = read_npz(real("office_caltech10_surf.npz"), name="surf")
    assert data.domains == ("amazon", "caltech", "dslr", "webcam") and len(data.classes) == 10
    assert torch.bincount(data.domain).tolist() == [958, 1123, 157, 295]
    assert data.x.shape == (2533, 800) and data.x.dtype == torch.float32 and data.x.max() == 115
    assert torch.bincount(data.domain[data.test]).tolist() == [190, 224, 30, 58]


def test_lesions() -> None:
    data = read_npz(real("ph2_lesion_seg.npz"), name="ph2")
    assert data.x.shape == (200, 3, 96, 96) and data.y.shape == (200, 96, 96)
    assert int(data.test.sum()) == 40 and data.y.unique().tolist() == [0, 1]


def test_amazon_reviews_are_sparse() -> None:
    assert is_sparse(npz_keys(real("amazon_reviews.npz")))
