"""q-FFL: the server's step by hand."""

import pytest

from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.payload import Payload
from fedloom.methods.qffl import QFFL
from fedloom.testing.small_world import federation, network

W = "body.value"


def world(parabolas, n=(1, 1)):
    """At w = 1 the losses are 2 and 0.5, and single steps of size 0.1 lead to 0.5 and 2."""
    return parabolas([0.2, 1.1], list(n), curvature=[6.25, 100.0])


def test_steps(parabolas) -> None:
    for q, w in ((0.0, 1.25), (1.0, 0.966667)):
        server, _ = world(parabolas).run(QFFL(q=q), 1.0, lr=0.1, steps=1)
        assert server.tree("model")[W].item() == pytest.approx(w, abs=1e-5)


def test_sizes_weigh(parabolas) -> None:
    """D = (10, -5), h = (45, 105), sizes (3, 1): 1 - (30 - 5) / (135 + 105)."""
    server, _ = world(parabolas, (3, 1)).run(QFFL(q=1.0), 1.0, lr=0.1, steps=1)
    assert server.tree("model")[W].item() == pytest.approx(1 - 25 / 240, abs=1e-5)


def test_the_norm_is_over_all_tensors_together(parabolas) -> None:
    """w and b both move by -0.5 and +1: |g|^2 doubles, h = (50 + 20, 200 + 5)."""
    server, _ = world(parabolas).run(QFFL(q=1.0), 1.0, lr=0.1, steps=1, b=0.0)
    assert server.tree("model")[W].item() == pytest.approx(1 - 5 / 275, abs=1e-5)


def test_the_step_size_is_this_rounds(parabolas) -> None:
    """L = 1 / lr follows a decaying step size, so q = 0 stays the plain mean and h the paper's."""
    worker = world(parabolas).worker(QFFL(), 1.0, lr=0.2, lr_decay=0.5)
    down = Payload(model=worker.tree("shared"))
    up = QFFL().client(down, Payload(), ClientContext(worker, 0, round=2)).upload
    assert up.number("lr") == pytest.approx(0.1)
    assert up.number("loss") == pytest.approx(2.0, abs=1e-5)
    assert up.tree("delta")[W].item() == pytest.approx(-0.5, abs=1e-5)


def test_a_loss_of_zero_is_no_trouble(parabolas) -> None:
    server, _ = parabolas([1, 1], [1, 1]).run(QFFL(q=0.5), 1.0, lr=0.1, steps=1)
    assert server.tree("model")[W].item() == pytest.approx(1.0)


def test_buffers_are_averaged_and_take_no_part_in_the_norm() -> None:
    worker = ClientWorker(QFFL(), federation(), network(), Training(batch=8), seed=7)
    server = QFFL().join(
        QFFL().init(worker), {k: QFFL().hello(ClientContext(worker, k, 1)) for k in range(4)}
    )
    ups = [
        (
            k,
            QFFL()
            .client(QFFL().download(server, k), Payload(), ClientContext(worker, k, 1))
            .upload,
        )
        for k in range(4)
    ]
    assert all(not n.startswith("body.1.running") for n in ups[0][1].tree("delta"))
    after = QFFL().aggregate(server, iter(ups)).tree("model")
    assert after.keys() == server.tree("model").keys()
    sizes = server.tensor("sizes").double()
    means = [up.tree("buffers")["body.1.running_mean"].double() for _, up in ups]
    wanted = sum(s * m for s, m in zip(sizes, means, strict=True)) / sizes.sum()
    assert after["body.1.running_mean"].tolist() == pytest.approx(wanted.tolist(), abs=1e-6)
    assert after["body.1.num_batches_tracked"] == 5  # the client of 40 samples


def test_nobody_answered(parabolas) -> None:
    server, _ = world(parabolas).run(QFFL(q=1.0), 1.0, lr=0.1, steps=1, dropouts={1: [0, 1]})
    assert server.tree("model")[W].item() == 1.0
