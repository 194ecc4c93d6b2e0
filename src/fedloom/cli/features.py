"""The commands about encoders: `encoders`, `encode`, `cache`, `pretrain` and `bench encoders`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Column, Table

from ..core.errors import FedloomError, unknown
from .groups import grouped
from .options import (
    AsJson,
    DeviceOption,
    benchmark,
    console,
    given,
    key_values,
    print_json,
    print_line,
    separated,
)

if TYPE_CHECKING:
    from rich.progress import Progress

    from ..core.registry import Registry
    from ..encoders.cache import Entry

cache_app = typer.Typer(help="Features kept on disk.", no_args_is_help=True)
pretrain_app = typer.Typer(help="Train your own encoder.", no_args_is_help=True)

Root = Annotated[
    str | None,
    typer.Option("--data-root", help="Where known data sets lie. Default: FEDLOOM_DATA."),
]
EncodeSettings = Annotated[
    list[str] | None,
    key_values("--set", "How the data are read, and `views=4`, `augment=[...]`."),
]
PretrainSettings = Annotated[
    list[str] | None,
    key_values("--set", "size, patch, width, layers, heads, epochs, batch, lr, seed ..."),
]


@dataclass(frozen=True)
class Ending:
    """The last options of a command about encoders."""

    data_root: Root = None
    as_json: AsJson = False


def encoders(as_json: AsJson = False) -> None:
    """The frozen encoders known by name: of images, of texts, and of both in one space."""
    from ..encoders import DUAL, IMAGE, TEXT

    rows = [*_rows("image", IMAGE), *_rows("text", TEXT), *_rows("dual", DUAL)]
    if as_json:
        print_json(rows)
        return
    table = Table("encodes", "name", "what it is", box=box.SIMPLE_HEAD)
    for row in rows:
        kind = row["kind"]
        if kind == "dual":
            kind = "both"
        about = row["about"]
        if row["missing"]:
            about += f" ({row['missing']})"
        table.add_row(kind, row["name"], escape(about))
    console.print(table)


SHOWN = {"hash:": "hash:DIM", "pth:": "pth:NETWORK:FILE", "py:": "FILE.py:FUNCTION"}


def _rows(kind: str, registry: Registry[Any]) -> list[dict[str, Any]]:
    """What is known about the encoders of a kind, and what each lacks on this machine."""
    rows = []
    for name, make in registry.items():
        if name == "checks":  # for `fedloom check` alone
            continue
        shown = name
        missing = None
        if name.endswith(":"):
            shown = SHOWN.get(name, f"{name}PATH")
        else:
            missing = _what_is_missing(make)
        about = (make.__doc__ or "").split("\n")[0].rstrip(".")
        rows.append({"kind": kind, "name": shown, "about": about, "missing": missing})
    return rows


def _what_is_missing(make: Callable[[], object]) -> str | None:
    """Why an encoder cannot be used here, or None if it can."""
    try:
        make()
    except FedloomError as error:
        return str(error)
    return None


@grouped
def encode(
    *,
    data: Annotated[str, typer.Option(help="Data set by name (see `fedloom data`) or path.")],
    encoder: Annotated[str, typer.Option(help="Image encoders, commas between them.")],
    set_: EncodeSettings = None,
    device: DeviceOption = None,
    ending: Ending,
) -> None:
    """Compute the features of a data set, so that runs with this encoder find them ready.

    Example:

        fedloom encode --data digits4 --encoder efficientnet-lite0
    """
    from ..core.device import find as find_devices
    from ..data.catalogue import load
    from ..encoders import encode as compute
    from ..encoders import images
    from ..engine.config import build, parse_set
    from ..engine.setup import source_of

    changes = parse_set(set_ or []) | given(data_root=ending.data_root)
    config = build({"data": data, "encoder": encoder, "partition": "iid"}, changes)
    dataset = load(data, source_of(config), root=ending.data_root, seed=config.seed)
    chosen = images(encoder)
    start = time.perf_counter()
    with _encoding(in_log=not ending.as_json) as progress:
        encoded = compute(
            dataset,
            chosen,
            views=config.views,
            augment=config.training.augment,
            progress=progress,
            device=find_devices(device or "cpu")[0],
        )
    facts = {
        "data": dataset.name,
        "encoders": {each.name: each.hash for each in chosen},
        "samples": len(encoded.x),
        "dim": int(encoded.x.shape[1]),
        "seconds": round(time.perf_counter() - start, 3),
    }
    if ending.as_json:
        print_json(facts)
        return
    names = ", ".join(each.name for each in chosen)
    print_line(
        f"{dataset.name}: {facts['samples']} x {facts['dim']} features of {names}, ready after "
        f"{facts['seconds']} s."
    )


@contextmanager
def _encoding(in_log: bool) -> Iterator[Callable[[int, int], None]]:
    """A function that shows how far encoding has got: a bar, or in a log a line at every tenth."""
    tenths = 0

    def show(done: int, total: int) -> None:
        nonlocal tenths
        update(done, total)
        now = done * 10 // total
        if in_log and not console.is_terminal and tenths < now < 10:
            tenths = now
            print_line(f"encoding {done}/{total}")

    with _bar() as bar:
        update = _task(bar, "encoding")
        yield show


@cache_app.command("list")
def cache_list(as_json: AsJson = False) -> None:
    """What features are kept, and how much room they take."""
    from ..encoders import Cache

    cache = Cache()
    entries = cache.entries()
    if as_json:
        print_json([asdict(entry) for entry in entries])
        return
    name = Column("encoder", overflow="fold")
    headings = ("data", "view", "samples", "width", "MB", "made")
    table = Table(name, *headings, box=box.SIMPLE_HEAD)
    for entry in entries:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.made))
        size = f"{entry.bytes / 1e6:.1f}"
        shape = (str(entry.rows), str(entry.dim))
        table.add_row(entry.encoder, entry.data, entry.view or "-", *shape, size, when)
    if entries:
        console.print(table)
    print_line(f"{len(entries)} entries, {_megabytes(entries):.1f} MB in {cache.folder}")


@cache_app.command("clear")
def cache_clear(
    encoder: Annotated[str | None, typer.Option(help="Only the features of this encoder.")] = None,
) -> None:
    """Remove cached features; those that a process is computing right now stay."""
    from ..encoders import Cache

    cache = Cache()
    if encoder:
        cached = {entry.encoder for entry in cache.entries()}
        if encoder not in cached:
            raise unknown("encoder in the cache", encoder, cached)
    removed = cache.clear(encoder)
    print_line(f"removed {len(removed)} entries, {_megabytes(removed):.1f} MB.")


def _megabytes(entries: Sequence[Entry]) -> float:
    return sum(entry.bytes for entry in entries) / 1e6


@pretrain_app.callback()
def _pretrain() -> None:
    pass  # with a callback, a single command keeps its name


@pretrain_app.command("vit")
@grouped
def pretrain_vit(
    *,
    images: Annotated[
        str,
        typer.Option(
            help="A folder of folders by class, a folder of images without labels, or a data "
            "set's name."
        ),
    ],
    out: Annotated[str, typer.Option(help="Folder for the network; use it as hf:FOLDER.")],
    teacher: Annotated[str, typer.Option(help="The encoder to learn from.")] = "efficientnet-lite0",
    set_: PretrainSettings = None,
    device: DeviceOption = None,
    ending: Ending,
) -> None:
    """Train a small ViT to give what a frozen encoder gives, and labels where there are any.

    Example:

        fedloom pretrain vit --images photos --out my-vit --set epochs=8

        fedloom run fedgcr --model vpt --encoder hf:my-vit --set pixels=true

    The same command continues a training that was interrupted.
    """
    from ..core.device import find as find_devices
    from ..encoders import image
    from ..encoders.pretrain import pretrain, settings
    from ..engine.config import parse_set

    student = settings(parse_set(set_ or []))
    start = time.perf_counter()
    with _bar() as bar:
        figures = pretrain(
            images,
            image(teacher),
            Path(out),
            student,
            root=ending.data_root,
            reading=_task(bar, "images"),
            training=_task(bar, "steps"),
            device=find_devices(device or "cpu")[0],
        )
    figures["seconds"] = round(time.perf_counter() - start, 1)
    if ending.as_json:
        print_json(figures)
        return
    ready = ""
    if figures["reused"]:
        ready = ", found ready"
    print_line(f"{out}: {figures['steps']} steps{ready}; on held-out images {_held_out(figures)}.")


def _held_out(figures: dict[str, Any]) -> str:
    """How good a network is on images that it was not trained on."""
    parts = []
    for name in ("cosine", "accuracy"):
        if figures[name] is not None:
            parts.append(f"{name} {figures[name]:.3f}")
    return ", ".join(parts) or "nothing, for there are none"


@grouped
def bench_encoders(
    *,
    what: Annotated[
        str,
        typer.Option(
            help="probe, zero-shot (of lite-clip), lite-clip (its settings), cache (or not), "
            "prompts (FedGCR's first pass cached or not), standard (the scale of standardised "
            "features), or all."
        ),
    ] = "all",
    data: Annotated[str, typer.Option(help="Data sets, commas between them.")] = "",
    encoder: Annotated[
        str, typer.Option(help="Image encoders for probes and cache, commas between them.")
    ] = "",
    limit: Annotated[
        int | None, typer.Option(help="Probe with this many images per class, domain and part.")
    ] = None,
    ending: Ending,
) -> None:
    """Measure encoders: linear probes, zero-shot classification, and what the cache saves."""

    def say(text: str) -> None:
        if not ending.as_json:
            print_line(text)

    with _bar() as bar:
        figures = benchmark("encoders").measure(
            what,
            separated(data),
            separated(encoder),
            root=ending.data_root,
            say=say,
            progress=_task(bar, "encoding"),
            limit=limit,
        )
    if ending.as_json:
        print_json(figures)


def _bar() -> Progress:
    from rich.progress import Progress

    return Progress(console=console, transient=True, disable=not console.is_terminal)


def _task(bar: Progress, name: str) -> Callable[[int, int], None]:
    """Add a task to the bar; returns the function that shows how far it has got."""
    task = bar.add_task(name, total=None)
    return lambda done, total: bar.update(task, completed=done, total=total)
