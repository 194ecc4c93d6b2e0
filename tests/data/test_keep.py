"""Published data sets in their true form: replicas import, are counted, and can be trained on."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from fedloom.core.errors import FedloomError
from fedloom.data.catalogue import Source, load, locate
from fedloom.data.counting import expected_of
from fedloom.data.keep import import_raw
from fedloom.data.published import find, published
from fedloom.data.readers.decoding import SUFFIXES
from fedloom.engine.run import run
from fedloom.testing import replicas

# Files that lie beside the data, or that belong to no labelled part.
UNUSED = ("readme", "license", "imageinfo", "unlabeled", "coarse", "ph2_dataset", "classes.txt")
UNUSED_PLACES = ("test/images/test_0", "_roi", "_boxes.txt", "annotations/", "Abyssinian_1.mat")

# What a refusal says where it cannot name the file.
TOLD = {
    ("office_home", 2): "this is not Office-Home as published",  # its only file
    ("pacs", 1): "this is not PACS as published",
    ("imagenet", 0): "no class 'goldfish'",  # without its names, ids are read in their place
}


def victims(folder: Path) -> list[Path]:
    """Some pictures, if there are any, and of all other files one of each kind: each is needed."""
    pictures = []
    others: dict[str, Path] = {}  # files whose names differ in numbers only are of one kind
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder).as_posix()
        used = not file.name.lower().startswith(UNUSED) and file.name not in UNUSED
        if not file.is_file() or not used or any(place in path for place in UNUSED_PLACES):
            continue
        if file.suffix.lower() in SUFFIXES:
            pictures.append(file)
        else:
            others.setdefault(re.sub(r"\d+", "#", path), file)
    some = {*pictures[:1], *pictures[len(pictures) // 2 :][:1], *pictures[-1:]}
    return [*sorted(some), *others.values()]


def test_every_layout_of_every_set_has_a_replica() -> None:
    assert len(published()) == 30 and len(replicas.forms()) == 56
    assert {name: len(writers) for name, writers in replicas.WRITERS.items()} == {
        name: len(entry.layouts) for name, entry in published().items()
    }


@pytest.mark.parametrize(("name", "form"), replicas.forms())
def test_a_replica_imports_and_one_with_a_file_missing_does_not(name, form, tmp_path) -> None:
    entry = find(name)
    replica = replicas.make(name, tmp_path / "raw", form)
    made = import_raw(entry, replica.folder, tmp_path / "data", expected=replica.expected)
    assert made.layout == entry.layouts[form].about
    size = None if entry.kind in ("text", "sparse") else 16
    data = load(name, Source(size=size), root=str(tmp_path / "data"))
    counts = replica.expected.counts
    assert set(data.domains) == set(counts) and len(data.classes) == replica.expected.class_count
    for d, domain in enumerate(data.domains):
        assert int((data.domain == d).sum()) == sum(counts[domain].values())
        if "test" in counts[domain]:
            assert int((data.test & (data.domain == d)).sum()) == counts[domain]["test"]
    with pytest.raises(FedloomError, match=r"this is not all of .* belong"):
        import_raw(entry, replica.folder, tmp_path / "other")

    lost = victims(replica.folder)
    assert lost
    for file in lost:
        kept = file.read_bytes()
        file.unlink()
        with pytest.raises(FedloomError) as refused:
            import_raw(entry, replica.folder, tmp_path / "other", expected=replica.expected)
        told = str(refused.value)
        stem = file.stem.removesuffix("_segmentation").removesuffix("_lesion")
        if file.suffix == ".parquet":  # of several shards it is the split that counts
            stem = f"{stem.partition('-')[0]}-"
        counted = "samples where" in told and file.suffix.lower() in SUFFIXES
        assert stem in told or counted or TOLD.get((name, form), stem) in told, told
        assert locate(name, str(tmp_path / "other")) is None
        file.write_bytes(kept)
    assert list((tmp_path / "other").iterdir()) == []  # nothing half made is left


def test_what_is_wrong_with_files_is_said(tmp_path) -> None:
    """A class that one domain lacks, a file without content, one that is no image."""
    entry, replica = find("pacs"), replicas.make("pacs", tmp_path / "raw")

    def refusal() -> str:
        with pytest.raises(FedloomError) as refused:
            import_raw(entry, replica.folder, tmp_path / "data", expected=replica.expected)
        return str(refused.value)

    dogs = replica.folder / "kfold" / "photo" / "dog"
    dogs.rename(tmp_path / "dogs")
    assert "photo has" in refusal() and "(none of class 'dog')" in refusal()
    (tmp_path / "dogs").rename(dogs)
    (file, *_) = sorted((replica.folder / "kfold" / "art_painting" / "dog").iterdir())
    kept = file.read_bytes()
    file.write_bytes(b"")
    assert f"{file} is empty" in refusal()
    file.write_bytes(b"<html>please log in</html>")
    assert f"{file} cannot be read as an image" in refusal()
    file.write_bytes(kept)
    import_raw(entry, replica.folder, tmp_path / "data", expected=replica.expected)


def test_what_a_mac_leaves_beside_files_is_no_data(tmp_path) -> None:
    replica = replicas.make("isic", tmp_path / "raw")
    for file in [path for path in replica.folder.rglob("*") if path.is_file()]:
        file.with_name(f"._{file.name}").write_bytes(b"\0\5\26\7")
    import_raw(find("isic"), replica.folder, tmp_path / "data", expected=replica.expected)


def small_settings(name: str) -> dict[str, int]:
    settings = {"limit_train": 20, "batch": 8}
    if find(name).kind in ("image", "segmentation"):
        settings |= {"size": 16, "width": 4}
    return settings


@pytest.mark.parametrize("name", published())
def test_one_round_of_fedavg_on_a_replica(name, tmp_path) -> None:
    replica = replicas.make(name, tmp_path / "raw")
    import_raw(find(name), replica.folder, tmp_path / "data", expected=replica.expected)
    done = run(
        "fedavg", name, partition="iid", clients=2, rounds=1, data_root=str(tmp_path / "data"),
        executor="inplace", **small_settings(name),
    )  # fmt: skip
    assert done.summary["data"] == name and done.summary["rounds"] == 1


OF_EVERY_KIND = ("ag_news", "amazon_reviews", "isic", "pacs")
BY_COMMAND = [
    pytest.param(name, marks=() if name in OF_EVERY_KIND else pytest.mark.slow)
    for name in published()
]


@pytest.mark.parametrize("name", BY_COMMAND)
def test_the_command_line_runs_every_set(name, tmp_path, fedloom) -> None:
    replica = replicas.make(name, tmp_path / "raw")
    import_raw(find(name), replica.folder, tmp_path / "data", expected=replica.expected)
    options = []
    for key, value in small_settings(name).items():
        options += ["--set", f"{key}={value}"]
    code, out, err = fedloom(
        "run", "fedavg", "--data", name, "--data-root", tmp_path / "data", "--partition", "iid",
        "--clients", 2, "--rounds", 1, "--out", "run", "--executor", "inplace", *options,
    )  # fmt: skip
    assert code == 0, out + err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["data"] == name


def test_real_counts_are_those_of_the_catalogue() -> None:
    mnist = find("mnist")
    assert expected_of(mnist, mnist.layouts[0]).counts == {"mnist": {"train": 60000, "test": 10000}}
    total = 0
    for parts in find("domainnet").counts.values():
        total += sum(parts.values())
    assert total == 586575
    for entry in published().values():
        assert entry.licence and entry.citation and entry.home.startswith("http"), entry.name
        assert entry.class_count == len(entry.classes or ()) or entry.classes is None


@pytest.mark.parametrize("spelling", ["CIFAR-10", "cifar10", "Cifar 10"])
def test_a_set_is_found_by_its_usual_names(spelling) -> None:
    assert find(spelling).name == "cifar10"
    with pytest.raises(FedloomError, match="unknown published data set 'cifar11'; did you mean"):
        find("cifar11")


def test_archives_are_unpacked_whatever_lies_around_them(tmp_path) -> None:
    from fedloom.testing.replicas.tools import packed

    replica = replicas.make("cifar10", tmp_path / "raw")
    downloads = tmp_path / "Downloads"
    downloads.mkdir()
    packed(replica.folder, downloads / "cifar-10-python.tar.gz")
    (downloads / "holiday.zip").write_bytes(b"not even a zip file")
    entry = find("cifar10")
    import_raw(entry, downloads, tmp_path / "data", expected=replica.expected)
    whole = load("cifar10", root=str(tmp_path / "data"))
    archive = downloads / "cifar-10-python.tar.gz"
    import_raw(entry, archive, tmp_path / "again", expected=replica.expected)
    assert torch.equal(whole.x, load("cifar10", root=str(tmp_path / "again")).x)
    damaged = tmp_path / "cifar-10-python.tar.gz"
    damaged.write_bytes(archive.read_bytes()[:5000])
    with pytest.raises(FedloomError, match="damaged or cut short"):
        import_raw(entry, damaged, tmp_path / "third", expected=replica.expected)


def test_an_archive_cannot_write_outside(tmp_path) -> None:
    import tarfile

    replica = replicas.make("cifar10", tmp_path / "raw")
    evil = tmp_path / "cifar-10-python.tar"
    with tarfile.open(evil, "w") as tape:
        tape.add(replica.folder / "cifar-10-batches-py" / "test_batch", "../../escaped")
    with pytest.raises(FedloomError, match="damaged or cut short"):
        import_raw(find("cifar10"), evil, tmp_path / "data")
    assert not list(tmp_path.rglob("escaped"))


def test_what_is_there_already_stays(tmp_path) -> None:
    replica = replicas.make("mnist", tmp_path / "raw")
    entry, root = find("mnist"), tmp_path / "data"
    import_raw(entry, replica.folder, root, expected=replica.expected)
    with pytest.raises(FedloomError, match="--replace imports mnist anew"):
        import_raw(entry, replica.folder, root, expected=replica.expected)
    import_raw(entry, replica.folder, root, expected=replica.expected, replace=True)
    shutil.rmtree(root / "mnist")
    (root / "mnist").mkdir()
    with pytest.raises(FedloomError, match="was not made by an import"):
        import_raw(entry, replica.folder, root, expected=replica.expected, replace=True)


def test_the_wrong_folder_is_refused_with_what_belongs_there(tmp_path) -> None:
    (tmp_path / "holiday").mkdir()
    with pytest.raises(
        FedloomError, match=r"this is not CIFAR-10 as published, which is cifar-10-"
    ):
        import_raw(find("cifar10"), tmp_path / "holiday", tmp_path / "data")
    with pytest.raises(FedloomError, match="there is no such file or folder"):
        import_raw(find("cifar10"), tmp_path / "nowhere", tmp_path / "data")


def test_the_ten_classes_come_from_the_whole_of_domainnet_too(tmp_path) -> None:
    replica = replicas.make("domainnet", tmp_path / "raw")
    import_raw(find("domainnet"), replica.folder, tmp_path / "data", expected=replica.expected)
    root = str(tmp_path / "data")
    assert locate("domainnet10", root) == tmp_path / "data" / "domainnet"
    only = Source(size=16, only_classes=("zebra", "bird"))
    some = load("domainnet10", only, root=root)
    assert some.classes == ("zebra", "bird") and set(some.y.tolist()) == {0, 1}
    whole = load("domainnet", Source(size=16), root=root)
    second = load("domainnet", Source(size=16, only_classes=("1",)), root=root)
    assert second.classes == whole.classes[1:2] and len(second.y) == int((whole.y == 1).sum())
    kept = whole.x[whole.y == whole.classes.index("bird")]
    assert torch.equal(some.x[some.y == 1], kept)


def test_a_numbered_picture_that_is_missing_is_named(tmp_path) -> None:
    replica = replicas.make("office31", tmp_path / "raw")
    (replica.folder / "Original_images/amazon/images/bike/frame_0003.jpg").unlink()
    with pytest.raises(FedloomError, match=r"amazon has 56 .* 57 belong \(.*bike/frame_0003.jpg"):
        import_raw(find("office31"), replica.folder, tmp_path / "data", expected=replica.expected)


def test_the_command_refuses_a_replica_and_names_what_is_missing(tmp_path, fedloom) -> None:
    replica = replicas.make("mnist", tmp_path / "raw")
    code, _, err = fedloom("data", "import", "MNIST", replica.folder, "--data-root", "data")
    assert code != 0 and "train has 60 samples where 60000 belong" in err
    (replica.folder / "t10k-labels-idx1-ubyte").unlink()
    code, _, err = fedloom("data", "import", "mnist", replica.folder, "--data-root", "data")
    assert code != 0 and "MNIST lacks t10k-labels-idx1-ubyte" in err
    code, out, _ = fedloom("data", "about", "mnist")
    assert code == 0 and "train 60000, test 10000" in out and "CC BY-SA 3.0" in out


def test_a_list_or_a_shard_that_is_missing_is_named(tmp_path) -> None:
    """Without one of FedBN's lists a folder is not read as one that never had any."""
    caltech = replicas.make("office_caltech", tmp_path / "lists")
    (caltech.folder / "office_caltech_10/dslr_test.pkl").unlink()
    with pytest.raises(FedloomError, match=r"Office-Caltech-10 lacks dslr_test\.pkl; it should be"):
        import_raw(find("office_caltech"), caltech.folder, tmp_path / "data")
    mnist = replicas.make("mnist", tmp_path / "shards", 1)
    (shard,) = mnist.folder.rglob("train-*.parquet")
    shard.rename(shard.with_name("train-00001-of-00002.parquet"))
    with pytest.raises(FedloomError, match=r"train-00000-of-00002\.parquet is missing"):
        import_raw(find("mnist"), mnist.folder, tmp_path / "data", expected=mnist.expected)
    digits = replicas.make("digit_five", tmp_path / "numbered", 3)
    next((digits.folder / "digit5/svhn/train_images").glob("000011_*.jpg")).unlink()
    with pytest.raises(FedloomError, match=r"svhn/train_images/000011_\*\.jpg, perhaps"):
        import_raw(find("digit_five"), digits.folder, tmp_path / "data", expected=digits.expected)
