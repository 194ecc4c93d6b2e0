"""`fedloom flower`: a ready Flower app, and certificates to try a real federation with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .options import Clients, Data, EncoderOption, Model, Partition, Rounds, Set, console, given

app = typer.Typer(
    help="Any method on a Flower federation, simulated or real.", no_args_is_help=True
)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where to write the app.")],
    what: Annotated[
        str, typer.Argument(metavar="METHOD|FILE", help="A method or a run file `recipe.toml`.")
    ] = "fedavg",
    data: Data = None,
    partition: Partition = None,
    model: Model = None,
    encoder: EncoderOption = None,
    clients: Clients = None,
    rounds: Rounds = None,
    seed: Annotated[
        int | None, typer.Option(help="Everything random comes from it. Default: 0.")
    ] = None,
    set_: Set = None,
    federation: Annotated[
        list[str] | None,
        typer.Option(
            "--federation",
            help="A setting of the federation, `key=value`: `timeout=60`.",
            metavar="KEY=VALUE",
        ),
    ] = None,
) -> None:
    """Write a Flower app that runs a method: a pyproject.toml with every setting of the run.

    Examples:

        fedloom flower init app fedpcl --clients 20 --set rounds=5

        flwr run app --federation-config "num-supernodes=20 client-resources-num-cpus=1" --stream
    """
    from pydantic import ValidationError

    from ..core.errors import FedloomError, explain, unknown
    from ..engine.config import build, parse_set, read
    from ..executors.flower.app import write_app
    from ..executors.flower.settings import Settings

    start: dict[str, Any] = read(Path(what)) if what.endswith(".toml") else {"method": what}
    start |= given(
        data=data, partition=partition, model=model, encoder=encoder, clients=clients, seed=seed
    )
    config = build(start, parse_set(set_ or []) | given(rounds=rounds))
    # The server process that Flower starts has a working folder of its own.
    own = {
        "out": str((Path.cwd() / "runs" / folder.resolve().name).resolve()),
        **parse_set(federation or []),
    }
    if strange := [key for key in own if key not in Settings.model_fields]:
        raise unknown("setting of the federation", strange[0], Settings.model_fields)
    try:
        settings = Settings.model_validate(own)
    except ValidationError as error:
        raise FedloomError(f"federation: {explain(error)}") from None
    console.print(f"wrote {write_app(folder, config, settings)}", highlight=False, soft_wrap=True)


@app.command()
def certs(
    folder: Annotated[Path, typer.Argument(help="Where to write; it must be empty or not exist.")],
    sites: Annotated[int, typer.Option(help="How many sites get a key.", min=1)] = 3,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or address of the server, as often as needed. Default: this machine."
        ),
    ] = None,
) -> None:
    """Make a certificate authority, a server certificate and node keys, to try a federation with TLS. For tests."""
    from ..executors.flower.app import write_certificates

    for path in write_certificates(folder, sites, host or ["localhost", "127.0.0.1", "::1"]):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
