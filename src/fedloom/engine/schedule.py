"""Who takes part in which round, and when the run is evaluated."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ..client.worker import ClientWorker
from ..core.errors import FedloomError
from ..core.rng import numpy_rng
from ..core.settings import Count, Share, part_of, setting
from ..data.clients import sizes as client_sizes
from ..metrics.registry import DEFAULT, headline
from .panel import panel

Ratio = Annotated[float, Field(gt=0, le=1)]
ByRound = dict[int, list[int]]  # round -> clients


class Schedule(BaseModel):
    """Rounds, participation and evaluation of a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: Count = setting(10, "The number of rounds of the run.", symbol="T")
    ratio: Ratio = setting(1.0, "The share of the clients that takes part in a round.", symbol="C")
    ratio_max: Ratio | None = setting(
        None,
        "The largest share of clients in a round; if given, each round draws its number of clients "
        "between ratio and ratio_max.",
    )
    dropouts: Share | ByRound = setting(
        0.0,
        "The chance that a participant is lost after its download, or a table of those who are, by "
        "round.",
    )
    stragglers: Share | ByRound = setting(
        0.0, "The chance that a participant is slow, or a table of those who are, by round."
    )
    straggler_work: Ratio = setting(0.5, "The share of its steps that a slow client manages.")
    eval_every: Count = setting(
        1, "The number of rounds between evaluations; the last round is always evaluated."
    )
    eval_clients: Count | None = setting(
        None,
        "The number of clients that are scored in an evaluation, always the same ones, drawn in "
        "proportion to the domains' numbers of clients; by default all are.",
    )
    eval_all: bool = setting(
        True,
        "Whether a run that scores `eval_clients` of the clients scores all of them once at its "
        "end.",
    )
    patience: Count | None = setting(
        None,
        "The number of evaluations without a better value of `metric` on validation data after "
        "which the run stops.",
    )
    metric: str = setting(
        DEFAULT,
        "The metric that comes first in progress, summary and leaderboard, and that validation "
        "data is judged by.",
    )
    checkpoint_every: Count = setting(
        1,
        "The number of rounds between checkpoints; where saving takes long there are fewer.",
        affects="nothing",
    )

    @field_validator("metric")
    @classmethod
    def _spelling(cls, name: str) -> str:
        return headline(name).name

    @model_validator(mode="after")
    def _ordered(self) -> Schedule:
        if self.ratio_max is not None and self.ratio_max < self.ratio:
            raise ValueError(f"ratio_max = {self.ratio_max} must not be below ratio = {self.ratio}")
        return self

    def cohort(
        self, round: int, worker: ClientWorker
    ) -> tuple[list[int], set[int], dict[int, float]]:
        """The round's participants, those of them that get lost, and the work of the slow ones.

        Clients with the most data come first, which keeps workers busy to the end. The order is
        also the order of aggregation, so it must not depend on who finishes first. Clients without
        training data are never asked.
        """
        sizes = client_sizes(worker.federation.clients, "train")
        able = np.flatnonzero(sizes)
        if not len(able):
            raise FedloomError("no client has training data.")
        rng = numpy_rng(worker.seed, round, "cohort")
        count = max(1, part_of(len(able), self.ratio))
        if self.ratio_max is not None:
            count = int(rng.integers(count, max(count, part_of(len(able), self.ratio_max)) + 1))
        chosen = sorted(
            rng.choice(able, size=count, replace=False).tolist(), key=lambda k: (-int(sizes[k]), k)
        )
        lost = self._drawn(self.dropouts, chosen, len(sizes), round, worker.seed, "dropouts")
        slow = self._drawn(self.stragglers, chosen, len(sizes), round, worker.seed, "stragglers")
        return chosen, lost, dict.fromkeys(slow, self.straggler_work)

    def rate(self, worker: ClientWorker) -> float:
        """The greatest chance of a client to take part in a round."""
        able = int(np.count_nonzero(client_sizes(worker.federation.clients, "train")))
        return max(1, part_of(able, self.ratio_max or self.ratio)) / max(1, able)

    @staticmethod
    def _drawn(
        who: float | ByRound, chosen: list[int], clients: int, round: int, seed: int, purpose: str
    ) -> set[int]:
        if isinstance(who, dict):
            for k in who.get(round, ()):
                if not 0 <= k < clients:
                    raise FedloomError(
                        f"{purpose} of round {round} name client {k}; there are {clients} clients."
                    )
            return set(who.get(round, ())) & set(chosen)
        draws = numpy_rng(seed, round, purpose).random(len(chosen))
        return {k for k, draw in zip(chosen, draws, strict=True) if draw < who}

    def evaluates(self, round: int) -> bool:
        """Whether the run is evaluated after this round (always after the last)."""
        return round % self.eval_every == 0 or round == self.rounds

    def scored(self, worker: ClientWorker) -> np.ndarray | None:
        """The numbers of the clients that an evaluation scores; None for all of them."""
        return panel(self.eval_clients, worker) if self.eval_clients else None

    def exhausted(self, metrics: list[dict[str, Any]]) -> bool:
        """Whether the metric has not improved on validation data for `patience` evaluations."""
        if not self.patience:
            return False
        held = [m["validation"]["personal"] for m in metrics]
        held = [value for value in held if value is not None]
        if not held:
            return False
        best = np.argmax(held) if headline(self.metric).higher else np.argmin(held)
        return len(held) - 1 - int(best) >= self.patience
