"""What a reader is: it recognises one format on disk and reads it. The registry of readers.

To add a format, write a file with

    @READERS.register("name")
    class Xyz(Reader):
        'An .xyz file.'

and put it in this package or point to it with an entry point of the group `fedloom.readers`.
"""

from __future__ import annotations

import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, PrivateAttr

from ...core.errors import FedloomError
from ...core.registry import Registry
from ...core.settings import Count, Names, NotNegative, Share, setting
from ..dataset import Dataset
from ..finite import refuse_not_finite
from .fitting import Cut, Fit

Kind = Literal["image", "vector", "sparse", "text", "segmentation"]
Progress = Callable[[int, int], None]


class Source(BaseModel):
    """How samples are read, before they are dealt out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: Count | None = setting(
        None, "Scale images to this many pixels on each side.", affects="data"
    )
    on_bad_file: Literal["refuse", "skip"] = setting(
        "refuse", "Stop at an unreadable image, or skip it with a warning.", affects="data"
    )
    flatten: bool = setting(False, "Turn images into plain vectors.", affects="data")
    only_domains: Names | None = setting(
        None, "Keep only these domains, in this order.", affects="data"
    )
    only_classes: Names | None = setting(
        None,
        "Keep only these classes, in this order: by name, or by number (from 0) where no class is"
        " called so.",
        affects="data",
    )
    limit_train: Count | None = setting(
        None,
        "Number of training samples of each class and domain that are kept, the first ones.",
        affects="data",
    )
    limit_test: Count | None = setting(
        None,
        "Number of test samples of each class and domain that are kept, the first ones.",
        affects="data",
    )
    label_column: str | None = setting(
        None, "The column of a manifest that holds the labels.", affects="data"
    )
    site_column: str | None = setting(
        None, "The column of a manifest that becomes the domain.", affects="data"
    )
    group_column: str | None = setting(
        None,
        "The column of a manifest (patients by default) whose samples are never split up between "
        "train, validation and test.",
        affects="data",
    )
    length: Count = setting(
        200, "Number of words to which a text is cut or padded.", affects="data"
    )
    words: Count | None = setting(
        None,
        "Size of the vocabulary; by default it has every word of the training texts.",
        affects="data",
    )
    hashed: bool = setting(
        False,
        "Number words by a hash, so that clients need no common word list.",
        affects="data",
    )
    nonsense: Literal["digits", "alphanumeric"] | None = setting(
        None, "Replace class names by codes without a meaning.", affects="data"
    )
    label_noise: Share = setting(
        0.0, "Share of the training labels that are made wrong.", affects="data"
    )
    image_noise: Literal["gaussian", "laplace", "exponential"] | None = setting(
        None, "Kind of noise that is added to training samples.", affects="data"
    )
    noise_coefficient: Share = setting(
        0.1, "Share of a noisy sample that is faded out before noise is added.", affects="data"
    )
    noise_scale: NotNegative = setting(
        0.05, "Scale of the distribution that the noise is drawn from.", affects="data"
    )

    # How a frozen encoder would cut images that differ in size; no setting, since its name is one.
    _cut: Callable[[], Cut] | None = PrivateAttr(None)

    def cut_by(self, cut: Callable[[], Cut]) -> Source:
        """The same settings for images that an encoder will see."""
        source = self.model_copy()
        source._cut = cut
        return source

    @property
    def fit(self) -> Fit:
        """What becomes of images that differ in size, for readers of image files."""
        return self.size or self._cut


def class_names(wanted: Sequence[str], classes: Sequence[str]) -> tuple[str, ...]:
    """The names of the classes asked for.

    A number that no class is called stands for the class in that place: copies of a set write names
    differently.
    """
    names = []
    for name in wanted:
        if name not in classes and name.isdecimal() and int(name) < len(classes):
            name = classes[int(name)]
        names.append(name)
    return tuple(names)


class Reader(ABC):
    """How one format is recognised and read; the docstring of a reader names the format.

    Readers are asked in the order of `order` whether they recognise a path, so those that others
    bring are asked before fedloom's own. A reader whose registered name ends with a colon, such as
    `hf:`, is also chosen by `hf:SOMETHING`; `path` is then what follows the colon.
    """

    order = 0
    has_clients = False  # whether the samples are dealt out to clients already

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """Whether this reader can read what is at `path`, which exists."""

    @abstractmethod
    def kind(self, path: str) -> Kind:
        """What the samples are, found out without reading them all."""

    @abstractmethod
    def read(self, path: str, name: str, source: Source, progress: Progress | None) -> Dataset:
        """The data set at `path`, under the name `name`."""


READERS: Registry[type[Reader]] = Registry("reader", "fedloom.readers", "fedloom.data.readers")


def reader_of(path: Path) -> Reader | None:
    """The first reader that recognises a path."""
    for _, make in sorted(READERS.items(), key=lambda item: item[1].order):
        reader = make()
        with _explained(reader, str(path)):
            if reader.recognises(path):
                return reader
    return None


def kind_with(reader: Reader, path: str) -> Kind:
    """What kind of samples the reader finds at `path`."""
    with _explained(reader, path):
        return reader.kind(path)


def read_with(
    reader: Reader, path: str, name: str, source: Source, progress: Progress | None
) -> Dataset:
    """The data set at `path`, as this reader reads it."""
    with _explained(reader, path):
        data = reader.read(path, name, source, progress)
    if not isinstance(data, Dataset):
        kind = type(data).__name__
        raise FedloomError(
            f"the reader {_name_of(reader)!r} made a {kind} of {path}, where a Dataset is wanted."
        )
    refuse_not_finite(data.x, path)
    return data


@contextmanager
def _explained(reader: Reader, path: str) -> Iterator[None]:
    """Turn a fault inside a reader into one sentence; many readers are other people's."""
    try:
        yield
    except FedloomError:
        raise
    except Exception as error:
        cause = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
        raise FedloomError(
            f"the reader {_name_of(reader)!r} failed at {path}: {cause.rstrip('.')} "
            f"({_place_of(error, reader)})."
        ) from error


def _place_of(error: Exception, reader: Reader) -> str:
    """The line at which the reader's own file failed, whatever that line has called."""
    frames = traceback.extract_tb(error.__traceback__)
    own_file = getattr(sys.modules.get(type(reader).__module__), "__file__", None)
    place = frames[-1]
    for frame in frames:
        if frame.filename == own_file:
            place = frame
    return f"{place.filename}, line {place.lineno}"


def _name_of(reader: Reader) -> str:
    """The name under which a reader is registered."""
    for name, registered in READERS.items():
        if registered is type(reader):
            return name
    return type(reader).__name__


def listed_formats() -> str:
    """The formats that can be read, for use inside a sentence: "a folder of images; ..."."""
    formats = []
    for name, reader in sorted(READERS.items(), key=lambda item: item[1].order):
        first_line = (reader.__doc__ or name).split("\n")[0].rstrip(".")
        formats.append(first_line[0].lower() + first_line[1:])
    return "; ".join(formats)
