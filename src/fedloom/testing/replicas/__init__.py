"""Small copies of the published data sets in their true form, for tests.

Names, endings, nesting and label files are those of the real thing; pictures are tiny and without
meaning, counts are divided (each writer says by how much), and only some classes of large sets are
there. `python -m fedloom.testing.replicas NAME FOLDER [FORM]` writes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...core.errors import FedloomError
from ...data.counting import Expected
from ...data.published import find, published
from . import arrays, images, texts
from .images import Writer, coop, fedbn_lists, folders, parquet

__all__ = ["Replica", "forms", "make"]

TRAIN_TEST = {"train": "train", "test": "test"}
OFFICE_HOME = {
    "art": "Art", "clipart": "Clipart", "product": "Product", "real_world": "Real World",
}  # fmt: skip

# For each set, a writer for each of its layouts in the catalogue.
WRITERS: dict[str, list[Writer]] = {
    "mnist": [arrays.idx, parquet("mnist", TRAIN_TEST)],
    "fashion_mnist": [arrays.idx, parquet("fashion_mnist", TRAIN_TEST)],
    "cifar10": [
        arrays.cifar10_python,
        arrays.cifar10_binary,
        parquet("plain_text", TRAIN_TEST, image="img"),
    ],
    "cifar100": [
        arrays.cifar100_python,
        arrays.cifar100_binary,
        parquet("cifar100", TRAIN_TEST, image="img", label="fine_label"),
    ],
    "tiny_imagenet": [
        images.tiny_imagenet,
        parquet("data", {"train": "train", "valid": "test"}),
    ],
    "ag_news": [texts.ag_news, parquet("data", TRAIN_TEST, image="text")],
    "amazon_reviews": [texts.amazon_npz, texts.review_counts],
    "amazon_reviews_text": [texts.reviews],
    "cub200": [images.birds],
    "isic": [images.isic("train", "val", "test"), images.isic("train")],
    "ph2": [images.ph2],
    "digit_five": [
        arrays.digit_five,
        arrays.digit_five,
        arrays.digit_five_fedbn,
        images.dassl_digits,
    ],
    "digits": [arrays.digits_torchvision],
    "office31": [folders(50, "Original_images", "images"), folders(50, "office31")],
    "office_caltech": [fedbn_lists("office_caltech_10"), folders(50, "office_caltech_10")],
    "office_home": [
        folders(200, "OfficeHomeDataset_10072016", rename=OFFICE_HOME),
        folders(200, "office_home"),
        parquet("data", {"train": "all"}),
    ],
    "pacs": [folders(150, "kfold"), parquet("data", {"train": "all"})],
    "domainnet": [images.domainnet(""), images.domainnet("splits")],
    "domainnet10": [fedbn_lists("DomainNet")],
    "caltech101": [
        coop("caltech-101", "101_ObjectCategories", "split_zhou_Caltech101.json"),
        coop("", "caltech-101/101_ObjectCategories", "split_zhou_Caltech101.json"),
    ],
    "food101": [
        coop("food-101", "images", "split_zhou_Food101.json"),
        images.food,
        parquet("data", {"train": "train", "validation": "test"}),
    ],
    "flowers102": [
        coop("oxford_flowers", "jpg", "split_zhou_OxfordFlowers.json", "image_{i:05d}.jpg")
    ],
    "oxford_pets": [
        coop("oxford_pets", "images", "split_zhou_OxfordPets.json", "{cls}_{i}.jpg"),
        images.pets,
    ],
    "stanford_cars": [
        coop("stanford_cars", "", "split_zhou_StanfordCars.json", "{side}/{i:05d}.jpg")
    ],
    "fgvc_aircraft": [images.aircraft],
    "sun397": [coop("sun397", "SUN397", "split_zhou_SUN397.json", "{first}/{cls}/sun_{i:05d}.jpg")],
    "dtd": [coop("dtd", "images", "split_zhou_DescribableTextures.json"), images.textures],
    "eurosat": [coop("eurosat", "2750", "split_zhou_EuroSAT.json")],
    "ucf101": [coop("ucf101", "UCF-101-midframes", "split_zhou_UCF101.json")],
    "imagenet": [images.imagenet, images.imagenet_archives, images.imagenet_plain],
}


@dataclass(frozen=True)
class Replica:
    """A small copy of a published set, and what an import must find in it."""

    folder: Path
    expected: Expected


def forms() -> list[tuple[str, int]]:
    """Every set with the number of each of its layouts."""
    listed = []
    for name, entry in published().items():
        listed += [(name, form) for form in range(len(entry.layouts))]
    return listed


def make(name: str, folder: Path, form: int = 0) -> Replica:
    """Write a replica of a set, in one of its layouts, into a new folder."""
    entry = find(name)
    if not 0 <= form < len(entry.layouts):
        raise FedloomError(f"{entry.name} has {len(entry.layouts)} layouts, there is no {form}.")
    if folder.exists():
        raise FedloomError(f"{folder} is there already: name a new folder.")
    folder.mkdir(parents=True)
    expected = WRITERS[entry.name][form](folder, entry, entry.layouts[form])
    return Replica(folder, expected)
