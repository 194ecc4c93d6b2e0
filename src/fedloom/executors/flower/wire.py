"""Tasks and results as the content of Flower messages.

A message carries a download (one `ArrayRecord`, one `ConfigRecord` of scalars) and an `order`. Its
reply carries an upload, the scores and losses as a `MetricRecord`, and a `receipt`, or else a
`refusal` in words. Neither holds a client's state: the order names the version to use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...core.errors import FedloomError, explain
from ...core.payload import Payload
from ..base import Result, Task
from .codec import from_records, to_records
from .store import NOTHING, Version
from .words import LONGEST_NAME, cut

# The message type of each kind of task.
TYPES = {"hello": "query.hello", "client": "train", "before": "evaluate"}
DESCRIBE = "query.site"
# What a reply consists of.
RECORDS = {
    "payload": ArrayRecord,
    "scalars": ConfigRecord,
    "metrics": MetricRecord,
    "receipt": ConfigRecord,
}
LARGEST = 1e12  # a loss, or a figure that scores are made of, above this is no measurement
PARTS = 64  # parts of a loss

Number = Annotated[int, Field(ge=0, lt=2**31)]


class Order(BaseModel):
    """What goes with a download: which client does which task, and from which state.

    A site does not believe the server either: splits to score are those that evaluation needs, and
    never the samples that a client trains on.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    experiment: Annotated[str, Field(max_length=200)]
    attempt: Number  # how often the server has been started, this time included
    client: Number
    kind: Literal["hello", "client", "before"]
    round: Number
    splits: Annotated[str, Field(pattern=r"^((validation|test)( (validation|test))?)?$")]
    work: Annotated[float, Field(gt=0, le=1)]
    metric: Annotated[str, Field(max_length=LONGEST_NAME)]  # the headline decides what is counted
    state_attempt: Number  # the version of the state to use
    state_round: Number
    limit: Annotated[int, Field(ge=0)]  # bytes that a reply may have

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
    kind: Any = task.kind  # never `common`, which is not for sites
    return Order(
        experiment=experiment,
        attempt=attempt,
        client=task.clients[0],
        kind=kind,
        round=task.round,
        splits=" ".join(task.splits),
        work=task.work,
        metric=task.metric,
        state_attempt=since[0],
        state_round=since[1],
        limit=limit,
    )


def held(order: Order) -> Payload:
    """What the server remembers of a client's state: its version."""
    return Payload(attempt=order.attempt, round=order.round)


def write_task(order: Order, down: Payload) -> RecordDict:
    """An order and its download as the content of a message."""
    arrays, scalars = to_records(down)
    what = ConfigRecord(order.model_dump())
    return RecordDict({"payload": arrays, "scalars": scalars, "order": what})


def read_order(content: RecordDict) -> Order:
    """The order in a message."""
    record = content.config_records.get("order")
    try:
        return Order.model_validate(dict(record or {}))
    except ValidationError as error:
        raise FedloomError(
            f"the message holds no order that this site follows: {cut(explain(error))}"
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
    metrics: dict[str, Any] = {}
    for split, rows in result.scores.items():
        metrics[f"score/{split}"] = rows[0].tolist()
    for part, value in result.losses.items():
        metrics[f"loss/{part}"] = float(value)
    content = RecordDict(
        {
            "payload": arrays,
            "scalars": scalars,
            "metrics": MetricRecord(metrics),
            "receipt": ConfigRecord(_receipt(order)),
        }
    )
    length = size(content)
    if length > order.limit:
        raise FedloomError(
            f"the reply has {length / 1e6:.1f} MB, the server takes {order.limit / 1e6:.1f}."
        )
    return content


def _receipt(order: Order) -> dict[str, Any]:
    return {"experiment": order.experiment, "client": order.client, "round": order.round}


def write_refusal(why: str) -> RecordDict:
    """The content of a reply that says why there is no result."""
    return RecordDict({"refusal": ConfigRecord({"why": cut(why)})})


def check_reply(content: RecordDict, limit: int) -> None:
    """Raise what a reply says in place of a result, or that it is too long to be looked at."""
    length = size(content)
    if length > limit:
        raise FedloomError(
            f"the reply has {length / 1e6:.1f} MB, more than the {limit / 1e6:.1f} allowed"
        )
    refusal = content.config_records.get("refusal")
    if refusal is not None:
        raise FedloomError(cut(refusal.get("why", "it did not say why")))


def read_result(content: RecordDict, order: Order) -> Result:
    """The result in a reply; whatever is wrong with it becomes an error of one sentence."""
    check_reply(content, order.limit)
    receipt = dict(content.config_records.get("receipt") or {})
    if receipt != _receipt(order):
        wanted = f"client {order.client} in round {order.round}"
        raise FedloomError(f"the reply does not come from {wanted}, it says {cut(receipt)}")
    for name in content:
        if name not in RECORDS:
            raise FedloomError(f"the reply has a record {cut(name, LONGEST_NAME)!r}, which is none")
    for name, kind in RECORDS.items():
        if not isinstance(content.get(name), kind):
            raise FedloomError(f"the reply has no {kind.__name__} {name!r}")
    result = Result((order.client,), _payload(content))
    if order.kind == "client":
        result = replace(result, state=held(order))
    scores, losses = _figures(content.metric_records.get("metrics") or {}, order.splits.split())
    if losses and order.kind != "client":
        raise FedloomError(f"the reply has a loss {cut(min(losses))!r}, though nothing was trained")
    return replace(result, scores=scores, losses=losses)


def _figures(
    metrics: Mapping[str, Any], splits: list[str]
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The scores by split, and the parts of the loss."""
    scores: dict[str, torch.Tensor] = {}
    losses: dict[str, float] = {}
    for name, value in metrics.items():
        kind, _, what = name.partition("/")
        if kind == "score" and what in splits and isinstance(value, list):
            scores[what] = torch.tensor([value], dtype=torch.float64)
        elif kind == "loss" and isinstance(value, float) and len(what) <= LONGEST_NAME:
            if not abs(value) <= LARGEST:  # not a number, either
                raise FedloomError(f"the reply says that its {cut(what)} is {value}")
            losses[what] = value
        else:
            shown = cut(name, LONGEST_NAME)
            raise FedloomError(f"the reply has a metric {shown!r} that was not asked for")
    if len(losses) > PARTS:
        raise FedloomError(f"the reply has a loss of {len(losses)} parts, more than {PARTS}")
    return scores, losses


def size(content: RecordDict) -> int:
    """How many bytes the content of a message has: tensors, texts and names, in all its records."""
    total = 0
    for name, record in content.items():
        total += len(name.encode(errors="replace"))
        for key, value in record.items():
            total += len(key.encode(errors="replace")) + _length(value)
    return total


def _length(value: Any) -> int:
    if isinstance(value, Array):
        return len(value.data) + 8 * len(value.shape) + _length(value.dtype) + _length(value.stype)
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, list):
        return sum(_length(entry) for entry in value)
    return 8


def _payload(content: RecordDict) -> Payload:
    arrays, scalars = content.array_records.get("payload"), content.config_records.get("scalars")
    return from_records(arrays or ArrayRecord(), scalars or ConfigRecord())
