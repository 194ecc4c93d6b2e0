"""`fedloom data`: which data sets there are, what is in them, who would get what."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.progress import Progress
from rich.table import Column, Table

from ..core.errors import FedloomError
from .groups import Reading, grouped
from .keep import about, facts, get, import_, presence, what_to_type
from .options import AsJson, Clients, Partition, Root, console, given, print_json

if TYPE_CHECKING:
    from ..data.federation import Dataset, Federation

app = typer.Typer(help="The data sets at hand.", invoke_without_command=True)
Name = Annotated[str, typer.Argument(help="A known name (see `fedloom data`) or a path.")]
Seed = Annotated[int, typer.Option(help="Seed of the partition.")]
MOST_NAMED = 10  # classes that a note names


@dataclass(frozen=True)
class Dealing:
    """How a data set is dealt to clients."""

    partition: Partition = None
    clients: Clients = None
    seed: Seed = 0


@app.callback()
def data(context: typer.Context, as_json: AsJson = False) -> None:
    """List data sets and partitions; names are looked up below `FEDLOOM_DATA` or `--data-root`."""
    if context.invoked_subcommand is None:
        list_(None, as_json)


@app.command("list")
def list_(data_root: Root = None, as_json: AsJson = False) -> None:
    """The data sets known by name, whether they are there, what to type, and the partitions."""
    from ..data import partitions
    from ..data.catalogue import ABOUT, data_folder
    from ..data.readers.base import listed_formats

    if as_json:
        _print_lists_as_json(data_root)
        return
    # A name or a command cut short could not be typed, so these keep their width.
    table = Table(Column("data set", no_wrap=True), Column("there", no_wrap=True))
    table.box = box.SIMPLE_HEAD
    table.add_column("what it is, and what to type")
    for name, description in ABOUT.items():
        about = f"{description}\n[bold]{what_to_type(name, data_root)}[/]"
        table.add_row(name, presence(name, data_root), about)
    console.print(table)
    table = Table(Column("partition", no_wrap=True), Column("option", overflow="fold"))
    table.box = box.SIMPLE_HEAD
    table.add_column("what it does")
    for name, partition in partitions.PARTITIONS.items():
        table.add_row(name, "", partitions.doc(name))
        for key, option in partition.options.items():
            table.add_row("", f"{key}={option.default}", option.description)
    console.print(table)
    console.print(
        f"The data sets are in {data_folder(data_root)} (FEDLOOM_DATA or --data-root says where); "
        "`fedloom data about NAME` says what RAW looks like. fedloom also takes the path of: "
        f"{listed_formats()}.",
        highlight=False,
    )


def _print_lists_as_json(data_root: str | None) -> None:
    from ..data import partitions
    from ..data.catalogue import ABOUT

    sets = {name: facts(name, data_root) for name in ABOUT}
    options = {name: partitions.options(name) for name in partitions.PARTITIONS.names()}
    print(json.dumps({"data": sets, "partitions": options}, indent=1, default=str))


app.command("import")(import_)
app.command("get")(get)
app.command("about")(about)


@app.command()
@grouped
def show(*, name: Name, dealing: Dealing, reading: Reading, as_json: AsJson = False) -> None:
    """Read a data set and say what is in it; with `--partition`, who would get what."""
    partition, clients = dealing.partition, dealing.clients
    if partition is None:
        if clients is not None:
            raise FedloomError("--clients is for a partition: say --partition NAME too.")
        clients = 1  # who has everything, which any data set allows
    federation = _deal(name, partition or "iid", clients, dealing.seed, reading)
    facts = _facts(federation.data)
    if partition is not None:
        facts["partition"] = federation.description
        facts["clients"] = federation.describe()["clients"]
    if as_json:
        print_json(facts)
        return
    table = Table.grid(padding=(0, 2))
    for key, value in facts.items():
        if key != "clients":
            table.add_row(key, escape(_as_text(value)))
    console.print(table, highlight=False)
    if isinstance(facts.get("clients"), dict):
        text = f"{facts['clients']['n']} clients, too many to be listed; --json sums them up."
        console.print(text, highlight=False)
    elif partition is not None:
        console.print(_clients_table(facts["clients"]))


def _facts(data: Dataset) -> dict[str, Any]:
    """What is in a data set."""
    samples_of_domains = {}
    for d, domain in enumerate(data.domains):
        samples_of_domains[domain] = int((data.domain == d).sum())
    facts: dict[str, Any] = {
        "name": data.name,
        "kind": data.kind,
        "samples": len(data.y),
        "train": int((~data.test).sum()),
        "test": int(data.test.sum()),
        "shape": list(data.x.shape[1:]),
        "classes": list(data.classes),
        "domains": samples_of_domains,
    }
    if data.validation is not None:
        facts["train"] -= int(data.validation.sum())
        facts["validation"] = int(data.validation.sum())
    if data.group is not None:
        facts["groups"] = len(data.group.unique())
    return facts


def _clients_table(clients: list[dict[str, Any]]) -> Table:
    """Who has what."""
    parts = ["train", "validation", "test"]
    if clients and "groups" in clients[0]:
        parts.append("groups")
    headings = ("client", "domain", *parts, "training samples per class")
    table = Table(*headings, box=box.SIMPLE_HEAD)
    for k, client in enumerate(clients):
        sizes = [str(client[part]) for part in parts]
        domain = escape(client["domain"] or "several")
        table.add_row(str(k), domain, *sizes, " ".join(map(str, client["counts"])))
    return table


@app.command()
@grouped
def check(*, path: Name, reading: Reading) -> None:
    """Read a data set completely and say whether it can be used; what is wrong is named."""
    from ..data.catalogue import load
    from ..engine.config import build

    config = build({"data": path, "partition": "iid"}, reading.changes())
    with _progress_bar() as progress:
        data = load(path, config.source, root=reading.data_root, progress=progress)
    if len(data.classes) < 2:
        raise FedloomError(
            f"{path} can be read, but all its {len(data.y)} samples are of one class, "
            f"{data.classes[0]!r}: there is nothing to learn (of images, each class wants a folder "
            "of its own)."
        )
    tested = int(data.test.sum())
    classes = _counted(len(data.classes), "class", "classes")
    domains = _counted(len(data.domains), "domain", "domains")
    groups = ""
    if data.group is not None:
        number = _counted(len(data.group.unique()), "group", "groups")
        groups = f", {number} (patients, say) that no split tears apart"
    _print_plain(
        f"{path} is fine: {len(data.y) - tested} training and {tested} test samples "
        f"({data.kind}), {classes}, {domains}{groups}."
    )
    for doubt in _doubts(data):
        _print_plain(f"note: {doubt}")


def _counted(number: int, one: str, many: str) -> str:
    """A number with its noun."""
    if number == 1:
        return f"1 {one}"
    return f"{number} {many}"


@app.command()
@grouped
def picture(
    *,
    name: Name,
    out: Annotated[Path, typer.Option(help="The picture to write, a .png.")],
    dealing: Dealing,
    reading: Reading,
) -> None:
    """Draw samples of every domain, and a map and histograms of which client gets what."""
    from ..report.pictures import picture as draw

    if out.suffix.lower() != ".png":
        raise FedloomError(f"--out wants the name of a .png, got {str(out)!r}.")
    partition = dealing.partition or "auto"
    drawn = draw(_deal(name, partition, dealing.clients, dealing.seed, reading))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(drawn)
    except OSError as error:
        raise FedloomError(f"cannot write {out}: {error.strerror or error}.") from error
    _print_plain(f"wrote {out}")


@app.command()
@grouped
def write(
    *,
    name: Name,
    folder: Annotated[Path, typer.Argument(help="The folder to write, new or empty.")],
    per_class: Annotated[
        int | None,
        typer.Option(min=1, help="At most so many images of a class in each domain and part."),
    ] = None,
    reading: Reading,
) -> None:
    """Write the images of a data set as files, with a manifest: a form for your own images."""
    from ..data.catalogue import load
    from ..data.unfold import write_images
    from ..engine.config import build

    config = build({"data": name, "partition": "iid"}, reading.changes())
    with _progress_bar() as progress:
        data = load(name, config.source, root=reading.data_root, progress=progress)
    try:
        number = write_images(data, folder, per_class)
    except OSError as error:
        raise FedloomError(f"cannot write {folder}: {error.strerror or error}.") from error
    chosen = ""
    if per_class is not None:
        chosen = f" (at most {per_class} of a class in each domain and part)"
    _print_plain(f"wrote {number} images{chosen} and {folder / 'manifest.csv'}")


def _deal(
    name: str, partition: str, clients: int | None, seed: int, reading: Reading
) -> Federation:
    """The data set dealt to clients as a run would have it."""
    from ..engine.config import build
    from ..engine.setup import deal

    start = {"data": name, "seed": seed, "partition": partition, **given(clients=clients)}
    config = build(start, reading.changes())
    with _progress_bar() as progress:
        return deal(config, progress)


def _print_plain(text: str) -> None:
    """Print a line in which a path or a class may hold what rich takes for markup."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _as_text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {number}" for key, number in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _doubts(data: Dataset) -> Iterator[str]:
    """What can be read but will hardly serve."""
    present = set(data.y.unique().tolist())
    lost = []
    for c, name in enumerate(data.classes):
        if c not in present:
            lost.append(name)
    if data.y.ndim == 1 and lost:
        named = ", ".join(lost[:MOST_NAMED])
        if len(lost) > MOST_NAMED:
            named += f" and {len(lost) - MOST_NAMED} more"
        yield f"no sample of {named} is left."
    if not data.test.any():
        yield (
            "without test samples nothing can be measured; --set split=merged takes them from the "
            "others."
        )
    if data.test.all():
        yield "there are no training samples."


@contextmanager
def _progress_bar() -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar for decoding, on a terminal, from the first image on."""
    if not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("reading images", visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)
