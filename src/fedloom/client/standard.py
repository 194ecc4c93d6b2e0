"""Frozen features, standardised: every feature gets mean 0 and the same deviation.

Encoders give features of any scale, and a step size that suits one of them makes a head swing or
crawl on another. So when clients first appear they report, once, the number of their training
samples and for each feature the sum and the sum of squares. The server adds the reports up and
sends mean and scale down with a client's first download; the client remembers them. The clients of
the first round decide: what is trained on one scale must not be shown another one later.

All of this crosses the boundary inside hellos, downloads and states, under a name of its own, and
is counted there. Methods never see it: they get features that are standardised already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..core.errors import FedloomError
from ..core.method import Method
from ..core.payload import Payload

GROUP = "standard"
# The mean squared length of a standardised sample, however many features it has. Values from 8 to
# 1024 were tried with two encoders and the default step size: with smaller ones heads learn more
# slowly, with larger ones they begin to swing (docs/encoders.md).
LENGTH = 256.0
# The squared length of an offset for heads that never leave their client: with it they also learn
# quickly how frequent classes are, which a head that is averaged must not run after.
OFFSET = 32.0
LEAST = 1e-3  # of the median variance: features that hardly vary are not blown up
CHUNK = 4096  # samples that are summed at once

# Whose statistics: those of all clients, each client's own, or nobody's.
Standardise = Literal["common", "own", "raw"]


class Standard(NamedTuple):
    """What turns features into standardised ones."""

    mean: Tensor
    scale: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return (x - self.mean).mul_(self.scale)

    def with_offset(self) -> Standard:
        """The same with a mean above 0 for every feature."""
        each = (OFFSET / len(self.mean)) ** 0.5
        return Standard(self.mean - each / self.scale, self.scale)


def reported(x: Iterable[Tensor], width: int) -> Payload:
    """What a client says of its features: how many samples, sums, and sums of squares."""
    count = 0
    sums = torch.zeros(width, dtype=torch.float64)
    squares = torch.zeros(width, dtype=torch.float64)
    for part in x:
        exact = part.to(torch.float64)
        count += len(exact)
        sums += exact.sum(0)
        squares += exact.square().sum(0)
    return Payload(count=count, sums=sums, squares=squares)


def merged(reports: Iterable[Payload]) -> Standard:
    """Mean and scale of all samples that were reported."""
    count = 0
    sums = squares = torch.zeros((), dtype=torch.float64)
    for report in reports:
        _refuse_impossible(report)
        count += int(report.number("count"))
        sums = sums + report.tensor("sums")
        squares = squares + report.tensor("squares")
    mean = sums / count
    variance = (squares / count - mean.square()).clamp(min=0)
    varying = variance[variance > 0]
    if not len(varying):  # a single sample, or many that are the same: nothing to scale by
        varying = variance = torch.ones_like(variance)
    deviation = variance.clamp(min=LEAST * float(varying.median())).sqrt()
    scale = (LENGTH / len(mean)) ** 0.5 / deviation
    return Standard(mean.float(), scale.float())


def _refuse_impossible(report: Payload) -> None:
    """Refuse sums that no samples have: squares are never less than the squared mean."""
    count, sums = report.number("count"), report.tensor("sums")
    least = sums.square() / max(count, 1)
    if count < 1 or bool((report.tensor("squares") < least * (1 - 1e-6) - 1e-6).any()):
        raise FedloomError("reported sums and squares of features that no samples can have.")


# ------------------------------------------------------------------------------ on the way


def with_group(payload: Payload, group: Payload | Standard) -> Payload:
    """The payload with a report, or with mean and scale, under the name that methods never see."""
    if isinstance(group, Standard):
        group = Payload(mean=group.mean, scale=group.scale)
    return payload.replace(**{GROUP: group})


def without_group(payload: Payload) -> Payload:
    """The payload as its method knows it."""
    kept = {name: value for name, value in payload.items() if not name.startswith(f"{GROUP}/")}
    return Payload(kept) if len(kept) < len(payload) else payload


def standard_in(*payloads: Payload) -> Standard | None:
    """Mean and scale, from the first payload that has them."""
    for payload in payloads:
        if f"{GROUP}/mean" in payload:
            return Standard(payload.tensor(f"{GROUP}/mean"), payload.tensor(f"{GROUP}/scale"))
    return None


def joined(method: Method, server: Payload, hellos: Mapping[int, Payload]) -> Payload:
    """The server with newcomers; from the first of them it learns mean and scale."""
    greetings = {k: without_group(hello) for k, hello in hellos.items()}
    reports = []
    for hello in hellos.values():
        if f"{GROUP}/count" in hello and hello.number(f"{GROUP}/count") > 0:
            reports.append(hello.group(GROUP))
    server = method.join(server, greetings)
    if reports and standard_in(server) is None:
        return with_group(server, merged(reports))
    return server


def told(down: Payload, server: Payload, state: Payload) -> Payload:
    """A download with mean and scale, for a client that remembers nothing yet."""
    standard = standard_in(server)
    if standard is None or state:
        return down
    return with_group(down, standard)
