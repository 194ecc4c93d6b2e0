"""Replicas of sets that come as image files: in folders, named in lists, with masks, in parquet."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat

from ...data.counting import Expected
from ...data.published import Layout, Published
from .tools import dealt, mask, packed, picture, pixels, same, scaled

Writer = Callable[[Path, Published, Layout], Expected]
DOMAINNET = ("aircraft_carrier", "airplane", "bird", "zebra")
SOME = ("apple", "Bowl", "dragon_fly", "grand piano")


def folders(
    factor: int, name: str, inside: str = "", rename: dict[str, str] | None = None
) -> Writer:
    """`<name>/<domain>/<inside>/<class>/frame_0001.jpg`, with the domains' published names."""

    def write(folder: Path, entry: Published, layout: Layout) -> Expected:
        classes = (entry.classes or ("Alarm_Clock", "Backpack", "TV"))[:7]
        expected = scaled(entry, layout, factor, classes)
        for domain, parts in expected.counts.items():
            place = folder / name / (rename or {}).get(domain, domain) / inside
            for i, cls, number in dealt(parts["all"], classes):
                picture(place / cls / f"frame_{number:04d}.jpg", i, entry.pixels)
        (folder / name / "ImageInfo.csv").write_text("a file that is no image\n")
        return expected

    return write


def dassl_digits(folder: Path, entry: Published, layout: Layout) -> Expected:
    for domain in entry.counts:
        for part, number in (("train", 40), ("test", 20)):
            for i in range(number):
                name = f"{i + 1:06d}_{i % 10}.jpg"
                picture(folder / "digit5" / domain / f"{part}_images" / name, i, 32)
    assert entry.classes is not None
    counts = same(entry, {"train": 40, "test": 20})
    return Expected(counts, 10, entry.classes)


def domainnet(lists: str) -> Writer:
    """Six archives' worth of folders, and the official lists in the folder `lists`."""

    def write(folder: Path, entry: Published, layout: Layout) -> Expected:
        expected = scaled(entry, layout, 10000, DOMAINNET)
        (folder / lists).mkdir(parents=True, exist_ok=True)
        for d, (domain, parts) in enumerate(expected.counts.items()):
            for part, number in parts.items():
                lines = []
                for i, cls, _ in dealt(number, DOMAINNET):
                    y = DOMAINNET.index(cls)
                    file = f"{domain}/{cls}/{domain}_{y + 1:03d}_{part}{i:06d}.jpg"
                    picture(folder / file, 7 * i + d)
                    lines.append(f"{file} {y}\n")
                (folder / lists / f"{domain}_{part}.txt").write_text("".join(lines))
        return expected

    return write


def fedbn_lists(name: str) -> Writer:
    """FedBN's folder, with paths and class names in a pickle for each domain and part."""

    def write(folder: Path, entry: Published, layout: Layout) -> Expected:
        classes = entry.classes
        assert classes is not None
        counts: dict[str, dict[str, int]] = {}
        for domain in entry.counts:
            for part, number in (("train", 20), ("test", 10)):
                paths = []
                labels = []
                for i, cls, _ in dealt(number, classes):
                    paths.append(f"{name}/{domain}/{cls}/{part}_{i:04d}.jpg")
                    labels.append(cls)
                    picture(folder / paths[-1], i)
                pair = (np.array(paths), np.array(labels))
                file = folder / name / f"{domain}_{part}.pkl"
                file.write_bytes(pickle.dumps(pair, protocol=4))
            counts[domain] = {"train": 20, "test": 10}
        return Expected(counts, len(classes), classes)

    return write


def coop(base: str, images: str, split: str, place: str = "{cls}/image_{i:04d}.jpg") -> Writer:
    """CoOp's folder: images somewhere, and the split as JSON."""

    def write(folder: Path, entry: Published, layout: Layout) -> Expected:
        classes = entry.classes or SOME
        expected = scaled(entry, layout, 2000, classes)
        listed: dict[str, list[list[Any]]] = {}
        count = 0
        for part, number in expected.counts[entry.name].items():
            listed[part] = []
            for _, cls, _ in dealt(number, classes):
                count += 1
                side = "cars_test" if part == "test" else "cars_train"
                file = place.format(cls=cls, i=count, side=side, first=cls[0].lower())
                picture(folder / base / images / file, count, entry.pixels)
                listed[part].append([file, classes.index(cls), cls])
        (folder / base / split).write_text(json.dumps(listed))
        return expected

    return write


def food(folder: Path, entry: Published, layout: Layout) -> Expected:
    classes = ("apple_pie", "baklava", "waffles")
    expected = scaled(entry, layout, 10000, classes)
    _listed(folder / "food-101", "meta", expected.counts[entry.name], classes, "{cls}/{i}", "")
    (folder / "food-101/meta/classes.txt").write_text("\n".join(classes))
    return expected


def textures(folder: Path, entry: Published, layout: Layout) -> Expected:
    classes = ("banded", "woven", "zigzagged")
    expected = scaled(entry, layout, 300, classes)
    counts = expected.counts[entry.name]
    _listed(folder / "dtd", "labels", counts, classes, "{cls}/{cls}_{i:04d}.jpg", "1")
    return expected


def _listed(
    base: Path, lists: str, counts: Any, classes: tuple[str, ...], pattern: str, ending: str
) -> None:
    """Images below `images`, named in one list for each part."""
    count = 0
    (base / lists).mkdir(parents=True)
    for part, number in counts.items():
        lines = []
        for _, cls, _ in dealt(number, classes):
            count += 1
            line = pattern.format(cls=cls, i=count)
            picture(base / "images" / f"{line.removesuffix('.jpg')}.jpg", count)
            lines.append(line)
        (base / lists / f"{part}{ending}.txt").write_text("\n".join(lines) + "\n")


def pets(folder: Path, entry: Published, layout: Layout) -> Expected:
    classes = ("Abyssinian", "american_bulldog", "yorkshire_terrier")
    expected = scaled(entry, layout, 500, classes)
    (folder / "annotations").mkdir(parents=True)
    count = 0
    for part, name in (("train", "trainval"), ("test", "test")):
        lines = []
        for _, cls, _ in dealt(expected.counts[entry.name][part], classes):
            count += 1
            picture(folder / "images" / f"{cls}_{count}.jpg", count)
            lines.append(f"{cls}_{count} {classes.index(cls) + 1} 1 1\n")
        (folder / "annotations" / f"{name}.txt").write_text("".join(lines))
    (folder / "images" / "Abyssinian_1.mat").write_bytes(b"not an image")
    return expected


def aircraft(folder: Path, entry: Published, layout: Layout) -> Expected:
    classes = ("707-320", "A300B4", "Boeing 717")
    expected = scaled(entry, layout, 500, classes)
    base = folder / "fgvc-aircraft-2013b/data"
    base.mkdir(parents=True)
    count = 34000
    for part, number in expected.counts[entry.name].items():
        lines = []
        for _, cls, _ in dealt(number, classes):
            count += 1
            picture(base / "images" / f"{count:07d}.jpg", count)
            lines.append(f"{count:07d} {cls}\n")
        (base / f"images_variant_{part}.txt").write_text("".join(lines))
    (base / "variants.txt").write_text("\n".join(classes) + "\n")
    return expected


def birds(folder: Path, entry: Published, layout: Layout) -> Expected:
    classes = ("Black footed Albatross", "Laysan Albatross", "Common Yellowthroat")
    expected = scaled(entry, layout, 1000, classes)
    base = folder / "CUB_200_2011"
    lines: dict[str, list[str]] = {"images": [], "image_class_labels": [], "train_test_split": []}
    count = 0
    for part, number in expected.counts[entry.name].items():
        for _, cls, _ in dealt(number, classes):
            count += 1
            code = f"{classes.index(cls) + 1:03d}.{cls.replace(' ', '_')}"
            file = f"{code}/{cls.replace(' ', '_')}_{count:04d}_7961.jpg"
            picture(base / "images" / file, count)
            lines["images"].append(f"{count} {file}")
            lines["image_class_labels"].append(f"{count} {classes.index(cls) + 1}")
            lines["train_test_split"].append(f"{count} {int(part == 'train')}")
    lines["classes"] = []
    for i, cls in enumerate(classes):
        lines["classes"].append(f"{i + 1} {i + 1:03d}.{cls.replace(' ', '_')}")
    for name, content in lines.items():
        (base / f"{name}.txt").write_text("\n".join(content) + "\n")
    return expected


IDS = {"n01443537": "goldfish", "n01629819": "European fire salamander", "n02123045": "tabby"}


def tiny_imagenet(folder: Path, entry: Published, layout: Layout) -> Expected:
    expected = scaled(entry, layout, 5000, tuple(IDS.values()))
    base = folder / "tiny-imagenet-200"
    ids = tuple(IDS)
    for i, code, number in dealt(expected.counts[entry.name]["train"], ids):
        picture(base / "train" / code / "images" / f"{code}_{number - 1}.JPEG", i, 64, i % 9 == 0)
        (base / "train" / code / f"{code}_boxes.txt").write_text("")
    lines = []
    for i, code, _ in dealt(expected.counts[entry.name]["test"], ids):
        picture(base / "val/images" / f"val_{i}.JPEG", i, 64)
        lines.append(f"val_{i}.JPEG\t{code}\t0\t32\t44\t62\n")
    (base / "val/val_annotations.txt").write_text("".join(lines))
    picture(base / "test/images/test_0.JPEG", 1, 64)  # has no label
    (base / "wnids.txt").write_text("\n".join(reversed(ids)) + "\n")
    words = [f"{code}\t{name}, another word\n" for code, name in IDS.items()]
    (base / "words.txt").write_text("n00001740\tentity\n" + "".join(words))
    return expected


def _imagenet_parts(base: Path, expected: Expected, name: str) -> None:
    for part, inside in (("train", "train"), ("test", "val")):
        for i, code, _ in dealt(expected.counts[name][part], tuple(IDS)):
            picture(base / inside / code / f"{code}_{i}.JPEG", i)


def imagenet(folder: Path, entry: Published, layout: Layout) -> Expected:
    expected = scaled(entry, layout, 50000, tuple(IDS.values()))
    _imagenet_parts(folder / "imagenet/images", expected, entry.name)
    names = [f"{code} {name}\n" for code, name in IDS.items()]
    (folder / "imagenet/classnames.txt").write_text("".join(names))
    return expected


def imagenet_plain(folder: Path, entry: Published, layout: Layout) -> Expected:
    expected = scaled(entry, layout, 50000, tuple(IDS))
    _imagenet_parts(folder / "ILSVRC", expected, entry.name)
    return expected


def imagenet_archives(folder: Path, entry: Published, layout: Layout) -> Expected:
    """The three archives as ILSVRC hands them out; that of the training part is full of others."""
    expected = scaled(entry, layout, 50000, tuple(IDS.values()))
    work = folder / "work"
    for i, code, _ in dealt(expected.counts[entry.name]["train"], tuple(IDS)):
        picture(work / "classes" / code / f"{code}_{i}.JPEG", i)
    (work / "train").mkdir()
    for code in IDS:
        packed(work / "classes" / code, work / "train" / f"{code}.tar")
    packed(work / "train", folder / "ILSVRC2012_img_train.tar")
    truth = []
    for i in range(expected.counts[entry.name]["test"]):
        picture(work / "val" / f"ILSVRC2012_val_{i + 1:08d}.JPEG", i)
        truth.append(str(i % len(IDS) + 1))
    packed(work / "val", folder / "ILSVRC2012_img_val.tar")
    data = work / "kit/ILSVRC2012_devkit_t12/data"
    data.mkdir(parents=True)
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text("\n".join(truth) + "\n")
    savemat(data / "meta.mat", {"synsets": _synsets()})
    packed(work / "kit", folder / "ILSVRC2012_devkit_t12.tar.gz")
    shutil.rmtree(work)
    return expected


def _synsets() -> np.ndarray:
    kinds = [("ILSVRC2012_ID", object), ("WNID", object), ("words", object)]
    table = np.zeros((len(IDS) + 1, 1), dtype=[*kinds, ("num_children", object)])
    for i, (code, name) in enumerate(IDS.items()):
        table[i, 0] = (i + 1, code, f"{name}, another word", 0)
    table[-1, 0] = (len(IDS) + 1, "n00001740", "entity", len(IDS))
    return table


def isic(*parts: str) -> Writer:
    """Images and masks of these parts, in ISIC's folders."""

    def write(folder: Path, entry: Published, layout: Layout) -> Expected:
        called = {"train": "Training", "val": "Validation", "test": "Test"}
        counts = {"train": 20, "val": 4, "test": 8}
        count = 0
        for part in parts:
            for _ in range(counts[part]):
                count += 1
                inputs = folder / f"ISIC2018_Task1-2_{called[part]}_Input"
                truth = folder / f"ISIC2018_Task1_{called[part]}_GroundTruth"
                picture(inputs / f"ISIC_{count:07d}.jpg", count)
                mask(truth / f"ISIC_{count:07d}_segmentation.png", count)
            (folder / f"ISIC2018_Task1-2_{called[part]}_Input/LICENSE.txt").write_text("CC")
        assert entry.classes is not None
        expected = {entry.name: {part: counts[part] for part in parts}}
        if len(parts) == 1:
            expected = {entry.name: {"all": counts[parts[0]]}}
        return Expected(expected, 2, entry.classes)

    return write


def ph2(folder: Path, entry: Published, layout: Layout) -> Expected:
    for i in range(20):
        name = f"IMD{i + 2:03d}"
        base = folder / "PH2Dataset/PH2 Dataset images" / name
        picture(base / f"{name}_Dermoscopic_Image" / f"{name}.bmp", i)
        mask(base / f"{name}_lesion" / f"{name}_lesion.bmp", i)
        mask(base / f"{name}_roi" / f"{name}_R1_Label3.bmp", i)
    (folder / "PH2Dataset/PH2_dataset.txt").write_text("|| Name || Histological Diagnosis ||\n")
    assert entry.classes is not None
    return Expected({entry.name: {"all": 20}}, 2, entry.classes)


def parquet(
    inside: str, splits: dict[str, str], image: str = "image", label: str = "label"
) -> Writer:
    """The hub's files: a column of pictures (or texts), labels, and domains where there are any."""

    def write(folder: Path, entry: Published, layout: Layout) -> Expected:
        import pyarrow as pa
        import pyarrow.parquet as pq

        classes = entry.classes or ("n01443537", "n01629819", "n02123045")
        expected = scaled(entry, layout, 3000, classes)
        (folder / inside).mkdir(parents=True)
        for split, part in splits.items():
            rows: dict[str, list[Any]] = {image: [], label: []}
            for domain, parts in expected.counts.items():
                for i, cls, _ in dealt(parts[part], classes):
                    rows[image].append(_cell(entry, i))
                    rows[label].append(classes.index(cls))
                    if len(expected.counts) > 1:
                        named = {ours: theirs for theirs, ours in layout.options["domains"].items()}
                        rows.setdefault("domain", []).append(named[domain])
            features = {label: {"names": list(classes), "_type": "ClassLabel"}}
            noted = json.dumps({"info": {"features": features}}).encode()
            table = pa.table(rows).replace_schema_metadata({b"huggingface": noted})
            pq.write_table(table, folder / inside / f"{split}-00000-of-00001.parquet")
        return expected

    return write


def _cell(entry: Published, seed: int) -> Any:
    """A text, or a picture as the hub stores it: its bytes and what it was called."""
    if entry.kind == "text":
        return f"oil prices rose {seed}"
    grey = entry.pixels == 28
    side = entry.pixels or 9 + seed % 5
    stream = io.BytesIO()
    Image.fromarray(pixels(seed, (side, side) if grey else (side, side, 3))).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": f"{seed}.png"}
