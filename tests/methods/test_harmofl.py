"""HarmoFL: the common amplitude, and where it acts."""

import dataclasses

import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.payload import Payload
from fedloom.methods.harmofl import HarmoFL
from fedloom.parts.spectrum import amplitude
from fedloom.testing.small_world import federation, network


def place(method: HarmoFL) -> ClientWorker:
    return ClientWorker(method, federation(), network(), Training(batch=8, steps=1), seed=7)


def started(method: HarmoFL, clients=range(4)) -> tuple[ClientWorker, Payload]:
    worker = place(method)
    hellos = {k: method.hello(ClientContext(worker, k, 1)) for k in clients}
    return worker, method.join(method.init(worker), hellos)


def test_a_client_sends_the_mean_over_all_its_images_from_zero_to_one() -> None:
    """All batches count, with equal weight per image."""
    worker = place(HarmoFL())
    x, _ = worker.federation.samples(1)
    wanted = amplitude(x.float() / 255).mean(0)
    torch.testing.assert_close(
        HarmoFL().hello(ClientContext(worker, 1, 1)).tensor("amplitude"),
        wanted,
        rtol=1e-4,
        atol=1e-3,
    )


def test_the_common_amplitude_is_the_mean_of_the_first_and_stays() -> None:
    method = HarmoFL()
    worker, server = started(method, [0, 1])
    sent = [method.hello(ClientContext(worker, k, 1)).tensor("amplitude") for k in range(3)]
    torch.testing.assert_close(server.tensor("amplitude"), (sent[0] + sent[1]) / 2)
    later = method.join(server, {2: method.hello(ClientContext(worker, 2, 5))})
    assert torch.equal(later.tensor("amplitude"), server.tensor("amplitude"))
    assert "amplitude" in method.download(later, 2)  # but a late joiner receives it
    assert later.tensor("sizes").tolist() == [24, 40, 16, 0]


@pytest.mark.parametrize("which", ["all", "mean"])
def test_training_and_prediction_see_the_common_amplitude(which) -> None:
    method = HarmoFL(amplitude=which, alpha=0.0)
    worker, server = started(method)
    local, down, shown = ClientContext(worker, 0, 1), method.download(server, 0), []
    local.load(down.tree("model"))
    worker.model.body.register_forward_pre_hook(
        lambda _, args: shown.append((args[0] + 1) / 2)
    )  # from 0 to 1
    method.train(down, Payload(), local)
    method.personal(down, Payload(), local)(worker.federation.samples(0, "test")[0])
    method.common(server, worker)(worker.federation.samples(0, "test")[0])
    target = server.tensor("amplitude")
    assert len(shown) == 3
    for x in shown:
        own = amplitude(x)
        torch.testing.assert_close(
            own[..., 0, 0], target[:, 0, 0].expand(len(x), -1), rtol=1e-4, atol=1e-3
        )
        close = torch.isclose(own, target.expand_as(own), rtol=1e-3, atol=1e-3).float().mean()
        assert (close == 1) if which == "all" else (close < 0.5)


def test_vectors_are_refused() -> None:
    worker = place(HarmoFL())
    data = dataclasses.replace(
        worker.federation.data, x=torch.zeros(len(worker.federation.data.y), 5)
    )
    worker.federation = dataclasses.replace(worker.federation, data=data)
    with pytest.raises(FedloomError, match="needs images"):
        HarmoFL().hello(ClientContext(worker, 0, 1))


def test_the_perturbed_step(parabolas) -> None:
    """The same as FedSAM with radius alpha; w = 1 on w^2: 1 - 0.1 * 2.1."""
    world = parabolas([0], [1], curvature=[2.0])
    server, _ = world.run(HarmoFL(amplitude="none"), 1.0, lr=0.1, steps=1)
    assert server.tree("model")["body.value"].item() == pytest.approx(1 - 0.1 * 2 * 1.05, abs=1e-6)
