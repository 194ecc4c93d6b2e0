"""The commands about encoders: `encoders`, `encode`, `cache`, `pretrain` and `bench encoders`."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from ..core.errors import unknown
from .options import benchmark

console = Console()
cache_app = typer.Typer(help="Features kept on disk.", no_args_is_help=True)
pretrain_app = typer.Typer(help="Train an encoder of one's own.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Root = Annotated[
    str | None,
    typer.Option("--data-root", help="Where known data sets lie. Default: FEDLOOM_DATA."),
]


def encoders(as_json: AsJson = False) -> None:
    """The frozen encoders known by name: of images, of texts, and of both in one space."""
    from ..core.errors import FedloomError
    from ..encoders import DUAL, IMAGE, TEXT

    rows: list[dict[str, Any]] = []
    for kind, registry in (("image", IMAGE), ("text", TEXT), ("dual", DUAL)):
        for name in (
            n for n in registry.names() if n != "checks"
        ):  # that one is for `fedloom check` alone
            note = ""
            if not name.endswith(":"):
                try:
                    registry.find(name)()
                except FedloomError as error:
                    note = str(error)
            shown = f"{name}{'DIM' if name == 'hash:' else 'PATH'}" if name.endswith(":") else name
            rows.append(
                {
                    "kind": kind,
                    "name": shown,
                    "about": (registry.find(name).__doc__ or "").split("\n")[0].rstrip("."),
                    "missing": note or None,
                }
            )
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("encodes", "name", "what it is", box=box.SIMPLE_HEAD)
    for row in rows:
        note = f" ({row['missing']})" if row["missing"] else ""
        table.add_row(
            {"dual": "both"}.get(row["kind"], row["kind"]), row["name"], escape(row["about"] + note)
        )
    console.print(table)


def encode(
    data: Annotated[str, typer.Option(help="Data set by name (see `fedloom data`) or path.")],
    encoder: Annotated[str, typer.Option(help="Image encoders, commas between them.")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="How the data are read, and `views=4`, `augment=[...]`.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    data_root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Compute the features of a data set, so that runs with this encoder find them ready.

    Example:

        fedloom encode --data digits4 --encoder efficientnet-lite0
    """
    from ..data.catalogue import load
    from ..encoders import encode as compute
    from ..encoders import images
    from ..engine.config import build, parse_set

    changes = parse_set(set_ or []) | ({"data_root": data_root} if data_root else {})
    config = build({"data": data, "encoder": encoder, "partition": "iid"}, changes)
    found = load(data, config.source, root=data_root, seed=config.seed)
    made = images(encoder)
    start = time.perf_counter()
    tenths = 0
    with _bar() as bar:
        task = bar.add_task("encoding", total=None)

        def progress(done: int, total: int) -> None:
            nonlocal tenths
            bar.update(task, completed=done, total=total)
            if (
                not (console.is_terminal or as_json) and tenths < done * 10 // total < 10
            ):  # a log has no bar
                tenths = done * 10 // total
                console.print(f"encoding {done}/{total}", highlight=False)

        encoded = compute(
            found, made, views=config.views, augment=config.training.augment, progress=progress
        )
    facts = {
        "data": found.name,
        "encoders": {e.name: e.hash for e in made},
        "samples": len(encoded.x),
        "dim": int(encoded.x.shape[1]),
        "seconds": round(time.perf_counter() - start, 3),
    }
    if as_json:
        print(json.dumps(facts, indent=1))
    else:
        names = ", ".join(e.name for e in made)
        console.print(
            f"{found.name}: {facts['samples']} x {facts['dim']} features of {names}, ready after "
            f"{facts['seconds']} s.",
            highlight=False,
        )


@cache_app.command("list")
def cache_list(as_json: AsJson = False) -> None:
    """What features are kept, and how much room they take."""
    from dataclasses import asdict

    from ..encoders import Cache

    cache = Cache()
    entries = cache.entries()
    if as_json:
        print(json.dumps([asdict(e) for e in entries], indent=1))
        return
    table = Table(
        Column("encoder", overflow="fold"),
        "data",
        "view",
        "samples",
        "width",
        "MB",
        "made",
        box=box.SIMPLE_HEAD,
    )
    for e in entries:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(e.made))
        table.add_row(
            e.encoder, e.data, e.view or "-", str(e.rows), str(e.dim), f"{e.bytes / 1e6:.1f}", made
        )
    if entries:
        console.print(table)
    total = sum(e.bytes for e in entries) / 1e6
    console.print(
        f"{len(entries)} entries, {total:.1f} MB in {cache.folder}", highlight=False, soft_wrap=True
    )


@cache_app.command("clear")
def cache_clear(
    encoder: Annotated[str | None, typer.Option(help="Only the features of this encoder.")] = None,
) -> None:
    """Remove cached features; those that a process is computing right now stay."""
    from ..encoders import Cache

    cache = Cache()
    if encoder and encoder not in (known := {e.encoder for e in cache.entries()}):
        raise unknown("encoder in the cache", encoder, known)
    gone = cache.clear(encoder)
    console.print(
        f"removed {len(gone)} entries, {sum(e.bytes for e in gone) / 1e6:.1f} MB.", highlight=False
    )


@pretrain_app.callback()
def _pretrain() -> None:
    pass  # with a callback, a single command keeps its name


@pretrain_app.command("vit")
def pretrain_vit(
    images: Annotated[
        str,
        typer.Option(
            help="A folder of folders by class, a folder of images without labels, or a data "
            "set's name."
        ),
    ],
    out: Annotated[str, typer.Option(help="Folder for the network; use it as hf:FOLDER.")],
    teacher: Annotated[str, typer.Option(help="The encoder to learn from.")] = "efficientnet-lite0",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="size, patch, width, layers, heads, epochs, batch, lr, seed ...",
            metavar="KEY=VALUE",
        ),
    ] = None,
    data_root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Train a small ViT to give what a frozen encoder gives, and labels where there are any.

    Example:

        fedloom pretrain vit --images photos --out my-vit --set epochs=8

        fedloom run fedgcr --model vpt --encoder hf:my-vit --set pixels=true

    A training that was interrupted goes on with the same command.
    """
    from pathlib import Path

    from ..encoders import image
    from ..encoders.pretrain import pretrain, settings
    from ..engine.config import parse_set

    student, start = settings(parse_set(set_ or [])), time.perf_counter()
    with _bar() as bar:
        seen, done = bar.add_task("images", total=None), bar.add_task("steps", total=None)
        figures = pretrain(
            images,
            image(teacher),
            Path(out),
            student,
            root=data_root,
            reading=lambda now, total: bar.update(seen, completed=now, total=total),
            training=lambda now, total: bar.update(done, completed=now, total=total),
        )
    figures["seconds"] = round(time.perf_counter() - start, 1)
    if as_json:
        print(json.dumps(figures, indent=1))
        return
    told = [
        f"{name} {figures[name]:.3f}"
        for name in ("cosine", "accuracy")
        if figures[name] is not None
    ]
    ready = ", found ready" if figures["reused"] else ""
    console.print(
        f"{out}: {figures['steps']} steps{ready}; on held-out images "
        f"{', '.join(told) or 'nothing, for there are none'}.",
        highlight=False,
        soft_wrap=True,
    )


def bench_encoders(
    what: Annotated[
        str,
        typer.Option(
            help="probe, zero-shot (of lite-clip), lite-clip (its settings), cache (or not), "
            "prompts (FedGCR's first pass cached or not), or all."
        ),
    ] = "all",
    data: Annotated[str, typer.Option(help="Data sets, commas between them.")] = "",
    encoder: Annotated[
        str, typer.Option(help="Image encoders for probes and cache, commas between them.")
    ] = "",
    limit: Annotated[
        int | None, typer.Option(help="Probe with so many images per class, domain and part.")
    ] = None,
    data_root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Measure encoders: linear probes, zero-shot classification, and what the cache saves."""
    with _bar() as bar:
        task = bar.add_task("encoding", total=None)
        figures = benchmark("encoders").measure(
            what,
            [d for d in data.split(",") if d],
            [e for e in encoder.split(",") if e],
            root=data_root,
            say=(lambda text: None)
            if as_json
            else lambda text: console.print(text, highlight=False, soft_wrap=True),
            progress=lambda done, total: bar.update(task, completed=done, total=total),
            limit=limit,
        )
    if as_json:
        print(json.dumps(figures, indent=1))


def _bar() -> Any:
    from rich.progress import Progress

    return Progress(console=console, transient=True, disable=not console.is_terminal)
