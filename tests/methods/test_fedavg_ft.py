"""FedAvg-FT: fine-tuning before prediction, on training data, leaving everything as it was."""

import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.methods.fedavg_ft import FedAvgFT
from fedloom.testing.small_world import federation, trace


def test_fine_tuning_is_one_more_epoch_of_local_training(place) -> None:
    """The fine-tuned model equals the common model after a client's plain epoch."""
    worker = place(FedAvgFT())
    down = Payload(model=worker.tree("shared").map(lambda t: t * 2))
    x, _ = worker.federation.samples(1, "test")
    torch.manual_seed(0)
    tuned = worker.method.personal(down, Payload(), ClientContext(worker, 1, 2))(x)
    worker.load(down.tree("model"))
    torch.manual_seed(0)
    ClientContext(worker, 1, 2).fit()
    assert torch.equal(tuned, worker.predictor()(x))
    worker.load(down.tree("model"))
    assert not torch.allclose(tuned, worker.predictor()(x), atol=1e-3)


def test_epochs_of_fine_tuning_do_not_depend_on_the_steps_of_training(parabolas) -> None:
    """One epoch is one step here, though local training takes three."""
    worker = parabolas([4], [2]).worker(FedAvgFT(finetune=2), 1.0, lr=0.1, steps=3)
    worker.method.personal(
        Payload(model=worker.tree("shared")), Payload(), ClientContext(worker, 0, 1)
    )
    assert worker.tensors["body.value"].item() == pytest.approx(4 - 3 * 0.9**2, abs=1e-6)


def test_training_is_fedavg_and_the_common_model_is_reported_beside() -> None:
    skewed = federation(only={0: [0], 1: [1], 2: [2], 3: [0, 2]})
    ours, plain = trace(FedAvgFT(), skewed), trace(make("fedavg"), skewed)
    assert ours.server.equal(plain.server)
    for mine, theirs in zip(ours.metrics, plain.metrics, strict=True):
        assert mine["common"] == theirs["common"]
        assert mine["loss"] == theirs["loss"], (
            "fine-tuning for a prediction is no part of the round's loss"
        )
    assert (
        ours.metrics[0]["personal"]["accuracy_mean"] > plain.metrics[0]["personal"]["accuracy_mean"]
    )
