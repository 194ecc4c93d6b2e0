"""Data sets by name or path: which file holds what, and how it is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict

from ..core.errors import FedloomError, unknown
from ..core.settings import Count, Names, NotNegative, Share, setting
from . import digits4, stress
from .federation import Dataset
from .readers.arrays import npz_kind, read_npz, read_npz_folder
from .readers.huggingface import hf_kind, is_hf, read_hf
from .readers.images import read_folder
from .readers.pfllib import is_pfllib, pfllib_kind, read_pfllib
from .readers.sparse import SparseRows, read_sparse_npz
from .readers.tables import read_csv
from .transforms import resize

Kind = Literal["image", "vector", "sparse", "text", "segmentation"]
MODEL_FOR: dict[Kind, str] = {
    "image": "cnn",
    "vector": "mlp",
    "sparse": "mlp",
    "text": "fasttext",
    "segmentation": "unet",
}
OFFICE10 = (
    "back_pack", "bike", "calculator", "headphones", "keyboard",
    "laptop_computer", "monitor", "mouse", "mug", "projector",
)  # fmt: skip
Progress = Callable[[int, int], None]


class Source(BaseModel):
    """How samples are read, before they are dealt out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: Count | None = setting(None, "Images become size x size.")
    on_bad_file: Literal["refuse", "skip"] = setting(
        "refuse", "An unreadable image is named either way."
    )
    flatten: bool = setting(False, "Whether images are read as plain vectors.")
    only_domains: Names | None = setting(None, "These domains, in this order.")
    only_classes: Names | None = setting(None, "These classes, in this order.")
    limit_train: Count | None = setting(
        None, "So many training samples of each class and domain, the first ones."
    )
    limit_test: Count | None = setting(None, "The same for the test part.")
    length: Count = setting(200, "The number of words that a text is cut or filled to.")
    words: Count | None = setting(
        None, "Size of the vocabulary; None: every word of the training texts."
    )
    hashed: bool = setting(
        False, "Words by hash, so that clients need no common list (then `words` says how many)."
    )
    nonsense: Literal["digits", "alphanumeric"] | None = setting(
        None, "Class names without a meaning."
    )
    label_noise: Share = setting(0.0, "Share of wrong training labels.")
    image_noise: Literal["gaussian", "laplace", "exponential"] | None = setting(
        None, "The kind of noise that is added to training samples."
    )
    noise_coefficient: Share = setting(0.1, "Share of the noise in a noisy sample.")
    noise_scale: NotNegative = setting(0.05, "Of the distribution it is drawn from.")


@dataclass(frozen=True)
class Known:
    """A data set the library knows by name: where it lies below the data root, and what it is."""

    path: str
    kind: Kind
    about: str
    classes: tuple[str, ...] | None = None


KNOWN: dict[str, Known] = {
    "digits5": Known(
        "digits5", "image", "five digit domains (chars74k_font stands in for SynthDigits), 32 px"
    ),
    "pacs": Known("pacs", "image", "PACS: photo, art painting, cartoon, sketch; 7 classes, 128 px"),
    "office31": Known("office31", "image", "Office-31: amazon, dslr, webcam; 31 classes, 128 px"),
    "office10": Known(
        "office31",
        "image",
        "the ten Office-Caltech classes of Office-31 (no Caltech images)",
        OFFICE10,
    ),
    "office_caltech_surf": Known(
        "office_caltech10_surf.npz", "vector", "Office-Caltech as 800-d SURF histograms"
    ),
    "fashion_mnist": Known("fashion_mnist.npz", "image", "Fashion-MNIST, 28 px grey"),
    "cifar10": Known("cifar10.npz", "image", "CIFAR-10, 32 px"),
    "flowers102": Known("flowers102", "image", "Flowers-102, few-shot, 96 px"),
    "dtd": Known("dtd", "image", "describable textures, few-shot, 96 px"),
    "oxford_pets": Known("oxford_pets", "image", "Oxford pets, few-shot, 96 px"),
    "ag_news": Known("ag_news", "text", "AG News: four topics, texts"),
    "amazon_reviews": Known(
        "amazon_reviews.npz", "sparse", "sentiment in four product domains, 5000-d bags of words"
    ),
    "amazon_reviews_text": Known("amazon_reviews_raw.csv.gz", "text", "the same task as texts"),
    "ph2": Known("ph2_lesion_seg.npz", "segmentation", "PH2: skin lesions with masks, 96 px"),
}


def cache_folder() -> Path:
    """Where made and decoded data are kept: `FEDLOOM_CACHE`, or `fedloom` in the user's cache folder."""
    base = (
        os.environ.get("FEDLOOM_CACHE")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedloom"
    )
    return Path(base)


def names() -> tuple[str, ...]:
    """The data sets known by name."""
    return ("digits4", *KNOWN)


def locate(name: str, root: str | None = None) -> Path | None:
    """Where a data set lies: below `root` (or `FEDLOOM_DATA`) for a known name, else the path itself; None if not."""
    place = root or os.environ.get("FEDLOOM_DATA")
    if name in KNOWN and place and (Path(place) / KNOWN[name].path).exists():
        return Path(place) / KNOWN[name].path
    return Path(name) if name and name not in KNOWN and Path(name).exists() else None


def has_clients(name: str, root: str | None = None) -> bool:
    """Whether a data set comes dealt out to clients already, as PFLlib's folders do."""
    path = locate(name, root)
    return path is not None and is_pfllib(path)


def kind_of(name: str, root: str | None = None) -> Kind:
    """What kind of samples a data set has, without reading it all."""
    if name == "digits4":
        return "image"
    if name in KNOWN:
        return KNOWN[name].kind
    if name.startswith("hf:"):
        return hf_kind(name[3:], cache_folder() / "hf")
    path = locate(name, root)
    if path is None:
        return "image"  # `load` says that it is not there
    if path.suffix == ".npz" and path.is_file():
        return npz_kind(path)
    if is_pfllib(path):
        return pfllib_kind(path)
    if _is_table(path):
        return "text"
    if files := sorted(path.glob("*.npz")):
        return npz_kind(files[0])
    return hf_kind(str(path), cache_folder() / "hf") if is_hf(path) else "image"


def load(
    name: str,
    source: Source | None = None,
    *,
    root: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Dataset:
    """The data set of that name, or the one at that path, read as `source` says; `seed` is for its noise."""
    source = source or Source()
    data = _digits4() if name == "digits4" else _read(name, source, root, progress)
    wanted = source.only_classes or (KNOWN[name].classes if name in KNOWN else None)
    if wanted:
        data = keep_classes(data, wanted)
    if source.only_domains:
        data = keep_domains(data, source.only_domains)
    if source.limit_train or source.limit_test:
        data = keep_first(data, source.limit_train, source.limit_test)
    if name == "digits4" and source.size and isinstance(data.x, torch.Tensor):
        data = replace(data, x=resize(data.x, source.size))
    if source.label_noise:
        data = stress.label_noise(data, source.label_noise, seed)
    if source.image_noise:
        data = stress.image_noise(
            data, source.image_noise, source.noise_coefficient, source.noise_scale, seed
        )
    if source.nonsense:
        data = stress.nonsense(data, source.nonsense, seed)
    if source.flatten:
        if data.kind != "image" or not isinstance(data.x, torch.Tensor):
            raise FedloomError(f"flatten is for images; {name} has {data.kind} samples.")
        data = replace(data, x=data.prepare(data.x).flatten(1))
    return data


def _read(name: str, source: Source, root: str | None, progress: Progress | None) -> Dataset:
    if name.startswith("hf:"):
        return _read_hf(name[3:], name, source)
    path = locate(name, root)
    if path is None:
        if name in KNOWN:
            where = root or os.environ.get("FEDLOOM_DATA")
            raise FedloomError(
                f"{name} is not at {Path(where) / KNOWN[name].path}; --data-root or FEDLOOM_DATA says where to look."
                if where
                else f"{name} needs its files: say where they lie with --data-root or FEDLOOM_DATA."
            )  # fmt: skip
        if os.sep in name:
            hint = str(unknown("", Path(name).name, names())).partition("; ")[2]
            raise FedloomError(
                f"no such file or folder: {name}; if a data set known by its name was meant, {hint}"
            )
        raise unknown("data set or path", name, names())
    if path.suffix == ".npz" and path.is_file():
        sparse = npz_kind(path) == "sparse"
        return (
            read_sparse_npz(path, name=name)
            if sparse
            else read_npz(path, name=name, size=source.size)
        )
    if is_pfllib(path):
        return read_pfllib(path, name=name)
    if _is_table(path):
        return read_csv(
            path, name=name, length=source.length, vocabulary=source.words, hashed=source.hashed
        )
    if any(path.glob("*.npz")):
        return read_npz_folder(path, name=name, size=source.size)
    if is_hf(path):
        return _read_hf(str(path), name, source)
    if path.is_file():
        raise FedloomError(
            f"{path}: is no file of a known kind (.npz, .csv, .csv.gz, .parquet, .arrow); images lie in folders."
        )
    return read_folder(
        path,
        size=source.size,
        on_bad_file=source.on_bad_file,
        name=name,
        cache=cache_folder(),
        progress=progress,
    )


def _read_hf(path: str, name: str, source: Source) -> Dataset:
    return read_hf(
        path,
        name=name,
        cache=cache_folder() / "hf",
        size=source.size,
        length=source.length,
        vocabulary=source.words,
        hashed=source.hashed,
    )


def _is_table(path: Path) -> bool:
    """Whether this is a CSV file, or a folder of such; one that lies beside folders (of images, say) does not count."""
    endings = (".csv", ".csv.gz")
    if not path.is_dir():
        return path.name.endswith(endings)
    tables = [f.name for f in path.iterdir() if f.name.endswith(endings)]
    whole = any(name.startswith(("train.", "test.")) for name in tables)
    return whole or (bool(tables) and not any(f.is_dir() for f in path.iterdir()))


def keep_classes(data: Dataset, wanted: tuple[str, ...]) -> Dataset:
    """The samples of these classes, numbered in the order given."""
    y = _renumber(data.y, data.classes, wanted, f"class of {data.name}")
    return _rows(data, y >= 0, y=y, classes=tuple(wanted))


def keep_domains(data: Dataset, wanted: tuple[str, ...]) -> Dataset:
    """The samples of these domains, in the order given."""
    domain = _renumber(data.domain, data.domains, wanted, f"domain of {data.name}")
    return _rows(data, domain >= 0, domain=domain, domains=tuple(wanted))


def keep_first(data: Dataset, train: int | None = None, test: int | None = None) -> Dataset:
    """The first so many training and test samples of every class and domain; None: all of them."""
    group = (data.domain * len(data.classes) + data.labels) * 2 + data.test
    order = torch.argsort(group, stable=True)
    starts = torch.cumsum(torch.bincount(group), 0) - torch.bincount(group)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order)) - starts[group[order]]
    limit = torch.where(data.test, test or len(order), train or len(order))
    return _rows(data, place < limit)


def _renumber(
    numbers: torch.Tensor, names: tuple[str, ...], wanted: tuple[str, ...], what: str
) -> torch.Tensor:
    """Numbers into `names` as numbers into `wanted`; -1 for those left out."""
    for i, name in enumerate(wanted):
        if name not in names:
            raise unknown(what, name, names)
        if name in wanted[:i]:
            raise FedloomError(f"the {what} {name!r} is asked for twice.")
    new = torch.full((len(names),), -1)
    new[[names.index(name) for name in wanted]] = torch.arange(len(wanted))
    return new[numbers]


def _rows(data: Dataset, keep: torch.Tensor, **changes: object) -> Dataset:
    rows = torch.nonzero(keep).flatten()
    columns = {n: changes.pop(n, getattr(data, n)) for n in ("x", "y", "domain", "test", "owner")}
    picked = {n: None if c is None else _pick(c, rows) for n, c in columns.items()}
    return replace(data, **picked, **changes)  # type: ignore[arg-type]


def _pick(column: Any, rows: torch.Tensor) -> Any:
    return column.take(rows) if isinstance(column, SparseRows) else column[rows]


def _digits4() -> Dataset:
    """Four digit domains (handwritten, photo, printed, street), 1200 + 300 images each, 32x32x3, made offline."""
    arrays = digits4.load(cache_folder())
    xs, ys, domains, tests = [], [], [], []
    for d, domain in enumerate(digits4.DOMAINS):
        for part in ("train", "test"):
            x = torch.from_numpy(arrays[f"{domain}_x_{part}"])
            xs.append(x)
            ys.append(torch.from_numpy(arrays[f"{domain}_y_{part}"]))
            domains.append(torch.full((len(x),), d))
            tests.append(torch.full((len(x),), part == "test"))
    return Dataset(
        name="digits4",
        x=torch.cat(xs),
        y=torch.cat(ys),
        domain=torch.cat(domains),
        test=torch.cat(tests),
        classes=tuple(str(c) for c in range(10)),
        domains=digits4.DOMAINS,
    )


ABOUT = {
    "digits4": (_digits4.__doc__ or "").rstrip("."),
    **{name: known.about for name, known in KNOWN.items()},
}
