"""Pictures of a federation: what they show of data whose counts are known."""

import io

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from PIL import Image
from torch import Tensor

from fedloom.core.errors import FedloomError
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.report import pictures
from fedloom.report.contact_sheet import OUTLINE, ContactSheet
from fedloom.report.pictures import Heatmap, Histogram, draw, picture
from fedloom.report.sheets import DOMAINS, Sheet

NONE = np.arange(0)


def made(
    counts: list[list[int]],
    of: list[int],
    *,
    x: Tensor | None = None,
    domains: int = 2,
    shape: tuple[int, ...] = (3,),
) -> Federation:
    """Client k has `counts[k][c]` samples of class c, all of domain `of[k]`."""
    labels = [[c for c, n in enumerate(row) for _ in range(n)] for row in counts]
    n = sum(map(len, labels))
    ends = np.cumsum([0, *map(len, labels)])
    data = Dataset(
        name="made",
        x=torch.zeros(n, *shape) if x is None else x,
        y=torch.tensor([c for row in labels for c in row], dtype=torch.int64),
        domain=torch.tensor(
            [of[k] for k, row in enumerate(labels) for _ in row], dtype=torch.int64
        ),
        test=torch.zeros(n, dtype=torch.bool),
        classes=tuple(f"class {c}" for c in range(len(counts[0]))),
        domains=tuple(f"domain {d}" for d in range(domains)),
    )
    clients = [
        Client(np.arange(ends[k], ends[k + 1]), NONE, NONE, data.domains[of[k]])
        for k in range(len(counts))
    ]
    return Federation(data, tuple(clients), "by hand", "A description of this partition.")


def drawn(part: Heatmap | Histogram | ContactSheet) -> Sheet:
    """A part on a sheet of its own."""
    sheet = Sheet(part.width, part.height)
    part.draw(sheet, 0, 0)
    return sheet


def map_axes(federation: Federation):
    """The axes of the heat map's cells."""
    axes = drawn(Heatmap(federation)).figure.axes
    return next(a for a in axes if a.get_xlabel().startswith("client"))


def bars(axes) -> list[tuple[float, float, float, str]]:
    """Each bar's middle, foot, height and colour."""
    found = []
    for bar in axes.patches:
        middle = round(bar.get_x() + bar.get_width() / 2, 6)
        found.append((middle, bar.get_y(), bar.get_height(), to_hex(bar.get_facecolor())))
    return found


def pixels(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def area(image: np.ndarray, colour: str | tuple[int, int, int]) -> int:
    if isinstance(colour, str):
        colour = tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return int((image == colour).all(2).sum())


def test_heatmap_cells_have_the_colours_of_their_counts() -> None:
    axes = map_axes(made([[40, 0, 3], [0, 3, 3], [3, 0, 40]], [0, 1, 0]))
    (image,) = axes.images
    shown = image.get_array()
    assert shown.filled(0).tolist() == [[40, 0, 3], [0, 3, 0], [3, 3, 40]]
    assert shown.mask.sum() == 3  # none has the colour of the ground, which is not on the ramp
    assert to_hex(axes.get_facecolor()) == pictures.NONE
    words = [text.get_text() for text in axes.texts]
    assert sorted(words) == ["3", "3", "3", "3", "40", "40"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "class 0",
        "class 1",
        "class 2",
    ]


def test_the_strip_shows_each_clients_domain() -> None:
    sheet = drawn(Heatmap(made([[40, 0, 3], [0, 3, 3], [3, 0, 40]], [0, 1, 0])))
    strip = sheet.figure.axes[0]
    one, two = DOMAINS[:2]
    assert bars(strip) == [(0, 0, 1, one), (2, 0, 1, one), (1, 0, 1, two)]
    assert [t.get_text() for t in strip.get_legend().get_texts()] == ["domain 0", "domain 1"]


def test_shades_grow_darker_and_tell_one_from_none() -> None:
    (image,) = map_axes(made([[n] for n in range(1, 101)], [0] * 100, domains=1)).images
    shades = image.to_rgba(image.get_array())[0, :, :3].sum(1)
    assert (np.diff(shades) < 0).all()
    ground = sum(int(pictures.NONE[i : i + 2], 16) for i in (1, 3, 5)) / 255
    assert ground - shades[0] > 0.2


def test_heatmap_numbers_only_where_they_fit() -> None:
    assert len(map_axes(made([[5, 5]] * 4, [0] * 4, domains=1)).texts) == 8
    assert not map_axes(made([[5, 5]] * 100, [0] * 100, domains=1)).texts


def test_heatmap_of_mixed_clients() -> None:
    federation = made([[6, 6], [6, 6]], [0, 1])
    rows = np.arange(24)
    mixed = Federation(federation.data, (Client(rows, NONE, NONE), Client(rows[:18], NONE, NONE)))
    strip = drawn(Heatmap(mixed)).figure.axes[0]
    one, two = DOMAINS[:2]
    wanted = [
        (0, 0, 1 / 2, one),
        (1, 0, 2 / 3, one),
        (0, 1 / 2, 1 / 2, two),
        (1, 2 / 3, 1 / 3, two),
    ]
    for bar, expected in zip(bars(strip), wanted, strict=True):
        assert bar[:3] == pytest.approx(expected[:3]) and bar[3] == expected[3]


def test_many_clients_are_cut_off_and_empty_ones_are_drawn() -> None:
    axes = map_axes(made([[1, 2]] * 620, [0] * 620))
    assert axes.images[0].get_array().shape == (2, 500)
    assert axes.get_xlabel() == "client (the first 500 of 620)"
    assert Heatmap(made([[1, 2]] * 620, [0] * 620)).width < 1300
    nothing = made([[4, 2], [0, 0]], [0, 1])
    assert area(pixels(picture(nothing)), pictures.RAMP[-1]) > 40 * 20
    assert drawn(Heatmap(Federation(nothing.data, ()))).width > 0


def test_histogram_of_each_client() -> None:
    first, second = drawn(Histogram(made([[10, 5], [0, 10]], [0, 1]))).figure.axes
    one, two = DOMAINS[:2]
    assert bars(first) == [(0, 0, 10, one), (1, 0, 5, one)]
    assert bars(second) == [(0, 0, 0, two), (1, 0, 10, two)]
    assert first.get_ylim() == second.get_ylim()  # one scale for all
    assert first.get_title(loc="left") == "client 0, domain 0"
    (only,) = drawn(Histogram(made([[10, 5]], [0], domains=1))).figure.axes
    assert {colour for *_, colour in bars(only)} == {pictures.BAR}


def test_histogram_of_all_clients() -> None:
    (axes,) = drawn(Histogram(made([[1, 3]] * 9 + [[3, 1]] * 9, [0] * 9 + [1] * 9))).figure.axes
    one, two = DOMAINS[:2]
    assert bars(axes) == [(0, 0, 9, one), (1, 0, 27, one), (0, 9, 27, two), (1, 27, 9, two)]
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["domain 0", "domain 1"]


@pytest.mark.parametrize("channels", [1, 3])
def test_contact_sheet_shows_each_domain_in_its_row(channels: int) -> None:
    x = torch.zeros(60, channels, 10, 8, dtype=torch.uint8)
    x[:40], x[40:] = 90, 160
    part = ContactSheet(made([[20, 20], [10, 10]], [0, 1], x=x).data, per_domain=7)
    for mosaic, value in zip(part.mosaics, (90, 160), strict=True):
        assert area(mosaic, (value,) * 3) == 7 * 10 * 8 and mosaic.shape[0] == 10
    file = io.BytesIO()
    drawn(part).figure.savefig(file, format="png", dpi=72)
    image = pixels(file.getvalue())
    rows = [np.flatnonzero((image == value).all(2).any(1)) for value in (90, 160)]
    assert rows[0].max() < rows[1].min() and 19 <= len(rows[0]) <= 21  # twice as large
    assert area(image, DOMAINS[0]) >= 4 * 19


def test_contact_sheet_keeps_colours_upright_and_classes_take_turns() -> None:
    x = torch.zeros(30, 3, 6, 4, dtype=torch.uint8)
    x[:10, 0], x[10:20, 1], x[20:, 2] = 250, 250, 250  # class 0 is red, 1 green, 2 blue
    x[:, :, 4:] = 30  # at the foot
    (mosaic,) = ContactSheet(made([[10, 10, 10]], [0], x=x, domains=1).data, per_domain=6).mosaics
    seen = [mosaic[0, i * 6].tolist() for i in range(6)]
    assert seen == [[250, 0, 0], [0, 250, 0], [0, 0, 250]] * 2
    assert (mosaic[4:6, :4] == 30).all() and (mosaic[:4, :4, 0] == 250).all()


def test_contact_sheet_shrinks_and_wraps_large_images() -> None:
    x = torch.full((20, 1, 300, 300), 90, dtype=torch.uint8)
    part = ContactSheet(made([[10, 10]], [0], x=x, domains=1).data)
    assert area(part.mosaics[0], (90, 90, 90)) == 16 * 300 * 300
    assert part.factor == 128 / 300 and part.width <= 1200 and part.height > 2 * 128


def test_contact_sheet_prefers_training_samples_and_outlines_maps() -> None:
    x = torch.full((3, 1, 60, 60), 90, dtype=torch.uint8)
    y = torch.zeros(3, 60, 60, dtype=torch.int64)
    y[:, 20:40, 20:40] = 1
    test = torch.tensor([False, True, False])
    zero = torch.zeros(3, dtype=torch.int64)
    data = Dataset(x, y, zero, test, ("ground", "thing"), ("one",), "maps")
    (mosaic,) = ContactSheet(data).mosaics
    # the frame of a square, twice: the test sample is left out
    assert area(mosaic, OUTLINE) == 2 * (4 * 20 - 4)
    federation = Federation(data, (Client(np.array([0, 2]), NONE, NONE),))
    assert len(pixels(picture(federation))) > ContactSheet(data).height + 200


def test_contact_sheet_errors() -> None:
    for shape, dtype, said in (
        ((3,), torch.float32, r"made: only images \(uint8, channels, height, width\) can be shown"),
        ((1, 4, 4), torch.float32, "made: only images"),
        ((2, 4, 4), torch.uint8, "made: only images of 1 or 3 channels can be shown, these have 2"),
    ):
        with pytest.raises(FedloomError, match=said):
            ContactSheet(made([[2, 2]], [0], x=torch.zeros(4, *shape, dtype=dtype)).data)
    with pytest.raises(FedloomError, match="per_domain must be at least 1, got 0"):
        ContactSheet(made([[2]], [0], x=torch.zeros(2, 1, 4, 4, dtype=torch.uint8)).data, 0)


def test_picture_stacks_what_applies() -> None:
    vectors = made([[10, 5], [0, 10]], [0, 1])
    images = made([[10, 5], [0, 10]], [0, 1], x=torch.full((25, 1, 8, 8), 90, dtype=torch.uint8))
    plain, full = draw(vectors), draw(images)
    words = [[t.get_text() for t in figure.texts] for figure in (plain, full)]
    headings = [
        "Training samples of each client and class",
        "Training samples of each class, by client",
    ]
    assert [w for w in words[0] if w.startswith("Training")] == headings
    assert "What the samples look like" in words[1] and "What the samples look like" not in words[0]
    assert words[0][:2] == [
        "made, by hand: 2 clients",
        "A description of this partition. Samples: 25 train, 0 validation, 0 test.",
    ]
    plain_pixels, full_pixels = pixels(picture(vectors)), pixels(picture(images))
    assert area(plain_pixels, (90, 90, 90)) == 0
    assert area(full_pixels, (90, 90, 90)) > 0.9 * (15 + 10) * 16 * 16
    assert len(full_pixels) >= len(plain_pixels) + ContactSheet(images.data).height


def test_a_picture_is_always_the_same() -> None:
    federation = made([[3, 1]] * 30, [k % 2 for k in range(30)])
    assert picture(federation) == picture(federation)


def test_short_numbers_and_steps() -> None:
    numbers = (0, 999, 1000, 1234, 35_400, 2_000_000)
    assert [pictures.short(n) for n in numbers] == ["0", "999", "1k", "1.2k", "35k", "2M"]
    cells = (25, 10, 9, 3, 2, 1, 0.5)
    assert [pictures.step(20, cell) for cell in cells] == [1, 2, 5, 10, 10, 20, 50]
