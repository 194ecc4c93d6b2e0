import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fedloom.core.errors import FedloomError
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.report import pictures
from fedloom.report.pictures import contact_sheet, heatmap, histogram, picture

NONE = np.arange(0)
GREEN = (0, 230, 118)  # outlines


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


def area(image: Image.Image, colour: tuple[int, int, int]) -> int:
    return int((np.asarray(image) == colour).all(2).sum())


def shade(n: int, most: int) -> tuple[int, int, int]:
    return tuple(pictures._shade(np.array([n]), most)[0].tolist())


def test_heatmap_cells_have_the_colours_of_their_counts() -> None:
    image = heatmap(made([[40, 0, 3], [0, 3, 3], [3, 0, 40]], [0, 1, 0]))
    # Cells are 51 x 25 inside their white gaps; numbers and the scale cover or add a little.
    for n, cells in ((40, 2), (3, 4), (0, 3)):
        assert 0.75 * cells * 51 * 25 < area(image, shade(n, 40)) <= 1.1 * cells * 51 * 25, n
    # The strip above: 51 x 14 for each client, and 12 x 12 in the legend.
    assert area(image, pictures.DOMAINS[0]) == 2 * 51 * 14 + 144
    assert area(image, pictures.DOMAINS[1]) == 51 * 14 + 144


def test_shades_grow_darker_and_tell_one_from_none() -> None:
    shades = pictures._shade(np.arange(101), 100).astype(int).sum(1)
    assert (np.diff(shades) < 0).all() and shades[0] - shades[1] > 50
    assert (pictures._shade(np.zeros(2), 0) == pictures.NONE).all()


def test_heatmap_numbers_only_where_they_fit() -> None:
    few = heatmap(made([[5, 5]] * 4, [0] * 4, domains=1))
    colour = shade(5, 5)
    assert area(few, colour) < 8 * 51 * 25 - 8 * 10  # numbers are printed over the cells
    many = np.asarray(heatmap(made([[5, 5]] * 100, [0] * 100, domains=1)))
    cell = (1200 - 160) // 100
    grid = (many == colour).all(2)
    assert int(grid[:, : grid.shape[1] - 80].sum()) == 200 * (cell - 1) * 25


def test_heatmap_of_mixed_clients() -> None:
    federation = made([[6, 6], [6, 6]], [0, 1])
    rows = np.arange(24)
    mixed = Federation(federation.data, (Client(rows, NONE, NONE), Client(rows[:18], NONE, NONE)))
    image = heatmap(mixed)
    # 28 high: half and half, then 12 of 18 samples from domain 0.
    assert area(image, pictures.DOMAINS[0]) == 51 * (14 + 19) + 144
    assert area(image, pictures.DOMAINS[1]) == 51 * (14 + 9) + 144


def test_many_clients_are_cut_off_and_empty_ones_are_drawn() -> None:
    rows = [[1, 2]] * 620
    image = heatmap(made(rows, [0] * 620))
    assert image.width < 1300
    nothing = made([[4, 2], [0, 0]], [0, 1])
    assert area(picture(nothing), shade(4, 4)) > 51 * 20
    assert heatmap(Federation(nothing.data, ())).width > 0


def test_histogram_of_each_client() -> None:
    image = histogram(made([[10, 5], [0, 10]], [0, 1]))
    # Bars are 64 wide (66 and a gap), 84 high for the largest count of all clients.
    assert area(image, pictures.DOMAINS[0]) == 64 * (84 + 42)
    assert area(image, pictures.DOMAINS[1]) == 64 * 84
    assert area(histogram(made([[10, 5]], [0], domains=1)), pictures.BAR) == 64 * (84 + 42)


def test_histogram_of_all_clients() -> None:
    image = histogram(made([[1, 3]] * 9 + [[3, 1]] * 9, [0] * 9 + [1] * 9))
    # Each class has 36 samples and is 150 high; bars are 64 wide with a gap of 10.
    assert area(image, pictures.DOMAINS[0]) == 54 * 150 + 144
    assert area(image, pictures.DOMAINS[1]) == 54 * 150 + 144


@pytest.mark.parametrize("channels", [1, 3])
def test_contact_sheet_shows_each_domain_in_its_row(channels: int) -> None:
    x = torch.zeros(60, channels, 10, 8, dtype=torch.uint8)
    x[:40], x[40:] = 90, 160
    image = contact_sheet(made([[20, 20], [10, 10]], [0, 1], x=x).data, per_domain=7)
    assert (
        area(image, (90, 90, 90)) == area(image, (160, 160, 160)) == 7 * 20 * 16
    )  # twice as large
    rows = [np.flatnonzero((np.asarray(image) == v).all(2).any(1)) for v in (90, 160)]
    assert rows[0].max() < rows[1].min() and len(rows[0]) == 20
    assert area(image, pictures.DOMAINS[0]) == 5 * 20


def test_contact_sheet_keeps_colours_upright_and_classes_take_turns() -> None:
    x = torch.zeros(30, 3, 6, 4, dtype=torch.uint8)
    x[:10, 0], x[10:20, 1], x[20:, 2] = 250, 250, 250  # class 0 is red, 1 green, 2 blue
    x[:, :, 4:] = 30  # at the foot
    pixels = np.asarray(contact_sheet(made([[10, 10, 10]], [0], x=x, domains=1).data, per_domain=6))
    first = next(c for c in range(pixels.shape[1]) if tuple(pixels[0, c]) == (250, 0, 0))
    seen = [pixels[0, first + i * 11].tolist() for i in range(6)]
    assert seen == [[250, 0, 0], [0, 250, 0], [0, 0, 250]] * 2
    assert (pixels[8:12, first : first + 8] == 30).all() and (
        pixels[:8, first : first + 8, 0] == 250
    ).all()


def test_contact_sheet_shrinks_and_wraps_large_images() -> None:
    x = torch.full((20, 1, 300, 300), 90, dtype=torch.uint8)
    image = contact_sheet(made([[10, 10]], [0], x=x, domains=1).data)
    assert area(image, (90, 90, 90)) == 16 * 128 * 128
    assert image.width <= 1200 and image.height > 2 * 128


def test_contact_sheet_prefers_training_samples_and_outlines_maps() -> None:
    x = torch.full((3, 1, 60, 60), 90, dtype=torch.uint8)
    y = torch.zeros(3, 60, 60, dtype=torch.int64)
    y[:, 20:40, 20:40] = 1
    test = torch.tensor([False, True, False])
    zero = torch.zeros(3, dtype=torch.int64)
    data = Dataset("maps", x, y, zero, test, ("ground", "thing"), ("one",))
    image = contact_sheet(data)
    assert area(image, GREEN) == 2 * (
        4 * 20 - 4
    )  # the frame of a square, twice: the test sample is left out
    federation = Federation(data, (Client(np.array([0, 2]), NONE, NONE),))
    assert picture(federation).height > image.height + 200


def test_contact_sheet_errors() -> None:
    for shape, dtype, said in (
        ((3,), torch.float32, r"made: only images \(uint8, channels, height, width\) can be shown"),
        ((1, 4, 4), torch.float32, "made: only images"),
        ((2, 4, 4), torch.uint8, "made: only images of 1 or 3 channels can be shown, these have 2"),
    ):
        with pytest.raises(FedloomError, match=said):
            contact_sheet(made([[2, 2]], [0], x=torch.zeros(4, *shape, dtype=dtype)).data)
    with pytest.raises(FedloomError, match="per_domain must be at least 1, got 0"):
        contact_sheet(made([[2]], [0], x=torch.zeros(2, 1, 4, 4, dtype=torch.uint8)).data, 0)


def test_picture_stacks_what_applies() -> None:
    vectors = made([[10, 5], [0, 10]], [0, 1])
    images = made([[10, 5], [0, 10]], [0, 1], x=torch.full((25, 1, 8, 8), 90, dtype=torch.uint8))
    plain, full = picture(vectors), picture(images)
    assert area(plain, (90, 90, 90)) == 0 and area(full, (90, 90, 90)) == (15 + 10) * 16 * 16
    assert full.height >= plain.height + contact_sheet(images.data).height
    for part in (heatmap(vectors), histogram(vectors)):
        window = np.asarray(plain)[:, 28 : 28 + part.width]
        pixels = np.asarray(part)
        tops = [
            y
            for y in range(len(window) - part.height + 1)
            if np.array_equal(window[y : y + part.height], pixels)
        ]
        assert len(tops) == 1


def test_a_picture_is_always_the_same_and_can_be_saved(tmp_path: object) -> None:
    federation = made([[3, 1]] * 30, [k % 2 for k in range(30)])
    a, b = picture(federation), picture(federation)
    assert a.mode == "RGB" and np.array_equal(np.asarray(a), np.asarray(b))
    a.save(f"{tmp_path}/a.png")
    with Image.open(f"{tmp_path}/a.png") as again:
        assert np.array_equal(np.asarray(again), np.asarray(a))


def test_short_numbers_and_steps() -> None:
    numbers = (0, 999, 1000, 1234, 35_400, 2_000_000)
    assert [pictures._short(n) for n in numbers] == ["0", "999", "1k", "1.2k", "35k", "2M"]
    assert [pictures._step(20, cell) for cell in (25, 10, 9, 3, 2, 1, 0.5)] == [
        1,
        2,
        5,
        10,
        10,
        20,
        50,
    ]
    assert pictures._shorten("a name much too long", 60, 12).endswith("...")
    assert pictures._length(pictures._shorten("a name much too long", 60, 12), 12) <= 60
