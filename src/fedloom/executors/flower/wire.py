"""Tasks and results as the content of Flower messages.

A message carries a download (one `ArrayRecord`, one `ConfigRecord` of scalars) and an `order`. Its
reply carries an upload, the scores and losses as a `MetricRecord`, and a `receipt`, or else a
`refusal` in words. Neither holds a client's state: the order names the version to use.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from ...core.errors import FedloomError
from ...core.payload import Payload
from ..base import Result, Task
from .codec import from_records, size, to_records
from .store import NOTHING, Version

# The message type of each kind of task.
TYPES = {"hello": "query.hello", "client": "train", "before": "evaluate"}
DESCRIBE = "query.site"


@dataclass(frozen=True)
class Order:
    """What goes with a download: which client does which task, and from which state."""

    experiment: str
    attempt: int  # how often the server has been started, this time included
    client: int
    kind: str
    round: int
    splits: str
    work: float
    metric: str  # the headline, which decides what is counted
    state_attempt: int  # the version of the state to use
    state_round: int
    limit: int  # bytes of tensors that an upload may have

    @property
    def version(self) -> Version:
        """The version of the state that the task produces."""
        return self.attempt, self.round

    @property
    def since(self) -> Version:
        """The version of the state that the task starts from."""
        return self.state_attempt, self.state_round


def ordered(task: Task, experiment: str, attempt: int, limit: int) -> Order:
    """The order for a task, whose state at the server is only the version of the client's state."""
    since = NOTHING
    if task.state:
        since = int(task.state.number("attempt")), int(task.state.number("round"))
    splits = " ".join(task.splits)
    return Order(
        experiment,
        attempt,
        task.clients[0],
        task.kind,
        task.round,
        splits,
        task.work,
        task.metric,
        *since,
        limit,
    )


def held(order: Order) -> Payload:
    """What the server remembers of a client's state: its version."""
    return Payload(attempt=order.attempt, round=order.round)


def write_task(order: Order, down: Payload) -> RecordDict:
    """An order and its download as the content of a message."""
    arrays, scalars = to_records(down)
    return RecordDict({"payload": arrays, "scalars": scalars, "order": ConfigRecord(asdict(order))})


def read_order(content: RecordDict) -> Order:
    """The order in a message."""
    record = content.config_records.get("order")
    try:
        return Order(**dict(record or {}))
    except TypeError:
        raise FedloomError(
            "the message holds no order that this version of fedloom can read."
        ) from None


def read_task(content: RecordDict, order: Order, state: Payload) -> Task:
    """The task in a message, with the state that the client adds."""
    down = _payload(content)
    kind: Any = order.kind
    splits = tuple(order.splits.split())
    return Task(kind, order.round, (order.client,), down, state, splits, order.work, order.metric)


def write_result(order: Order, result: Result) -> RecordDict:
    """A result as the content of a reply; its state stays behind."""
    arrays, scalars = to_records(result.upload)
    length = size(arrays)
    if length > order.limit:
        raise FedloomError(
            f"the upload has {length / 1e6:.1f} MB, the server takes {order.limit / 1e6:.1f}."
        )
    metrics: dict[str, Any] = {}
    for split, rows in result.scores.items():
        metrics[f"score/{split}"] = rows[0].tolist()
    for part, value in result.losses.items():
        metrics[f"loss/{part}"] = float(value)
    receipt = ConfigRecord(
        {"experiment": order.experiment, "client": order.client, "round": order.round}
    )
    return RecordDict(
        {
            "payload": arrays,
            "scalars": scalars,
            "metrics": MetricRecord(metrics),
            "receipt": receipt,
        }
    )


def write_refusal(why: str) -> RecordDict:
    """The content of a reply that says why there is no result."""
    return RecordDict({"refusal": ConfigRecord({"why": why})})


def read_result(content: RecordDict, order: Order) -> Result:
    """The result in a reply; whatever is wrong with it becomes an error of one sentence."""
    refusal = content.config_records.get("refusal")
    if refusal:
        raise FedloomError(str(refusal.get("why", "it did not say why")))
    receipt = dict(content.config_records.get("receipt") or {})
    if receipt != {"experiment": order.experiment, "client": order.client, "round": order.round}:
        wanted = f"client {order.client} in round {order.round}"
        raise FedloomError(f"the reply does not come from {wanted}, it says {receipt}")
    length = size(content.array_records.get("payload") or ArrayRecord())
    if length > order.limit:
        raise FedloomError(
            f"the upload has {length / 1e6:.1f} MB, more than the {order.limit / 1e6:.1f} allowed"
        )
    result = Result((order.client,), _payload(content))
    if order.kind == "client":
        result = replace(result, state=held(order))
    scores, losses = {}, {}
    for name, value in (content.metric_records.get("metrics") or MetricRecord()).items():
        kind, _, what = name.partition("/")
        if kind == "score" and what in order.splits.split() and isinstance(value, list):
            scores[what] = torch.tensor([value], dtype=torch.float64)
        elif kind == "loss" and isinstance(value, float):
            if not math.isfinite(value):
                raise FedloomError(f"the reply says that its {what} is {value}")
            losses[what] = value
        else:
            raise FedloomError(f"the reply has a metric {name!r} that was not asked for")
    return replace(result, scores=scores, losses=losses)


def _payload(content: RecordDict) -> Payload:
    arrays, scalars = content.array_records.get("payload"), content.config_records.get("scalars")
    return from_records(arrays or ArrayRecord(), scalars or ConfigRecord())
