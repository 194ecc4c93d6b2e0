"""The small inputs on which the authors' code and ours are compared.

All numbers come from one generator that any program can rebuild, and every sample is seen in the
order in which it is stored, so that two programs take the same steps:

    s(0) = seed,   s(i) = (1103515245 s(i-1) + 12345) mod 2^31,   u(i) = s(i) / 2^31

`draws(seed, n)` are u(1) to u(n). A tensor takes them row by row, from [0, 1) to [low, high).
The world of seed S has three clients and four classes. Client k has SIZES[k] training samples,
then HELD_OUT validation and HELD_OUT test samples. Their inputs are the rows of tensor(S + 10 + k),
between -1 and 1; their labels floor(3 u + k) mod 4 for u in draws(S + 20 + k), so that each client
lacks a class.
The network has one hidden layer of five features, with biases: Linear(6, 5), ReLU, Linear(5, 4);
with `norm` there is a BatchNorm1d(5) in front of the ReLU, with weights 1 and biases 0. The other
weights are of tensor(S + 1), between -0.5 and 0.5: body weight, body bias, head weight, head bias,
one after the other, without the biases if there are none.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.data.federation import Client, Dataset, Federation
from fedloom.models import Split

INPUTS, FEATURES, CLASSES = 6, 5, 4
SIZES = (12, 8, 16)
HELD_OUT = 4
BATCH = 4


def draws(seed: int, count: int) -> list[float]:
    """Numbers from 0, below 1."""
    numbers, state = [], seed
    for _ in range(count):
        state = (1103515245 * state + 12345) % 2**31
        numbers.append(state / 2**31)
    return numbers


def tensor(seed: int, *shape: int, low: float = -1.0, high: float = 1.0) -> Tensor:
    """A tensor of draws between two values."""
    u = torch.tensor(draws(seed, math.prod(shape)), dtype=torch.float64)
    return (low + (high - low) * u).float().reshape(shape)


def labels(seed: int, client: int, count: int) -> Tensor:
    """The labels of a client's samples."""
    return torch.tensor([int(3 * u + client) % CLASSES for u in draws(seed + 20 + client, count)])


def world(seed: int) -> Federation:
    """The three clients of a seed."""
    xs, ys, clients, start = [], [], [], 0
    for k, size in enumerate(SIZES):
        count = size + 2 * HELD_OUT
        xs.append(tensor(seed + 10 + k, count, INPUTS))
        ys.append(labels(seed, k, count))
        rows = np.arange(start, start + count)
        clients.append(Client(rows[:size], rows[size:-HELD_OUT], rows[-HELD_OUT:]))
        start += count
    data = Dataset(
        name="parity",
        x=torch.cat(xs),
        y=torch.cat(ys),
        domain=torch.zeros(start, dtype=torch.int64),
        test=torch.zeros(start, dtype=torch.bool),
        classes=tuple("abcd"),
        domains=("one",),
    )
    return Federation(data, tuple(clients))


def network(seed: int, norm: bool = False, bias: bool = True) -> Split:
    """The network of a seed."""
    first = nn.Linear(INPUTS, FEATURES, bias=bias)
    head = nn.Linear(FEATURES, CLASSES, bias=bias)
    layers: list[nn.Module] = [first, nn.ReLU()]
    if norm:
        layers.insert(1, nn.BatchNorm1d(FEATURES))
    parameters = [*first.parameters(), *head.parameters()]
    values = tensor(seed + 1, sum(p.numel() for p in parameters), low=-0.5, high=0.5)
    with torch.no_grad():
        for parameter, part in zip(
            parameters, values.split([p.numel() for p in parameters]), strict=True
        ):
            parameter.copy_(part.reshape(parameter.shape))
    return Split(nn.Sequential(*layers), head, FEATURES)
