"""A user's own network: head after body must be what its own forward does."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedloom
from fedloom.core.errors import FedloomError
from fedloom.data.dataset import Dataset
from fedloom.data.federation import Client, Federation
from fedloom.models.base import split
from fedloom.models.fit_for_use import refuse_unfit


class Net(nn.Module):
    """Two layers; `ending` is applied to the logits, as in PyTorch's MNIST example."""

    def __init__(self, ending: bool) -> None:
        super().__init__()
        self.ending = ending
        self.fc1, self.drop, self.fc2 = nn.Linear(6, 5), nn.Dropout(), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc2(self.drop(F.relu(self.fc1(x))))
        return F.log_softmax(logits, dim=1) if self.ending else logits


def own() -> Federation:
    y = torch.arange(6) % 3
    zeros = torch.zeros(6, dtype=torch.int64)
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    data = Dataset(x, y, zeros, zeros.bool(), ("a", "b", "c"), ("d",), "mine")
    rows = np.arange(6)
    return Federation(data, (Client(rows, rows[:0], rows),) * 2)


def test_a_softmax_behind_the_head_is_refused_before_training() -> None:
    with pytest.raises(FedloomError, match="its own forward differ by up to"):
        fedloom.run("fedavg", own(), model=split(Net(ending=True)), rounds=1)


def test_an_honest_network_is_left_as_it_was() -> None:
    model = split(Net(ending=False)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    refuse_unfit(model, torch.randn(2, 6, generator=torch.Generator().manual_seed(1)))
    assert model.training and torch.equal(torch.get_rng_state(), state)
    assert isinstance(model.body.fc2, nn.Identity)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert fedloom.run("fedavg", own(), model=model, rounds=1).summary["rounds"] == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_types_of_numbers_are_refused_at_once(dtype: torch.dtype) -> None:
    with pytest.raises(FedloomError, match=rf"is {dtype}, but networks are float32"):
        fedloom.run("fedavg", own(), model=split(Net(ending=False)).to(dtype), rounds=1)


class Parts(nn.Module):
    """A body and a head; methods need no forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(width, 5), nn.Linear(5, 3)


class TwoAnswers(Parts):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return self.head(features), features


class TwoInputs(Parts):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x * mask))
        return logits


def test_a_network_without_a_forward_of_its_own_is_fine() -> None:
    assert fedloom.run("fedavg", own(), model=Parts(6), rounds=1).summary["rounds"] == 1


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Parts(7), r"head after its body cannot take 2 samples of shape \(6,\).*RuntimeError"),
        (TwoAnswers(6), "own forward gives a tuple, not a tensor of logits"),
        (TwoInputs(6), r"own forward cannot take 2 samples.*TypeError.*'mask'"),
    ],
)
def test_a_network_that_fails_on_two_samples_is_refused_at_once(
    model: nn.Module, said: str
) -> None:
    with pytest.raises(FedloomError, match=said):
        fedloom.run("fedavg", own(), model=model, rounds=1)
