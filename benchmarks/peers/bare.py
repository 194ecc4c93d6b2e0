"""FedAvg as one would write it by hand in PyTorch, in one process."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F

from .work import Clock, Work, accuracy, begin


def run(work: Work, clock: Clock) -> dict[str, torch.Tensor]:
    """All rounds; the common weights at the end."""
    job, model, (x, y) = work.job, work.model(), work.tests()
    common = {n: t.clone() for n, t in model.state_dict().items()}
    for round in range(1, job.rounds + 1):
        total = {n: torch.zeros_like(t) for n, t in common.items()}
        for k in range(job.clients):
            model.load_state_dict(common)
            model.train()
            optimizer = torch.optim.SGD(model.parameters(), lr=job.lr)
            for a, b in zip(*(t.split(job.batch) for t in work.train(k, round)), strict=True):
                optimizer.zero_grad()
                F.cross_entropy(model(a), b).backward()
                optimizer.step()
            for n, t in model.state_dict().items():
                total[n] += t  # all clients have the same number of samples
        common = {
            n: t / job.clients if t.is_floating_point() else t // job.clients
            for n, t in total.items()
        }
        model.load_state_dict(common)
        clock.round(accuracy(model, x, y))
    return common


if __name__ == "__main__":
    work, clock = begin(sys.argv[1])
    clock.answer(work.folder, run(work, clock))
