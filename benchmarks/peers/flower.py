"""The same work by Flower's simulation, with a Ray actor per worker.

The server evaluates the common model. Weights travel as Flower's arrays; each actor keeps one model
and reads the data once.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from .work import Work, accuracy, begin

client = ClientApp()


@cache
def resident(folder: str) -> tuple[Work, torch.nn.Module]:
    """What stays in an actor between clients."""
    torch.set_num_threads(1)
    work = Work(Path(folder))
    return work, work.model()


@client.train()
def train(message: Message, context: Context) -> Message:
    """One local epoch."""
    work, model = resident(os.environ["FEDLOOM_WORK"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    x, y = work.train(
        int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=work.job.lr)
    for a, b in zip(x.split(work.job.batch), y.split(work.job.batch), strict=True):
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
    answer = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(RecordDict(answer), reply_to=message)


def main(folder: str, workers: int) -> None:
    """All rounds."""
    work, clock = begin(folder)
    model, (x, y) = work.model(), work.tests()
    server = ServerApp()

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        reached = accuracy(model, x, y)
        if round:  # it is asked before the first round, too
            clock.round(reached)
        return MetricRecord({"accuracy": reached})

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        nodes = work.job.clients
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
        result = strategy.start(
            grid, ArrayRecord(model.state_dict()), work.job.rounds, evaluate_fn=evaluate
        )
        clock.answer(work.folder, result.arrays.to_torch_state_dict())

    os.environ["FEDLOOM_WORK"] = folder  # actors inherit it
    resources = {
        "init_args": {"num_cpus": workers},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server, client, work.job.clients, backend_config=resources)


if __name__ == "__main__":
    # By its name: what an actor unpickles must not belong to `__main__`.
    from benchmarks.peers.flower import main as started

    started(sys.argv[1], int(sys.argv[2]))
