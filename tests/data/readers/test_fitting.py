"""Images that differ in size: as a frozen encoder cuts them, in every reader of image files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedloom.core.errors import FedloomError
from fedloom.data.catalogue import Source, load
from fedloom.data.readers.fitting import Cut
from fedloom.encoders import Encoder, Preprocess
from fedloom.encoders.encoder import SideBySide

SIZES = ((30, 20), (24, 48), (16, 16), (40, 25))


def picture(size: tuple[int, int], seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def folder(path: Path, sizes: tuple[tuple[int, int], ...] = SIZES) -> Path:
    lines = ["path,label"]
    for i, size in enumerate(sizes):
        name = f"{'ab'[i % 2]}/{i}.png"
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        picture(size, i).save(path / name)
        lines.append(f"{name},{name[0]}")
    (path / "list.csv").write_text("\n".join(lines))
    return path


def source(cut: Cut, asked: list[int] | None = None) -> Source:
    def give() -> Cut:
        if asked is not None:
            asked.append(1)
        return cut

    return Source().cut_by(give)


@pytest.mark.parametrize("reader", ["folder", "manifest"])
def test_images_of_several_sizes_are_cut(tmp_path, reader) -> None:
    """What an encoder sees of a cut image is what it would have made of the whole."""
    path = folder(tmp_path)
    place = path / "list.csv" if reader == "manifest" else path
    how = Preprocess(12, resample="bicubic", edge=16)
    data = load(str(place), source(how.square))
    assert data.x.shape == (4, 3, 16, 16)
    order = (0, 1, 2, 3) if reader == "manifest" else (0, 2, 1, 3)
    for row, i in enumerate(order):
        pixels = torch.from_numpy(np.asarray(picture(SIZES[i], i)).copy()).permute(2, 0, 1)
        wanted, found = how(pixels[None]), how(data.x[row : row + 1])
        assert (wanted - found).abs().max() <= 4 / 127.5, i  # a few grey levels, by rounding twice


def test_images_of_one_size_stay_as_they_are(tmp_path) -> None:
    path = folder(tmp_path, ((30, 20),) * 4)
    asked: list[int] = []
    data = load(str(path), source(Cut(16, True, "bicubic"), asked))
    assert data.x.shape == (4, 3, 20, 30) and not asked
    scaled = load(str(path), source(Cut(16, True, "bicubic")).model_copy(update={"size": 8}))
    assert scaled.x.shape == (4, 3, 8, 8)


def test_without_an_encoder_a_size_is_asked_for(tmp_path) -> None:
    with pytest.raises(FedloomError, match="say size="):
        load(str(folder(tmp_path)))


def test_both_sides_are_scaled_where_the_encoder_does_so() -> None:
    whole = Cut(10, False, "bilinear")(picture((30, 20), 0))
    wanted = picture((30, 20), 0).resize((10, 10), Image.Resampling.BILINEAR)
    assert whole.size == (10, 10) and whole.tobytes() == wanted.tobytes()
    cut = Cut(10, True, "bilinear")(picture((30, 20), 0))
    assert cut.size == (10, 10)
    left = picture((30, 20), 0).resize((15, 10), Image.Resampling.BILINEAR).crop((2, 0, 12, 10))
    assert cut.tobytes() == left.tobytes()


def test_of_several_encoders_the_largest_decides() -> None:
    encoders = []
    for size, edge in ((32, None), (24, 28), (30, 40)):
        encoders.append(Encoder("x", 1, Preprocess(size, edge=edge), torch.nn.Identity))
    assert SideBySide(encoders).cut == Cut(40, True, "bilinear")
