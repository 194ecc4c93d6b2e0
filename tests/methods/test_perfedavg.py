"""Per-FedAvg: both meta-gradients to the digit, adaptation on training data, no leftovers."""

import dataclasses

import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.core.payload import Payload
from fedloom.methods.perfedavg import PerFedAvg
from fedloom.testing import small_world

W = "body.value"


@pytest.mark.parametrize(("variant", "direction"), [("fo", 3.2), ("hf", 2.56)])
@pytest.mark.parametrize("delta", [0.001, 0.5])
def test_direction_on_a_parabola(parabolas, variant: str, direction: float, delta: float) -> None:
    """On f = (w - 1)^2 at w = 3 with alpha 0.1, FO is f'(2.6) = 3.2.

    HF and the exact gradient are 3.2 (1 - 0.2) = 2.56.
    """
    method = PerFedAvg(variant=variant, inner_lr=0.1, delta=delta)
    server, _ = parabolas([1], [5], curvature=[2.0]).run(method, 3.0, lr=0.1, steps=1)
    assert server.tree("model")[W].item() == pytest.approx(3 - 0.1 * direction, abs=2e-4)


def test_one_training_pass_a_round_from_the_restored_weights(parabolas) -> None:
    """Three steps of w - 0.1 * 2 (1 - 0.2) (w - 1), not six, and not from the adapted point."""
    server, _ = parabolas([1], [5], curvature=[2.0]).run(
        PerFedAvg(inner_lr=0.1), 3.0, lr=0.1, steps=3
    )
    assert server.tree("model")[W].item() == pytest.approx(1 + 2 * 0.84**3, abs=1e-5)


def test_clients_count_alike(parabolas) -> None:
    server, _ = parabolas([0, 4], [1, 3]).run(PerFedAvg(inner_lr=0.1), 1.0, lr=0.1, steps=1)
    steps = [1 - 0.1 * 0.9 * (1 - a) for a in (0, 4)]
    assert server.tree("model")[W].item() == pytest.approx(sum(steps) / 2, abs=1e-6)


def test_prediction_adapts_by_plain_steps_of_size_alpha(parabolas) -> None:
    """Whatever the optimiser of training is: momentum would make the second step longer."""
    worker = parabolas([4], [3]).worker(PerFedAvg(inner_lr=0.25, adapt=2), 0.0, lr=0.1, steps=7)
    worker.training = worker.training.changed(
        momentum=0.9, nesterov=True, weight_decay=0.5, lr_decay=0.5
    )
    worker.method.personal(
        Payload(model=worker.tree("shared")), Payload(), ClientContext(worker, 0, 3)
    )
    assert worker.tensors[W].item() == pytest.approx(4 - 4 * 0.75**2, abs=1e-6)


def test_prediction_looks_at_training_data_only(place) -> None:
    """Other test and validation samples or labels change nothing; other training labels do."""
    whole = small_world.federation()
    client = whole.clients[1]

    def scores(spoil: str) -> torch.Tensor:
        x, y = whole.data.x.clone(), whole.data.y.clone()
        parts = {
            "nothing": [],
            "held out": [client.test, client.validation],
            "training": [client.train],
        }[spoil]
        for rows in parts:
            y[rows] = (y[rows] + 1) % 3
            if spoil == "held out":
                x[rows] = 255 - x[rows]
        data = dataclasses.replace(whole, data=dataclasses.replace(whole.data, x=x, y=y))
        worker = place(PerFedAvg(inner_lr=0.1), data)
        predict = worker.method.personal(
            Payload(model=worker.tree("shared")), Payload(), ClientContext(worker, 1, 2)
        )
        return predict(whole.data.x[client.test])

    torch.manual_seed(0)
    untouched = scores("nothing")
    torch.manual_seed(0)
    assert torch.equal(scores("held out"), untouched)
    torch.manual_seed(0)
    assert not torch.allclose(scores("training"), untouched, atol=1e-4)


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_perturbed_passes_leave_batchnorm_alone(place, variant: str) -> None:
    """It counts steps, not the two or four passes of each; its means are from the first pass."""
    method = PerFedAvg(variant=variant)
    worker = place(method, steps=5)
    update = method.client(
        Payload(model=worker.tree("shared")), Payload(), ClientContext(worker, 0, 1)
    )
    assert update.upload.tree("model")["body.1.num_batches_tracked"].item() == 5


def test_hessian_free_is_not_drowned_by_dropout(place) -> None:
    """Both perturbed gradients meet the same dropout.

    The result is therefore close to first order, not hundreds of times as large.
    """
    models = {}
    for variant in ("fo", "hf"):
        worker = place(PerFedAvg(variant=variant, delta=1e-3), steps=1)
        start = worker.tree("shared")
        torch.manual_seed(3)
        up = worker.method.client(
            Payload(model=start), Payload(), ClientContext(worker, 0, 1)
        ).upload.tree("model")
        params = worker.parameters()
        models[variant] = (up - start).only(params)
    first, free = models["fo"], models["hf"]
    assert 0 < (free - first).norm() < 0.3 * first.norm()
