"""`digits4`: four digit domains, made offline from what scikit-learn and Pillow ship.

- `handwritten`: scikit-learn's 8x8 handwritten digits, smoothly enlarged, white on black;
- `photo`: the same handwriting blended into photograph patches by absolute difference, as in
  MNIST-M;
- `printed`: Pillow's built-in font, slanted and seen in perspective, dark ink on shaded paper;
- `street`: like coloured house numbers, bold or outlined, with neighbours cut off at both sides,
  blurred and noisy.

Every domain has 1200 training and 300 test images, balanced over the ten classes. Training and test
share the font, but neither a handwritten source nor a photograph region.
"""

from __future__ import annotations

import warnings
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import torch
from PIL import Image, ImageDraw, ImageFont

from ..core.files import replacing
from .dataset import Dataset

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Rng = np.random.Generator

ABOUT = (
    "Four digit domains (handwritten, photo, printed, street), 1200 + 300 images each, 32x32x3, "
    "made offline"
)
DOMAINS: tuple[str, ...] = ("handwritten", "photo", "printed", "street")
RECIPE_VERSION = 2  # raise it whenever pixels or labels change, or old caches pass for new ones

_PER_CLASS = {"train": 120, "test": 30}
# Per class. The rarest class has 174 sources, so 139 remain for its 120 training images.
_TEST_SOURCES = 35
_SIDE = 32
_BLOCK = 100  # masks warped at once: they fit into the processor's cache, which is twice as fast
# How far the poses of printed digits and of house numbers go either way.
_PRINTED_SPREAD = {
    "aspect": 0.15, "turn": 0.15, "slant": 0.35, "x": 0.2, "y": 0.2, "tilt_x": 0.3, "tilt_y": 0.3,
}  # fmt: skip
_STREET_SPREAD = {
    "aspect": 0.15, "turn": 0.15, "slant": 0.2, "x": 0.15, "y": 0.12, "tilt_x": 0.2, "tilt_y": 0.1,
}  # fmt: skip
# Digits are drawn at twice the size and averaged down, which keeps thin strokes whole.
_FINE = 2 * _SIDE


def _rng(*seed: int) -> Rng:
    return np.random.Generator(np.random.PCG64(seed))


def _uniform(rng: Rng, low: float, high: float, *shape: int) -> Floats:
    return rng.uniform(low, high, shape).astype(np.float32)


def split_sources(labels: npt.NDArray[Any]) -> dict[str, list[Ints]]:
    """Split the handwritten sources, once for all domains: indices per part and class."""
    rng = _rng(4, 0)
    parts: dict[str, list[Ints]] = {"train": [], "test": []}
    for digit in range(10):
        shuffled = rng.permutation(np.flatnonzero(labels == digit)).astype(np.int64)
        parts["train"].append(shuffled[_TEST_SOURCES:])
        parts["test"].append(shuffled[:_TEST_SOURCES])
    return parts


def _handwriting() -> tuple[Floats, Ints]:
    """The enlarged handwritten masks and their labels, in the order of `load_digits`."""
    from sklearn.datasets import load_digits  # not at the top: the import takes a second

    digits = load_digits()
    # Ink touches the 8x8 frame; without a margin, the enlargement would end in a hard edge there.
    small = np.pad(digits.images / 16, ((0, 0), (1, 1), (1, 1))).astype(np.float32)
    large = []
    for mask in small:
        enlarged = Image.fromarray(mask).resize((_FINE, _FINE), Image.Resampling.BICUBIC)
        large.append(np.asarray(enlarged))
    # Bicubic ink is grey throughout; a steeper ramp brings back the white core of a pen stroke.
    return np.clip((np.stack(large) - 0.2) / 0.6, 0, 1), digits.target.astype(np.int64)


def _glyphs() -> Floats:
    """Printed masks indexed [style, digit]: four weights from light to bold, then outlines."""
    weights = np.empty((5, 10, _FINE, _FINE), np.float32)
    for stroke in range(5):
        for digit in range(10):
            weights[stroke, digit] = _glyph(str(digit), stroke)
    weights[4] -= weights[0]
    return weights


def _glyph(digit: str, stroke: int) -> Floats:
    """One printed digit, its outline widened by `stroke`."""
    font = ImageFont.load_default(66)
    canvas = Image.new("L", (_FINE, _FINE))
    left, top, right, bottom = font.getbbox(digit)
    # Centred on its ink, so that a pose moves every digit alike whatever margins the font has.
    place = ((_FINE - left - right) / 2 - stroke, (_FINE - top - bottom) / 2 - stroke)
    ImageDraw.Draw(canvas).text(place, digit, fill=255, font=font, stroke_width=stroke)
    return np.asarray(canvas, dtype=np.float32) / np.float32(255)


def _warp(masks: Floats, pose: dict[str, Floats]) -> Floats:
    """Draw each mask in its pose on 32x32 pixels."""
    blocks = []
    for start in range(0, len(masks), _BLOCK):
        here = slice(start, start + _BLOCK)
        poses = {name: values[here] for name, values in pose.items()}
        blocks.append(_warp_block(masks[here], poses))
    return np.concatenate(blocks)


def _warp_block(masks: Floats, pose: dict[str, Floats]) -> Floats:
    """Draw a few masks. Coordinates run from -1 to 1, and zeros surround a mask."""
    axis = (np.arange(_FINE, dtype=np.float32) + 0.5) * (2 / _FINE) - 1
    p = {name: values[:, None, None] for name, values in pose.items()}
    x, y = axis[None, None, :] - p["x"], axis[None, :, None] - p["y"]
    depth = 1 + p["tilt_x"] * x + p["tilt_y"] * y
    cos, sin = np.cos(p["turn"]), np.sin(p["turn"])
    x, y = (cos * x + sin * y) / depth, (cos * y - sin * x) / depth
    x = x + p["slant"] * y - p["shift"]
    # One zero pixel around each mask stands for everything outside it, hence the width of two more.
    wide = _FINE + 2
    u = (x / p["aspect"] / p["size"] + 1) * (_FINE / 2) + 0.5
    v = (y / p["size"] + 1) * (_FINE / 2) + 0.5
    u, v = np.clip(u, 0, wide - 1.001), np.clip(v, 0, wide - 1.001)
    column, line = u.astype(np.int32), v.astype(np.int32)
    u, v = u - column.astype(np.float32), v - line.astype(np.float32)
    ink = np.pad(masks, ((0, 0), (1, 1), (1, 1))).reshape(-1)
    at = np.arange(0, ink.size, wide * wide, dtype=np.int32)[:, None, None] + line * wide + column
    below = at + wide
    upper = ink[at] * (1 - u) + ink[at + 1] * u
    lower = ink[below] * (1 - u) + ink[below + 1] * u
    fine = upper * (1 - v) + lower * v
    mean = (fine[:, ::2, ::2] + fine[:, 1::2, ::2] + fine[:, ::2, 1::2] + fine[:, 1::2, 1::2]) / 4
    return np.asarray(mean, dtype=np.float32)


def _pose(rng: Rng, n: int, size: tuple[float, float], **spread: float) -> dict[str, Floats]:
    """Draw `n` poses: `size` is uniform in its range, all else within plus or minus its spread."""
    spread = {"tilt_x": 0.0, "tilt_y": 0.0, "shift": 0.0} | spread
    pose = {}
    for name, most in spread.items():
        pose[name] = _uniform(rng, -most, most, n)
    return pose | {"size": _uniform(rng, *size, n), "aspect": 1 + pose["aspect"]}


def _patches(rng: Rng, n: int, split: str) -> Floats:
    """Cut photograph patches (n,3,32,32) from the regions of a split."""
    regions = _regions(split)
    patches = []
    for _ in range(n):
        candidates = [_cut(rng, regions) for _ in range(3)]
        patches.append(max(candidates, key=_liveliness))
    return np.stack(patches).transpose(0, 3, 1, 2)


def _regions(split: str) -> list[Floats]:
    """Tiles of the photographs at three sizes; four tiles in fifteen are for testing."""
    from sklearn.datasets import load_sample_images

    regions: list[Floats] = []
    for photograph in load_sample_images().images:
        for k in range(15):
            top, left = k // 5 * 142, k % 5 * 128
            if (k % 4 == 1) == (split == "test"):
                tile = Image.fromarray(photograph[top : top + 142, left : left + 128])
                # Reduced after the cut, not before, so that no pixel mixes two tiles.
                for factor in (1, 2, 3):
                    pixels = np.asarray(tile.reduce(factor), dtype=np.float32)
                    regions.append(pixels / np.float32(255))
    return regions


def _cut(rng: Rng, regions: list[Floats]) -> Floats:
    """A patch somewhere in one of the regions, mirrored half of the time."""
    region = regions[rng.integers(len(regions))]
    height, width = region.shape[:2]
    top = rng.integers(height - _SIDE + 1)
    left = rng.integers(width - _SIDE + 1)
    return region[top : top + _SIDE, left : left + _SIDE][:, :: rng.choice((-1, 1))]


def _liveliness(patch: Floats) -> float:
    """How well a patch serves as background.

    Much of the two photographs is smooth shadow, on which a digit looks like plain handwriting.
    """
    return float(patch.mean() + 2 * patch.std())


def _shade(rng: Rng, n: int, strength: float) -> Floats:
    """Linear shades (n,1,32,32) of random direction, at most `strength` away from zero."""
    axis = np.linspace(-0.5, 0.5, _SIDE, dtype=np.float32)
    across, down = _uniform(rng, -strength, strength, 2, n, 1, 1, 1)
    return np.asarray(across * axis + down * axis[:, None], dtype=np.float32)


def _blur(images: Floats, sigma: Floats) -> Floats:
    """Blur each image with a five-tap Gaussian of its own width."""
    taps = np.exp(-(np.arange(-2, 3, dtype=np.float32)[:, None] ** 2) / (2 * sigma**2))
    taps = (taps / taps.sum(axis=0))[..., None, None, None]
    for _ in range(2):
        wide = np.pad(images, ((0, 0), (0, 0), (0, 0), (2, 2)), mode="edge")
        weighted = [tap * wide[..., k : k + _SIDE] for k, tap in enumerate(taps)]
        images = np.sum(weighted, axis=0).swapaxes(2, 3)
    return images


def _handwritten(rng: Rng, masks: Floats) -> Floats:
    pose = _pose(rng, len(masks), (0.95, 1.15), aspect=0.1, turn=0.12, slant=0.15, x=0.1, y=0.1)
    return _warp(masks, pose)[:, None].repeat(3, axis=1)


def _printed(rng: Rng, labels: Ints, glyphs: Floats) -> Floats:
    n = len(labels)
    pose = _pose(rng, n, (0.5, 0.95), **_PRINTED_SPREAD)
    ink = _warp(glyphs[rng.integers(3, size=n), labels], pose)[:, None]
    paper = (
        _uniform(rng, 0.8, 1.0, n, 1, 1, 1)
        + _uniform(rng, -0.04, 0.04, n, 3, 1, 1)
        + _shade(rng, n, 0.12)
    )
    image = paper + ink * (_uniform(rng, 0.0, 0.35, n, 1, 1, 1) - paper)
    return image + 0.025 * rng.standard_normal((n, 1, _SIDE, _SIDE), dtype=np.float32)


def _street(rng: Rng, labels: Ints, glyphs: Floats) -> Floats:
    n = len(labels)
    pose = _pose(rng, n, (0.85, 1.25), **_STREET_SPREAD)
    style = rng.integers(2, len(glyphs), size=n)
    mask = _warp(glyphs[style, labels], pose)
    for side in (-1, 1):
        # A house number has one typeface, so neighbours share style and pose. One place in five
        # is empty.
        there = rng.random((n, 1, 1), dtype=np.float32) < 0.8
        beside = pose | {"shift": side * pose["size"] * _uniform(rng, 1.0, 1.25, n)}
        mask = np.maximum(mask, there * _warp(glyphs[style, rng.integers(10, size=n)], beside))
    wall = _uniform(rng, 0.2, 0.8, n, 1, 1, 1) + _uniform(rng, -0.2, 0.2, n, 3, 1, 1)
    # Paint is lighter than a dark wall and darker than a light one; between the two it is either.
    lighter = wall.mean(axis=1, keepdims=True) < _uniform(rng, 0.35, 0.65, n, 1, 1, 1)
    direction = np.where(lighter, np.float32(1), np.float32(-1))
    contrast = _uniform(rng, 0.2, 0.65, n, 1, 1, 1) * direction
    paint = np.clip(wall + contrast + _uniform(rng, -0.2, 0.2, n, 3, 1, 1), 0, 1)
    painted = wall + mask[:, None] * (paint - wall) + _shade(rng, n, 0.5)
    image = _blur(painted, _uniform(rng, 0.5, 1.3, n))
    strength = _uniform(rng, 0.01, 0.07, n, 1, 1, 1)
    return image + strength * rng.standard_normal(image.shape, dtype=np.float32)


def generate() -> dict[str, npt.NDArray[Any]]:
    """Make the data set: `<domain>_x_<split>`, `..._y_...` and `..._source_...` for each domain.

    Images are uint8 (N,3,32,32) and labels int64. The source is the int64 index of the digit in
    `load_digits`, or -1 where the image holds no handwriting.
    """
    masks, targets = _handwriting()
    sources, glyphs = split_sources(targets), _glyphs()
    data: dict[str, npt.NDArray[Any]] = {}
    for d, domain in enumerate(DOMAINS):
        for s, (split, per_class) in enumerate(_PER_CLASS.items()):
            rng = _rng(4, 1, d, s)
            labels = rng.permutation(np.repeat(np.arange(10, dtype=np.int64), per_class))
            source = np.full(len(labels), -1, dtype=np.int64)
            if domain == "printed":
                image = _printed(rng, labels, glyphs)
            elif domain == "street":
                image = _street(rng, labels, glyphs)
            else:
                for digit, choice in enumerate(sources[split]):
                    source[labels == digit] = rng.choice(choice, per_class, replace=False)
                image = _handwritten(rng, masks[source])
            if domain == "photo":
                image = np.abs(_patches(rng, len(labels), split) - image)
            data[f"{domain}_x_{split}"] = np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)
            data[f"{domain}_y_{split}"] = labels
            data[f"{domain}_source_{split}"] = source
    return data


def cache_name() -> str:
    """The cache's file name, which states all that the pixels depend on.

    These are the recipe, the font (Pillow) and the photographs and digits (scikit-learn).
    """
    return f"digits4-r{RECIPE_VERSION}-pillow{PIL.__version__}-sklearn{version('scikit-learn')}.npz"


def _read(file: Path) -> dict[str, npt.NDArray[Any]]:
    with np.load(file, allow_pickle=False) as stored:
        data = {key: stored[key] for key in stored.files}
    wanted = product(DOMAINS, ("x", "y", "source"), _PER_CLASS)
    if set(data) != set(map("_".join, wanted)):
        raise ValueError("it does not hold the arrays of digits4")
    return data


def load(cache: Path) -> dict[str, npt.NDArray[Any]]:
    """What `generate` gives, kept as a file in the folder `cache`.

    A damaged file is replaced, with a warning.
    """
    file = cache / cache_name()
    try:
        return _read(file)
    except FileNotFoundError:
        pass
    except Exception as error:  # what a damaged archive raises depends on its first bad byte
        warnings.warn(
            f"The digits4 cache {file} cannot be read ({error}); it is made again.", stacklevel=2
        )
    data: dict[str, Any] = generate()
    with replacing(file, durable=False) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **data)
    return data


def dataset(cache: Path) -> Dataset:
    """The arrays of `load` as a data set."""
    arrays = load(cache)
    xs, ys, domains, tests = [], [], [], []
    for d, domain in enumerate(DOMAINS):
        for part in ("train", "test"):
            y = torch.from_numpy(arrays[f"{domain}_y_{part}"])
            xs.append(torch.from_numpy(arrays[f"{domain}_x_{part}"]))
            ys.append(y)
            domains.append(torch.full((len(y),), d))
            tests.append(torch.full((len(y),), part == "test"))
    return Dataset(
        name="digits4",
        x=torch.cat(xs),
        y=torch.cat(ys),
        domain=torch.cat(domains),
        test=torch.cat(tests),
        classes=tuple(map(str, range(10))),
        domains=DOMAINS,
    )
