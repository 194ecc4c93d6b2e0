"""Folders that look like classes but are something else."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from ...core.errors import FedloomError
from .decoding import ImageFile
from .pixels import decoded_image

_MASKS = re.compile(
    r"mask|ground.?truth|segment|lesion|annotation|trimap|label|(?<![a-z])gt(?![a-z])",
    re.IGNORECASE,
)
_ENDING = re.compile(
    r"[_-](segmentation|mask|lesion|gt|ground_?truth|label|annotation)s?(_\d+)?$", re.IGNORECASE
)
_PART = re.compile(r"(?<![a-z])(train|training|test|testing|val|valid|validation)(?![a-z])", re.I)
FEW = 4  # folders beside each other, up to which their pictures are looked at
LOOKS = 3  # files of each folder that are
COLOURS = 8  # a mask has no more
BESIDE = 0.3  # share of files in a folder that are masks of others in it, from which on it is told
ALIKE = 0.9  # share of names that images and masks have in common, at least


def refuse_masks(path: Path, files: Sequence[ImageFile]) -> None:
    """Stop at a folder of images beside a folder of their masks: these are not two classes.

    It takes the same files and, since classes may well have the same file names, either a telling
    name or, where only a few folders lie side by side, pictures of a few colours beside pictures
    of many. Masks may also lie in the folders of their images, as `001.png` and `001_mask.png`.
    """
    _refuse_masks_beside(path, files)
    _refuse_pairs(path, files, lambda file: (file.domain, file.cls))
    _refuse_pairs(path, files, lambda file: ("", file.domain))


def refuse_parts(path: Path, files: Sequence[ImageFile]) -> None:
    """Stop where all classes of a domain are called like parts: `cars_train`, `cars_test`."""
    classes: dict[str, set[str]] = defaultdict(set)
    for file in files:
        classes[file.domain].add(file.cls)
    for names in classes.values():
        if len(names) > 1 and all(map(_PART.search, names)):
            raise FedloomError(
                f"{path}: {', '.join(sorted(names))} look like parts of a data set, not like "
                "classes; parts are folders called train and test with a folder for each class."
            )


def _refuse_pairs(
    path: Path, files: Sequence[ImageFile], place: Callable[[ImageFile], tuple[str, str]]
) -> None:
    groups: dict[tuple[str, str], list[ImageFile]] = defaultdict(list)
    for file in files:
        groups[place(file)].append(file)
    side_by_side = Counter(domain for domain, _ in groups)
    for domain, masks in groups:
        named = _MASKS.search(masks) is not None
        if not named and side_by_side[domain] > FEW:
            continue
        drawn = _stems(groups[domain, masks])
        for other_domain, images in groups:
            if other_domain != domain or images == masks:
                continue
            shown = _stems(groups[domain, images])
            if len(drawn & shown) < ALIKE * len(drawn | shown):
                continue
            if named or _drawn_from(path, groups[domain, masks], groups[domain, images]):
                raise FedloomError(
                    f"{path}: {images} and {masks} look like images and their masks, not like "
                    "classes; for segmentation give an .npz with x_train, mask_train, x_test and "
                    "mask_test, or import a known set (`fedloom data import isic RAW`, or ph2)."
                )


def _drawn_from(path: Path, masks: Sequence[ImageFile], images: Sequence[ImageFile]) -> bool:
    """Whether some have a few colours each and the others many."""
    return all(_few_colours(path / file.path) for file in masks[:LOOKS]) and not any(
        _few_colours(path / file.path) for file in images[:LOOKS]
    )


def _few_colours(file: Path) -> bool:
    """Whether a picture has as few colours as a mask; one that cannot be read has not."""
    try:
        return decoded_image(file).getcolors(COLOURS) is not None
    except Exception:  # Pillow raises nearly anything on broken bytes; decoding says what it is
        return False


def _refuse_masks_beside(path: Path, files: Sequence[ImageFile]) -> None:
    folders: dict[PurePosixPath, set[str]] = defaultdict(set)
    for file in files:
        place = PurePosixPath(file.path)
        folders[place.parent].add(place.stem)
    for folder, stems in folders.items():
        masks = [stem for stem in sorted(stems) if _ENDING.sub("", stem) in stems - {stem}]
        if len(masks) > BESIDE * len(stems):
            shown = _ENDING.sub("", masks[0])
            raise FedloomError(
                f"{path}: {folder / masks[0]} looks like the mask of {folder / shown}, and its "
                "folder is full of such pairs; move the masks elsewhere if the folders are classes,"
                " and for segmentation give an .npz with x_train, mask_train, x_test and mask_test."
            )


def _stems(files: Sequence[ImageFile]) -> set[str]:
    """What the files are called, without what tells a mask from its image."""
    stems = set()
    for file in files:
        stems.add(_ENDING.sub("", PurePosixPath(file.path).stem))
    return stems
