"""Learning from strangers: culprits are found and left out, whatever they do."""

from pathlib import Path

import pytest
import torch

from fedloom.core.claims import Sizes
from fedloom.core.errors import FedloomError
from fedloom.core.payload import Payload
from fedloom.engine.trial import Arrived, Trial
from fedloom.executors.base import Result


class Mean:
    """The method: a plain mean, which takes no uploads of unlike length."""


SERVER = Payload(w=torch.ones(4))


def mean(pairs) -> Payload:
    uploads = [upload.tensor("w") for _, upload in pairs]
    if not uploads:
        return SERVER
    if any((w == 13).any() for w in uploads):
        raise ZeroDivisionError("thirteen")
    lengths = {len(w) for w in uploads}
    if len(lengths) > 1:
        raise ValueError("unlike lengths")
    if sum(bool((w == 7).any()) for w in uploads) > 1:
        raise ValueError("two sevens")
    return Payload(w=torch.stack(uploads).mean(0))


class Receiving:
    """A round that believes everything but the number 99."""

    def receive(self, result: Result) -> Payload:
        if (result.upload.tensor("w") == 99).any():
            raise FedloomError("ninety-nine")
        return result.upload


def outcome(folder: Path | None, *values: object) -> tuple[Trial, Payload]:
    results = []
    for k, value in enumerate(values):
        w = torch.full((4,), float(value)) if isinstance(value, int | float) else value
        results.append(Result((k,), Payload(w=w)))
    arrived = Arrived(Receiving(), results, folder)  # type: ignore[arg-type]
    trial = Trial(SERVER, mean, arrived, Sizes(Mean))
    return trial, trial.outcome()


@pytest.fixture(params=["memory", "disk"])
def folder(request, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "disk" else None


def test_honest_uploads_are_all_believed(folder) -> None:
    trial, server = outcome(folder, 1.0, 2.0, 3.0)
    assert trial.refused == {} and server.tensor("w").tolist() == [2.0] * 4


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (3e38, "of length"),
        (-3e38, "of length"),
        (float("nan"), "NaN or infinity"),
        (13.0, "ZeroDivisionError: thirteen"),
        (torch.ones(5), "ValueError: unlike lengths"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_culprit_is_found_wherever_it_stands(folder, lie, said: str, place: int) -> None:
    values: list[object] = [1.0, 3.0]
    values.insert(place, lie)
    trial, server = outcome(folder, *values)
    assert list(trial.refused) == [place] and said in trial.refused[place]
    assert server.tensor("w").tolist() == [2.0] * 4


def test_several_culprits_are_all_found(folder) -> None:
    trial, server = outcome(folder, 3e38, 1.0, 13.0, 3.0, -3e38)
    assert sorted(trial.refused) == [0, 2, 4] and server.tensor("w").tolist() == [2.0] * 4


def test_those_who_only_go_wrong_together_are_parted(folder) -> None:
    trial, server = outcome(folder, 7.0, 1.0, 7.0, 7.0)
    assert sorted(trial.refused) == [2, 3] and server.tensor("w").tolist() == [4.0] * 4


def test_if_all_lie_the_server_stays_as_it_was(folder) -> None:
    trial, server = outcome(folder, 13.0, 3e38)
    assert sorted(trial.refused) == [0, 1] and server.equal(SERVER)


def test_what_is_refused_on_arrival_is_never_tried(folder) -> None:
    trial, server = outcome(folder, 99.0, 1.0, 3.0)
    assert trial.arrived.refused == {0: "ninety-nine"} and list(trial.arrived.results) == [1, 2]
    assert server.tensor("w").tolist() == [2.0] * 4


def test_uploads_on_disk_take_no_memory_and_are_named_so_that_the_store_removes_them(
    tmp_path: Path,
) -> None:
    trial, _ = outcome(tmp_path, 1.0, 2.0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["upload-0.tmp", "upload-1.tmp"]
    assert trial.arrived._held == {}
