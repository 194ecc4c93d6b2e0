"""Folders that are not classes are not taken for classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedloom.core.errors import FedloomError
from fedloom.data.catalogue import Source, load
from fedloom.data.published import find
from fedloom.engine.config import build
from fedloom.engine.setup import deal
from fedloom.testing import replicas

# Layouts whose folders are domains and classes, or parts and classes, as any folder of images.
RIGHT = {
    ("office31", 1), ("office_caltech", 0), ("office_caltech", 1), ("office_home", 0),
    ("office_home", 1), ("pacs", 0), ("domainnet", 0), ("domainnet10", 0),
}  # fmt: skip


def draw(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / name)


@pytest.mark.parametrize(
    ("images", "masks", "ending"),
    [
        ("images", "masks", ""),
        ("train/images", "train/masks", "_mask"),
        ("ISIC2018_Task1-2_Training_Input", "ISIC2018_Task1_Training_GroundTruth", "_segmentation"),
        ("images/a", "labels/a", ""),
        ("img", "gt", ""),
    ],
)
def test_images_and_masks_are_not_two_classes(images, masks, ending, tmp_path) -> None:
    for i in range(5):
        draw(tmp_path / images, f"x{i}.jpg")
        draw(tmp_path / masks, f"x{i}{ending}.png")
        if images.startswith("train"):
            draw(tmp_path / images.replace("train", "test"), f"x{i}.jpg")
            draw(tmp_path / masks.replace("train", "test"), f"x{i}{ending}.png")
    with pytest.raises(
        FedloomError, match=r"images and their masks, not like classes|as published"
    ):
        load(str(tmp_path))


def test_masks_under_any_name_are_seen_by_their_colours(tmp_path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a.png", "b.png", "c.png", "d.png"):
        for folder in ("photo", "target"):
            (tmp_path / folder).mkdir(exist_ok=True)
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            if folder == "target":
                pixels = np.repeat(255 * (pixels[..., :1] > 127), 3, axis=2).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / folder / name)
    with pytest.raises(FedloomError, match="photo and target look like images and their masks"):
        load(str(tmp_path))
    for folder in ("photo", "target"):  # two classes of drawings, with the same file names
        for file in (tmp_path / folder).iterdir():
            draw(file.parent, file.name)
    assert load(str(tmp_path)).classes == ("photo", "target")


def test_masks_in_the_folder_of_their_images(tmp_path) -> None:
    """As in a well-known set of ultrasound images, some of which have two masks."""
    for name in ("b (1).png", "b (1)_mask.png", "b (1)_mask_1.png"):
        draw(tmp_path / "benign", name)
    for name in ("m (1).png", "m (1)_mask.png"):
        draw(tmp_path / "malignant", name)
    with pytest.raises(FedloomError, match=r"b \(1\)_mask looks like the mask of benign/b \(1\)"):
        load(str(tmp_path))


def test_a_few_files_that_are_called_so_are_no_masks(tmp_path) -> None:
    for i in range(6):
        draw(tmp_path / "cat", f"{i}.png")
        draw(tmp_path / "dog", f"{i}.png")
    draw(tmp_path / "cat", "0_label.png")
    draw(tmp_path / "dog", "my_mask.png")
    assert len(load(str(tmp_path)).y) == 14


def test_a_run_on_one_class_says_that_there_is_nothing_to_learn(tmp_path) -> None:
    for i in range(12):
        draw(tmp_path / "cat", f"{i}.png")
    config = build({"data": str(tmp_path), "partition": "iid", "clients": 2})
    with pytest.warns(UserWarning, match="are of one class, 'cat': there is nothing to learn"):
        deal(config)


def test_classes_may_have_the_same_file_names(tmp_path) -> None:
    for i in range(5):
        draw(tmp_path / "cat", f"{i}.png")
        draw(tmp_path / "dog", f"{i}.png")
    draw(tmp_path / "label", "of_a_bottle.png")  # a class of things
    assert load(str(tmp_path)).classes == ("cat", "dog", "label")


def test_parts_are_not_classes(tmp_path) -> None:
    draw(tmp_path / "cars_train", "1.jpg")
    draw(tmp_path / "cars_test", "1.jpg")
    with pytest.raises(FedloomError, match="cars_test, cars_train look like parts"):
        load(str(tmp_path))


FOLDERS = []  # parquet files are for the library `datasets`
for _name, _form in replicas.forms():
    if find(_name).layouts[_form].reader != "parquet":
        FOLDERS.append((_name, _form))


@pytest.mark.parametrize(("name", "form"), FOLDERS)
def test_a_published_set_is_read_rightly_or_not_at_all(name, form, tmp_path, fedloom) -> None:
    """Whatever folder of the raw data a user names, no wrong classes are called fine."""
    replica = replicas.make(name, tmp_path / "raw", form)
    folders = [replica.folder, *(path for path in replica.folder.iterdir() if path.is_dir())]
    checked = 0
    for folder in folders:
        code, out, err = fedloom("data", "check", folder, "--set", "size=8")
        if code == 0:
            checked += 1
            data = load(str(folder), Source(size=8))
            assert len(data.classes) == replica.expected.class_count, out
        assert code == 0 or "error" in err
    assert checked or (name, form) not in RIGHT
