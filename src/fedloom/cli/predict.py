"""The command `predict`: classes with probabilities from a trained model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, DeviceOption, Trust, print_json, print_line

Client = Annotated[
    str | None,
    typer.Option(
        help="The client whose model of a run is meant: its number, or its domain's name. Default: "
        "the common model."
    ),
]


def predict(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="An exported folder, a .onnx file, or a run folder."),
    ],
    samples: Annotated[
        list[Path],
        typer.Argument(
            metavar="SAMPLES",
            help="Images, folders of images, or .csv files (of numbers, or with a column "
            "`path` or `text`).",
        ),
    ],
    client: Client = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes to print for a sample.")] = 3,
    device: DeviceOption = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Print what a trained model says about samples: classes with probabilities.

    Examples:

        fedloom predict my_model photo.jpg

        fedloom predict runs/pets photos --client hospital-a
    """
    from ..deploy import predict as answer

    predictions = answer(model, samples, client=client, trust=trust, device=device or "cpu")
    if as_json:
        print_json([asdict(each) for each in predictions])
        return
    for each in predictions:
        parts = []
        for name, share in list(each.classes.items())[:top]:
            parts.append(f"{name} {100 * share:.1f} %")
        print_line(f"{each.sample}: {', '.join(parts)}")
