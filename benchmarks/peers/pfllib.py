"""The same work by a checkout of PFLlib, which is one process.

Usage: `python -m benchmarks.peers.pfllib FOLDER CHECKOUT`. PFLlib is driven as it is. It draws its
own order of batches and reads a client's file whenever it needs it. It evaluates the common model
in batches of the training's size, with the loss on all training samples beside the accuracy. It
does not average the statistics of BatchNorm. Nothing is written into the checkout: PFLlib looks for
data beside the folder it is started in.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from .work import Clock, Work, begin


class Finished(Exception):
    """All rounds are done; PFLlib itself would train once more."""


class Arguments(SimpleNamespace):
    """What its command line would give. Switches that only some versions ask for are off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return False


def arguments(work: Work) -> Arguments:
    """The job in PFLlib's words."""
    job = work.job
    return Arguments(
        algorithm="FedAvg",
        dataset="made-up",
        goal="speed",
        device="cpu",
        save_folder_name="items",
        model=work.model(),
        num_classes=job.classes,
        num_clients=job.clients,
        batch_size=job.batch,
        local_learning_rate=job.lr,
        local_epochs=1,
        global_rounds=job.rounds,
        eval_gap=1,
        join_ratio=1.0,
        time_threthold=1e9,
        learning_rate_decay_gamma=1.0,
        client_drop_rate=0.0,
        train_slow_rate=0.0,
        send_slow_rate=0.0,
        top_cnt=100,
        num_new_clients=0,
        fine_tuning_epoch_new=0,
        dlg_gap=100,
        batch_num_per_client=2,
    )


def share_out(work: Work, place: Path) -> None:
    """Write the clients' files and go where PFLlib finds them."""
    cut = work.job.train
    for part, rows in (("train", slice(cut)), ("test", slice(cut, None))):
        folder = place / "dataset" / "made-up" / part
        folder.mkdir(parents=True, exist_ok=True)
        for k in range(work.job.clients):
            np.savez(
                folder / f"{k}.npz",
                data={"x": work.x[k, rows].numpy(), "y": work.y[k, rows].numpy()},
            )  # type: ignore[arg-type]
    (place / "system").mkdir(exist_ok=True)
    os.chdir(place / "system")


def main(folder: str, checkout: str) -> None:
    """All rounds."""
    work, clock = begin(folder)
    share_out(work, work.folder / "pfllib")
    sys.path.insert(0, str(Path(checkout).resolve() / "system"))
    server = timed(work.job.rounds, clock)(arguments(work), 0)
    torch.manual_seed(0)
    try:
        server.train()
    except Finished:
        clock.answer(work.folder, server.global_model.state_dict())


def timed(rounds: int, clock: Clock) -> Any:
    """PFLlib's FedAvg. It evaluates at the start of a round what the round before has reached."""
    from flcore.servers.serveravg import FedAvg

    class Timed(FedAvg):
        started = False

        def evaluate(self, *args: Any, **options: Any) -> None:
            super().evaluate(*args, **options)
            if self.started:
                clock.round(float(self.rs_test_acc[-1]))
            self.started = True
            if len(clock.ends) == rounds:
                raise Finished

    return Timed


if __name__ == "__main__":
    main(*sys.argv[1:])
