"""`fedloom flower`: a ready Flower app, and certificates to try a real federation with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import FedloomError, explain, unknown
from .groups import World, grouped
from .options import DeviceOption, Seed, Set, Trust, given, key_values, print_line
from .run import configured

if TYPE_CHECKING:
    from ..executors.flower.settings import Settings

app = typer.Typer(
    help="Run any method on a Flower federation, simulated or real.", no_args_is_help=True
)

AppFolder = Annotated[Path, typer.Argument(help="Where to write the app.")]
What = Annotated[
    str, typer.Argument(metavar="METHOD|FILE", help="A method or a run file `recipe.toml`.")
]
FederationSettings = Annotated[
    list[str] | None,
    key_values("--federation", "A setting of the federation as `key=value`, such as `timeout=60`."),
]


@app.command()
@grouped
def init(
    *,
    folder: AppFolder,
    what: What = "fedavg",
    world: World,
    seed: Seed = None,
    set_: Set = None,
    federation: FederationSettings = None,
    device: DeviceOption = None,
    trust: Trust = False,
) -> None:
    """Write a Flower app that runs a method: a pyproject.toml with every setting of the run.

    Examples:

        fedloom flower init app fedpcl --clients 20 --set rounds=5

        flwr run app --federation-config "num-supernodes=20 client-resources-num-cpus=1" --stream
    """
    from ..engine.config import parse_set
    from ..executors.flower.app import write_app

    changes = parse_set(set_ or []) | given(rounds=world.rounds)
    config = configured(what, world.start(seed=seed), changes, trust)
    chosen = list(federation or [])
    if device is not None:
        chosen.append(f"device={device}")
    print_line(f"wrote {write_app(folder, config, _settings(folder, chosen))}")


def _settings(folder: Path, items: list[str]) -> Settings:
    """The federation's settings, with the run folder as an absolute path.

    The server process that Flower starts has a working folder of its own.
    """
    from pydantic import ValidationError

    from ..engine.config import parse_set
    from ..executors.flower.settings import Settings

    values = {"out": str(Path.cwd().resolve() / "runs" / folder.resolve().name)}
    values |= parse_set(items)
    for key in values:
        if key not in Settings.model_fields:
            raise unknown("setting of the federation", key, Settings.model_fields)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise FedloomError(f"federation: {explain(error)}") from None


@app.command()
def certs(
    folder: Annotated[Path, typer.Argument(help="Where to write; it must be empty or not exist.")],
    sites: Annotated[int, typer.Option(help="The number of sites that get a key.", min=1)] = 3,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name or address of the server; repeat it for more. This machine can always "
            "call it localhost, 127.0.0.1 and ::1."
        ),
    ] = None,
) -> None:
    """Make certificates and node keys to try a federation with TLS. For tests only."""
    from ..executors.flower.certificates import write_certificates

    # The SuperLink's own processes, and nodes on the same machine, reach it by the loopback.
    names = dict.fromkeys([*(host or []), "localhost", "127.0.0.1", "::1"])
    for path in write_certificates(folder, sites, names):
        print_line(f"wrote {path}")
