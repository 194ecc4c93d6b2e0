"""`fedloom new NAME`: a method file, its page and its golden test to start from."""

from __future__ import annotations

import re
from pathlib import Path

from ..core.errors import FedloomError
from ..core.lookup import METHODS

_METHOD = '''"""{title}: one line on what it does.

Authors, "Title", venue and year.

Travels: all shared tensors down and up, as FedAvg.
Symbols: the paper's symbol -> our name, one by one; lambda -> `strength`.
Deviations: none. (Say here where you depart from the paper, and why.)
"""

from __future__ import annotations

IMPORTS


@method("{name}")
class {title}(FedAvg):
    """FedAvg with a penalty on long feature vectors. Replace it by your idea."""

    # `helps` is what your paper offers it for ("labels", "domains" ...). With the values of
    # `neutral` it must be FedAvg, bit by bit; leave it out if there are none.
    traits = FedAvg.traits.but(helps=(), neutral=({{"strength": 0.0}}, "fedavg"))
    # A field is a hyper-parameter: `--set strength=0.1`.
    strength: NotNegative = setting(
        0.01, "Strength of the penalty on long feature vectors.", symbol="lambda"
    )

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        # `down` is what the server sent, `state` what this client remembers, and `local` its data
        # and model.
        return local.fit(loss=self.loss)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The parts of the loss by name; they are summed, and reported one by one."""
        size = self.strength * penalty(batch.features)
        return cross_entropy(batch) | {{"size": size}}


def penalty(features: Tensor) -> Tensor:
    """The mean squared length of the feature vectors. A function of tensors is easy to test."""
    return features.square().sum(1).mean()
'''

_OUTSIDE = """from fedloom import Batch, Fit, Local, Payload, method
from fedloom.core.local import cross_entropy
from fedloom.core.settings import NotNegative, setting
from fedloom.methods.fedavg import FedAvg
from torch import Tensor"""

_INSIDE = """from torch import Tensor

from ..core.local import Batch, Fit, Local, cross_entropy
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import NotNegative, setting
from .fedavg import FedAvg"""

_PAGE = """# {title}

*Authors, "Title", venue and year.* Registered as `{name}`.

## The algorithm

| | |
|---|---|
| client keeps | nothing |
| travels down | all shared tensors |
| travels up | all shared tensors |
| local objective | CE + strength * mean squared length of features |
| server | mean weighted by sample counts |
| prediction | the common model |

## Symbols

| paper | here |
|---|---|
| lambda | `strength` |

## Deviations

None.

## Numbers

| setting | paper | here |
|---|---|---|
| | | run it and write down what came out |
"""

_TEST = '''"""{title}: numbers worked out by hand."""

import pytest
import torch

from fedloom.methods.{stem} import penalty


def test_penalty_by_hand() -> None:
    features = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    assert penalty(features).item() == pytest.approx((25 + 1) / 2)
'''

_TEST_OUTSIDE = '''"""{title}: numbers worked out by hand, and the contract of every method."""

import sys
from pathlib import Path

import pytest
import torch
from fedloom.core.lookup import find
from fedloom.testing.checks import applicable

Method = find(str(Path(__file__).with_name("{stem}.py")))
penalty = sys.modules[Method.__module__].penalty


def test_penalty_by_hand() -> None:
    features = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    assert penalty(features).item() == pytest.approx((25 + 1) / 2)


@pytest.mark.parametrize("check", applicable(Method()), ids=str)
def test_contract(check) -> None:
    check(Method())
'''


def write(name: str, folder: Path) -> list[Path]:
    """Write the three files: in a checkout of fedloom where they belong, else into `folder`."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise FedloomError(
            "a method's name is lower-case letters, digits and dashes, such as 'fedmine'; got "
            f"{name!r}."
        )
    if name in METHODS:
        raise FedloomError(f"there is a method named {name!r} already.")
    stem = name.replace("-", "_")
    title = "".join(part.capitalize() for part in name.split("-"))
    inside = Path("src/fedloom/methods").is_dir()
    if inside:
        files = [
            Path(f"src/fedloom/methods/{stem}.py"),
            Path(f"papers/{name}.md"),
            Path(f"tests/methods/test_{stem}.py"),
        ]
    else:
        files = [folder / f"{stem}.py", folder / f"{stem}.md", folder / f"test_{stem}.py"]
    for path in files:
        if path.exists():
            raise FedloomError(f"{path} exists already; nothing was written.")
    texts = (
        _METHOD.replace("IMPORTS", _INSIDE if inside else _OUTSIDE),
        _PAGE,
        _TEST if inside else _TEST_OUTSIDE,
    )
    for path, text in zip(files, texts, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(name=name, title=title, stem=stem))
    return files
