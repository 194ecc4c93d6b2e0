"""How a predictor is scored: on whose samples, and what is counted of its answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ..core.errors import FedloomError
from ..core.local import Predictor
from ..metrics.registry import DEFAULT, Answers, Sheet, kind_of, sheet
from .large import eval_batch
from .worker import ClientWorker, Network


def score(
    worker: ClientWorker,
    predict: Predictor | None,
    clients: Sequence[int],
    splits: Sequence[str],
    metric: str = DEFAULT,
) -> dict[str, Tensor]:
    """By split, a row of tallies for each client; `metrics.registry.sheet` says what stands in it.

    A split of which none of these clients has samples is left out.
    """
    scores: dict[str, Tensor] = {}
    if predict is None:
        return scores
    kind = kind_of(worker.federation.data.kind)
    for split in splits:
        if not any(len(worker.rows(k, split)) for k in clients):
            continue
        wanted = sheet(kind, worker.classes, split, metric)
        blocks = [wanted.rows(a) for a in _answers(worker, predict, clients, split, wanted)]
        scores[split] = torch.from_numpy(np.concatenate(blocks))
    return scores


def _answers(
    worker: ClientWorker, predict: Predictor, clients: Sequence[int], split: str, wanted: Sheet
) -> Iterator[Answers]:
    """What is predicted for each client's samples.

    A network is shown those of several clients at once; another predictor may look at everything
    it is given, so it gets one client's samples at a time.
    """
    data = worker.federation.data
    enough = eval_batch(data.x.shape) if isinstance(predict, Network) else 1
    waiting: list[np.ndarray] = []
    number = 0
    for i, k in enumerate(clients):
        waiting.append(worker.rows(k, split))
        number += len(waiting[-1])
        if number < enough and i + 1 < len(clients):
            continue
        yield _predicted(worker, predict, waiting, wanted)
        waiting = []
        number = 0


def _predicted(
    worker: ClientWorker, predict: Predictor, groups: list[np.ndarray], wanted: Sheet
) -> Answers:
    """What is predicted for groups of samples, one group per client."""
    data = worker.federation.data
    chosen = groups[0] if len(groups) == 1 else np.concatenate(groups)
    rows = torch.from_numpy(chosen)
    labels = data.y.index_select(0, rows)
    if not len(chosen):
        nothing = np.zeros(0, dtype=np.int64)
        blank = np.zeros((0, worker.classes), dtype=np.float32)
        return Answers(nothing, nothing, nothing, len(groups), worker.classes, blank)
    output = predict(worker.samples(rows))
    predicted = output.argmax(1).cpu()
    if predicted.shape != labels.shape:
        raise FedloomError(
            f"predictions of shape {tuple(predicted.shape)} do not fit labels of shape "
            f"{tuple(labels.shape)}."
        )
    scores = None
    if wanted.needs_scores:
        scores = output.detach().float().cpu().numpy()
    pixels = labels.numel() // len(chosen)
    owner = np.repeat(np.arange(len(groups)), [pixels * len(group) for group in groups])
    return Answers(
        predicted.flatten().numpy(),
        labels.flatten().to(torch.int64).numpy(),
        owner,
        len(groups),
        worker.classes,
        scores,
    )
