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
from .selection import SELECTIONS, Candidates

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
    select: str = setting(
        "uniform",
        "How a round's clients are chosen: uniform, size (by number of samples), loss (of some, "
        "those with the highest losses) or oort (by loss, size and speed).",
    )
    edges: Count | None = setting(
        None,
        "The number of servers between the clients and the root; each adds up its clients' models "
        "and passes on one. By default there are none.",
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

    @field_validator("select")
    @classmethod
    def _known(cls, name: str) -> str:
        return SELECTIONS.spelling(name)

    @model_validator(mode="after")
    def _ordered(self) -> Schedule:
        if self.ratio_max is not None and self.ratio_max < self.ratio:
            raise ValueError(f"ratio_max = {self.ratio_max} must not be below ratio = {self.ratio}")
        return self

    def cohort(
        self,
        round: int,
        worker: ClientWorker,
        candidates: Candidates | None = None,
        extra: float = 0.0,
    ) -> tuple[list[int], set[int], dict[int, float]]:
        """The round's participants, those of them that get lost, and the work of the slow ones.

        Without `candidates` they are all clients that have training data, of whose losses nothing
        is known. A share of `extra` clients is asked beyond those that are wanted.
        """
        candidates = candidates or self.candidates(round, worker)
        rng = cohort_rng(worker.seed, round)
        wanted = self.wanted(len(able(worker)), rng)
        asked = min(len(candidates.who), wanted + part_of(wanted, extra))
        return self.chosen(candidates, asked, rng, worker)

    def candidates(self, round: int, worker: ClientWorker) -> Candidates:
        """All clients that have training data, of whose losses nothing is known."""
        who = able(worker)
        nothing = np.zeros(len(who))
        return Candidates(round, who, worker_sizes(worker)[who], nothing - 1.0, nothing)

    def chosen(
        self, candidates: Candidates, asked: int, rng: np.random.Generator, worker: ClientWorker
    ) -> tuple[list[int], set[int], dict[int, float]]:
        """So many of the candidates, those of them that get lost, and the work of the slow ones.

        Clients with the most data come first, which keeps workers busy to the end. The order is
        also the order of aggregation, so it must not depend on who finishes first.
        """
        sizes, round = worker_sizes(worker), candidates.round
        who = SELECTIONS.find(self.select)(candidates, asked, rng).tolist()
        chosen = sorted(who, key=lambda k: (-int(sizes[k]), k))
        lost = self._drawn(self.dropouts, chosen, len(sizes), round, worker.seed, "dropouts")
        slow = self._drawn(self.stragglers, chosen, len(sizes), round, worker.seed, "stragglers")
        return chosen, lost, dict.fromkeys(slow, self.straggler_work)

    def refuse_idle(self, worker: ClientWorker, extra: float) -> None:
        """Refuse settings that cannot do anything with so many clients."""
        clients = len(able(worker))
        if self.edges is not None and self.edges > clients:
            raise FedloomError(
                f"edges = {self.edges}, but only {clients} clients train: an edge needs a client."
            )
        idle = [f"extra = {extra:g}"] if extra else []
        idle += [f"select = {self.select}"] if self.select != "uniform" else []
        if idle and self.ratio_max is None and part_of(clients, self.ratio) >= clients:
            raise FedloomError(
                f"{idle[0]} is for rounds in which some clients take part, and here all {clients} "
                "do: say ratio=0.5, for instance."
            )

    def wanted(self, clients: int, rng: np.random.Generator) -> int:
        """How many of so many clients take part in a round."""
        count = max(1, part_of(clients, self.ratio))
        if self.ratio_max is not None:
            count = int(rng.integers(count, max(count, part_of(clients, self.ratio_max)) + 1))
        return count

    def rate(self, worker: ClientWorker) -> float:
        """The greatest chance of a client to take part in a round."""
        clients = len(able(worker))
        return max(1, part_of(clients, self.ratio_max or self.ratio)) / clients

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


def worker_sizes(worker: ClientWorker) -> np.ndarray:
    """Every client's number of training samples."""
    return client_sizes(worker.federation.clients, "train")


def able(worker: ClientWorker) -> np.ndarray:
    """The clients that have training data; others are never asked."""
    who = np.flatnonzero(worker_sizes(worker))
    if not len(who):
        raise FedloomError("no client has training data.")
    return who


def cohort_rng(seed: int, round: int) -> np.random.Generator:
    """What a round's cohort is drawn with: first its size, then its clients."""
    return numpy_rng(seed, round, "cohort")
