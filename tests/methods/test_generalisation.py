"""FedSR, FedIIR, ELCFS, FedPLVM: their own numbers, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedloom.client.context import ClientContext
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.parts.contrast import prototype_contrast, sparse_contrast
from fedloom.parts.gaussian import ByClass, DrawnHead
from fedloom.parts.spectrum import amplitude, exchanged, low_amplitudes
from tests.methods.one_class import one_class


# -- FedSR -----------------------------------------------------------------------------------
def test_features_are_drawn_in_training_only() -> None:
    linear = nn.Linear(2, 2, bias=False)
    nn.init.eye_(linear.weight)
    head = DrawnHead(linear)
    x = torch.ones(1000, 2)
    mean, raw = head.spread(x[:1]).chunk(2, dim=1)
    assert torch.equal(head.eval()(x[:1]), mean)
    seen = head.train()(x)
    deviation = nn.functional.softplus(raw)[0]
    assert torch.allclose(seen.mean(0), mean[0], atol=0.2)
    assert torch.allclose(seen.std(0), deviation, rtol=0.15)


def test_the_divergence_of_two_normal_distributions() -> None:
    """Class 1 has mean 3 and deviation 2, the sample 1 and 0.5: log 4 + (0.25 + 4) / 8 - 1/2."""
    by_class = ByClass(2, 1)
    with torch.no_grad():
        by_class.mean[1] = 3.0
        by_class.raw[1] = math.log(math.exp(2.0) - 1)
    spread = torch.tensor([[1.0, math.log(math.exp(0.5) - 1)]])
    expected = math.log(4) + 4.25 / 8 - 0.5
    assert by_class.divergence(spread, torch.tensor([1])).item() == pytest.approx(expected, 1e-5)


def test_fedsr_reports_the_length_of_features(place) -> None:
    """The distributions by class stay with the client, and the common model does without."""
    method = make("fedsr", {"l2r": 1.0})
    worker = place(method)
    local = ClientContext(worker, 0, 1)
    update = method.client(Payload(model=worker.tree("shared")), Payload(), local)
    kept = update.state.tree("model")
    assert sorted(kept) == ["by_class.mean", "by_class.raw", "by_class.scale"]
    assert kept["by_class.mean"].any()
    assert local.losses()["length"] > 0 and local.losses()["divergence"] > 0
    server = method.init(worker).replace(model=update.upload.tree("model"))
    assert method.common(server, worker) is not None


# -- FedIIR ----------------------------------------------------------------------------------
def test_fediir_measures_where_it_starts_and_averages(parabolas) -> None:
    """At 1 + 0.5 the slopes are 1.5 and -2.5, their mean is -0.5; a twentieth of it is new."""
    world = parabolas([0, 4], [1, 3])
    server, _ = world.run(make("fediir"), 1.0, lr=0.1, steps=1, b=0.5)
    assert server.tree("slope")["head.value"].item() == pytest.approx(0.05 * -0.5, abs=1e-6)


def test_fediir_pulls_slopes_to_the_common_one(parabolas) -> None:
    """The loss (w + b - 4)^2 / 2 has the slope s = w + b - 4 = -2.5 for both numbers; wanted 0.5.

    The penalty gamma (s - 0.5)^2 adds 2 gamma (s - 0.5) = -3 for gamma = 0.5.
    """
    method = make("fediir", {"gamma": 0.5})
    worker = parabolas([4], [1]).worker(method, 1.0, b=0.5, lr=0.1, steps=1)
    down = Payload(model=worker.tree("shared"), slope=Tree({"head.value": torch.tensor(0.5)}))
    update = method.client(down, Payload(), ClientContext(worker, 0, 1))
    model = update.upload.tree("model")
    assert model["head.value"].item() == pytest.approx(0.5 + 0.1 * (2.5 + 3), abs=1e-6)
    assert model["body.value"].item() == pytest.approx(1.0 + 0.1 * (2.5 + 3), abs=1e-6)
    assert update.upload.tree("slope")["head.value"].item() == pytest.approx(-2.5)


# -- ELCFS -----------------------------------------------------------------------------------
def test_the_zero_frequency_carries_the_mean() -> None:
    """Images of mean 0.2 that take three quarters of a partner's 0.6 have a mean of 0.5."""
    x = 0.2 + 0.1 * torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(2, 2).view(1, 1, 4, 4)
    partner = torch.full((1, 1, 4, 4), 0.6)
    mixed = exchanged(x, low_amplitudes(partner, 0), torch.tensor([0.25]))
    assert mixed.mean().item() == pytest.approx(0.5, abs=1e-6)
    assert torch.allclose(mixed - 0.5, x - 0.2, atol=1e-6), "nothing else changes"
    assert torch.allclose(exchanged(x, low_amplitudes(partner, 0), torch.ones(1)), x, atol=1e-6)


def test_the_window_holds_the_lowest_frequencies() -> None:
    x = torch.rand(2, 3, 8, 10, generator=torch.Generator().manual_seed(0))
    low = low_amplitudes(x, 1)
    full = amplitude(x)
    assert low.shape == (2, 3, 3, 3)
    assert torch.allclose(low[..., 1, 1], full[..., 0, 0])
    assert torch.allclose(low[..., 1, 2], full[..., 0, 1])
    assert torch.allclose(low[..., 0, 1], full[..., -1, 0])


def test_clients_get_the_amplitudes_of_others(place) -> None:
    method = make("elcfs", {"bank": 5, "draw": 100})
    worker = place(method)
    hellos = {k: method.hello(ClientContext(worker, k, 1)) for k in range(3)}
    assert [len(hello.tensor("low")) for hello in hellos.values()] == [5, 5, 5]
    server = method.join(method.init(worker), hellos).replace(round=1, seed=0)
    got = method.download(server, 1).tensor("low")
    others = torch.cat([hellos[k].tensor("low") for k in (0, 2)])
    assert sorted(got.flatten().tolist()) == sorted(others.flatten().tolist())
    alone = method.join(method.init(worker), {0: hellos[0]}).replace(round=1, seed=0)
    assert "low" not in method.download(alone, 0)


def test_elcfs_wants_images() -> None:
    method = make("elcfs")
    with pytest.raises(FedloomError, match="elcfs needs images"):
        method.hello(ClientContext(one_class(method), 0, 1))


# -- FedPLVM ---------------------------------------------------------------------------------
def test_the_sparse_contrast_by_hand() -> None:
    """Cosines 0.6 and 0.8 to the power of one half, over a temperature of one half."""
    z, y = torch.tensor([[0.6, 0.8]]), torch.tensor([0])
    prototypes, owners = torch.eye(2), torch.tensor([0, 1])
    near, far = 2 * 0.6**0.5, 2 * 0.8**0.5
    expected = math.log(1 + math.exp(far - near))
    got = sparse_contrast(z, y, prototypes, owners, tau=0.5, power=0.5)
    assert got.item() == pytest.approx(expected, abs=1e-6)
    plain = prototype_contrast(z, y, prototypes, owners, tau=0.5)
    assert sparse_contrast(z, y, prototypes, owners, 0.5, 1.0).item() == pytest.approx(plain.item())


def test_fedplvm_uploads_clusters_and_corrects(place) -> None:
    method = make("fedplvm")
    worker = place(method)
    first = method.client(
        Payload(model=worker.tree("shared")), Payload(), ClientContext(worker, 0, 1)
    )
    rows, labels = first.upload.tensor("rows"), first.upload.tensor("labels")
    assert len(rows) == len(labels) > labels.unique().numel(), "some class has two clusters"
    server = method.join(method.init(worker), {0: Payload(size=24)})
    server = method.aggregate(server, iter([(0, first.upload)]))
    assert set(server.tensor("owners").tolist()) == set(labels.tolist())
    local = ClientContext(worker, 0, 2)
    method.client(method.download(server, 0), Payload(), local)
    assert {"ce", "contrast", "correction"} <= set(local.losses())
