"""A finished run that can be asked: its models, rebuilt from config and checkpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ...client.worker import ClientWorker
from ...core.errors import FedloomError
from ...core.local import Predictor
from ...core.rng import numpy_rng
from ...data.federation import Federation
from ...engine.folder import Run
from ...engine.setup import Trained
from ..entries import Entry

Samples = dict[int, tuple[Tensor, Tensor]]  # by client: features and labels


@dataclass
class Opened:
    """A run that can be asked, and its place on the page."""

    entry: Entry
    run: Run
    trained: Trained

    @property
    def worker(self) -> ClientWorker:
        """The model and the data, on the device where they are asked."""
        return self.trained.setup.worker

    @property
    def federation(self) -> Federation:
        """The clients' data."""
        return self.worker.federation

    @property
    def slug(self) -> str:
        """The name of the entry, fit for the id of a panel."""
        return re.sub(r"[\W_]", "-", self.entry.name).strip("-")

    def predictor(self, k: int) -> Predictor:
        """Client `k`'s personal model, which becomes the resident one."""
        return self.trained.personal(k)

    def features(
        self, k: int, split: str, most: int, of: nn.Module | None = None
    ) -> tuple[Tensor, Tensor]:
        """Features and labels of up to `most` samples of client `k`.

        The features are what the body of its model gives, or the module `of` instead of the body.
        """
        x, y = self.federation.samples(k, split)
        if len(y) > most:
            chosen = numpy_rng(self.worker.seed, "views", split, k).permutation(len(y))[:most]
            rows = torch.from_numpy(np.sort(chosen))
            x, y = x[rows], y[rows]
        if not len(y):
            return torch.zeros(0, 1), y
        outputs: list[Tensor] = []
        predict = self.predictor(k)
        part = of or self.worker.of(k).model.body
        hook = part.register_forward_hook(lambda _m, _i, out: outputs.append(out.detach().cpu()))
        try:
            predict(x)
        finally:
            hook.remove()
        if sum(map(len, outputs)) != len(y) or outputs[0].ndim != 2:
            raise FedloomError(
                f"{self.entry.name}: its model does not give one vector of features per sample."
            )
        return torch.cat(outputs).to(torch.float32), y


def joined(samples: Samples) -> tuple[Tensor, Tensor]:
    """The features and the labels of all clients, one client after another."""
    features, labels = zip(*samples.values(), strict=True)
    if len({rows.shape[1] for rows in features}) > 1:
        raise FedloomError("clients' networks give different numbers of features.")
    return torch.cat(features), torch.cat(labels)


def opened(
    entry: Entry, run: Run, federations: dict[str, Federation], device: str = "cpu"
) -> Opened:
    """Open a run; `federations` keeps the data for further runs that have the same."""
    name = run.config.data_key()
    trained = Trained.from_folder(run, federation=federations.get(name), device=device)
    federations[name] = trained.setup.federation
    return Opened(entry, run, trained)
