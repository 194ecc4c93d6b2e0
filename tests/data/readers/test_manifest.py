"""Manifests: tables with a line for each image file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedloom.core.errors import FedloomError
from fedloom.data.catalogue import Source, kind_of, load
from fedloom.data.clients import SPLITS
from fedloom.data.dataset import Dataset
from fedloom.data.federation import federate


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))


def write(folder: Path, rows: Sequence[Sequence[str]], header: str, separator: str = ",") -> Path:
    """A manifest with a small image for each row; the image of row i is grey with value i."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [header.replace(",", separator)]
    for i, row in enumerate(rows):
        file = folder / row[0].replace("\\", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), i).save(file)
        lines.append(separator.join(row))
    path = folder / "list.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def clinics(folder: Path, patients: int = 24, header: str = "path,label,site,patient") -> Path:
    """Two sites; every patient has three images, all of one class."""
    rows = []
    for p in range(patients):
        site, label = ("north", "south")[p % 2], ("benign", "malignant")[p // 2 % 2]
        rows += [[f"{site}/{p}_{i}.png", label, site, f"p{p}"] for i in range(3)]
    return write(folder, rows, header)


def sides(data: Dataset) -> dict[int, set[bool]]:
    """For each group, whether it is tested on, trained on, or both."""
    assert data.group is not None
    found: dict[int, set[bool]] = {}
    for group, test in zip(data.group.tolist(), data.test.tolist(), strict=True):
        found.setdefault(group, set()).add(test)
    return found


def test_a_manifest_is_read_and_patients_stay_on_one_side(tmp_path: Path) -> None:
    path = clinics(tmp_path / "skin")
    data = load(str(path))
    assert kind_of(str(path)) == data.kind == "image"
    assert data.classes == ("benign", "malignant") and data.domains == ("north", "south")
    assert data.x[:, 0, 0, 0].tolist() == list(range(72))
    assert data.y[:12].tolist() == [0] * 6 + [1] * 6
    assert all(len(side) == 1 for side in sides(data).values()) and len(sides(data)) == 24
    # Of each site's twelve patients two are for testing, one of each class.
    tested = {(int(d), int(y)) for d, y in zip(data.domain, data.y, strict=True)}
    assert {(int(data.domain[i]), int(data.y[i])) for i in np.flatnonzero(data.test)} == tested
    assert int(data.test.sum()) == 4 * 3


def test_images_that_no_line_names_are_counted(tmp_path: Path) -> None:
    path = clinics(tmp_path / "skin")
    for name in ("north/spare.png", "loose.JPG"):
        Image.new("L", (4, 4)).save(path.parent / name, format="PNG")
    (path.parent / "north" / "notes.txt").write_text("no image")
    left_out = r"list.csv: the manifest lists 72 images and leaves out 2 .* such as loose\.JPG\."
    with pytest.warns(UserWarning, match=left_out):
        data = load(str(path))
    assert len(data.y) == 72


@pytest.mark.parametrize("how", ["domains", "iid", "dirichlet"])
@pytest.mark.parametrize("split", ["official", "merged"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_nobody_is_on_two_sides_of_a_split(tmp_path: Path, how: str, split: str, seed: int) -> None:
    data = load(str(clinics(tmp_path, patients=60)))
    assert data.group is not None
    clients = 2 if how == "domains" else 5
    options = {"beta": 1.0, "least": 5} if how == "dirichlet" else {}
    world = federate(data, how, clients=clients, seed=seed, split=split, validation=0.2, **options)
    seen = {}
    for name in SPLITS:
        rows = np.concatenate([getattr(client, name) for client in world.clients])
        seen[name] = set(data.group.numpy()[rows].tolist())
        assert seen[name], name
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["validation"]
    assert not seen["validation"] & seen["test"]
    for client in world.clients:
        assert len(client.train) > 0
    if how == "domains":
        held = len(world.clients[0].validation)
        assert abs(held / (held + len(world.clients[0].train)) - 0.2) < 0.05


def test_the_split_of_the_table_is_kept_with_its_validation_part(tmp_path: Path) -> None:
    words = ["train", "TRAIN", "valid", "test", "train", "training"]
    rows = [[f"{i}.png", "ab"[i % 2], word] for i, word in enumerate(words)]
    data = load(str(write(tmp_path, rows, "file,diagnosis,split")))
    assert data.test.tolist() == [False, False, False, True, False, False]
    (client,) = federate(data, "iid", clients=1, validation=0.5).clients
    assert (client.train.tolist(), client.validation.tolist()) == ([0, 1, 4, 5], [2])
    assert client.test.tolist() == [3]


def test_spreadsheets_of_other_countries_and_paths_of_windows_are_read(tmp_path: Path) -> None:
    rows = [["a\\1.png", "10"], ["a\\2.png", "9"], ["./a/3.png", "9"]]
    data = load(str(write(tmp_path, rows, "Image,Class", separator=";")))
    assert data.classes == ("9", "10")  # by their value
    assert data.y.tolist() == [1, 0, 0]


def test_a_folder_with_a_manifest_is_read_by_it(tmp_path: Path) -> None:
    clinics(tmp_path).rename(tmp_path / "manifest.csv")
    assert load(str(tmp_path)).domains == ("north", "south")


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    rows = [[f"{i}.png", "x", "yes" if i % 2 else "no", f"ward {i % 3}"] for i in range(12)]
    path = write(tmp_path, rows, "path,label,malignant,ward")
    data = load(str(path), Source(label_column="Malignant", group_column="ward"))
    assert data.classes == ("no", "yes")
    assert data.group is not None and data.group.tolist() == [i % 3 for i in range(12)]
    with pytest.raises(FedloomError, match="no column 'wards'; did you mean 'ward'"):
        load(str(path), Source(site_column="wards"))


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("pth,label", ["1.png", "a"], "no column 'path'; should 'pth' be called 'path'"),
        ("path,lable", ["1.png", "a"], "no column 'label'; should 'lable' be called 'label'"),
        ("path,weight", ["1.png", "a"], "no column 'label'; its columns are path, weight"),
        ("path,label", ["1.png", ""], "line 2: label is empty"),
        ("path,label,split", ["1.png", "a", "hold"], "line 2: the split is 'hold'; it must be"),
    ],
)
def test_a_wrong_table_is_refused_in_one_sentence(
    tmp_path: Path, header: str, row: list[str], message: str
) -> None:
    with pytest.raises(FedloomError, match=message):
        load(str(write(tmp_path, [row], header)))


def test_paths_stay_in_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "secret.png"
    Image.new("L", (4, 4)).save(outside)
    folder = tmp_path / "in"
    path = write(folder, [["1.png", "a"]], "path,label")
    for wrong in ("../secret.png", "x/../../secret.png", str(outside), "..\\secret.png", "C:/1"):
        path.write_text(f"path,label\n1.png,a\n{wrong},b\n")
        with pytest.raises(FedloomError, match=r"line 3: .* is outside the manifest's folder"):
            load(str(path))


def test_a_missing_image_and_one_listed_twice_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, [["1.png", "a"]], "path,label")
    path.write_text("path,label\n1.png,a\n2.png,b\n")
    with pytest.raises(FedloomError, match=r"line 3: 2\.png cannot be read"):
        load(str(path))
    path.write_text("path,label\n1.png,a\n./1.png,b\n")
    with pytest.raises(FedloomError, match=r"1\.png is listed twice, in lines 2 and 3"):
        load(str(path))


def test_a_patient_in_train_and_test_is_refused(tmp_path: Path) -> None:
    rows = [["1.png", "a", "p7", "train"], ["2.png", "a", "p7", "test"]]
    with pytest.raises(FedloomError, match=r"'p7' is in train \(line 2\) and in test \(line 3\)"):
        load(str(write(tmp_path, rows, "path,label,patient,split")))


def test_unreadable_images_are_left_out_of_all_columns(tmp_path: Path) -> None:
    path = clinics(tmp_path)
    (tmp_path / "north" / "0_1.png").write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="left out 1 of 72 images"):
        data = load(str(path), Source(on_bad_file="skip"))
    assert data.group is not None
    assert len(data.x) == len(data.y) == len(data.group) == 71
    assert data.group.tolist()[:3] == [0, 0, 1]


def test_selected_rows_keep_their_patients(tmp_path: Path) -> None:
    data = load(str(clinics(tmp_path)), Source(only_domains=("south",)))
    assert data.group is not None
    assert sorted(set(data.group.tolist())) == list(range(1, 24, 2))


def test_tables_of_texts_are_still_texts(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("label,text\n" + "a,good\nb,bad\n" * 5)
    assert kind_of(str(path)) == "text"
