"""FedProto: prototypes by count, missing classes, the distance term, both ways to predict."""

import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.methods.fedproto import FedProto
from fedloom.testing import small_world
from fedloom.testing.small_world import trace


def upload(value: float, count: int, c: int = 0) -> Payload:
    return Payload(
        protos=Tree({str(c): torch.tensor([value])}), counts=Tree({str(c): torch.tensor(count)})
    )


@pytest.mark.parametrize(("average", "expected"), [("counts", 3.0), ("uniform", 2.0)])
def test_mean_of_prototypes(average: str, expected: float) -> None:
    """Means 0 of 1 sample and 4 of 3 samples."""
    server = FedProto(average=average).aggregate(
        Payload(), iter([(0, upload(0.0, 1)), (1, upload(4.0, 3))])
    )
    assert server.tree("protos")["0"].item() == pytest.approx(expected)


def test_a_class_that_nobody_sends_keeps_its_prototype() -> None:
    method = FedProto()
    server = method.aggregate(Payload(), iter([(0, upload(5.0, 2, c=7)), (1, upload(1.0, 2, c=0))]))
    server = method.aggregate(server, iter([(1, upload(2.0, 2, c=0))]))
    assert {c: p.item() for c, p in server.tree("protos").items()} == {"0": 2.0, "7": 5.0}


def test_only_own_classes_travel_as_means_of_features(place) -> None:
    """A client with classes 0 and 1 of four sends the two means of its features and no weights."""
    method = FedProto()
    worker = place(method, small_world.federation(only={2: [0, 1]}))
    update = method.client(Payload(), Payload(), ClientContext(worker, 2, 1))
    assert sorted(update.upload) == ["counts/0", "counts/1", "protos/0", "protos/1"]
    worker.load(update.state.tree("model"))
    x, y = worker.federation.samples(2)
    features = worker.outputs(x).features
    for c in (0, 1):
        assert torch.allclose(
            update.upload.tree("protos")[str(c)], features[y == c].mean(0), atol=1e-6
        )
        assert update.upload.tree("counts")[str(c)].item() == (y == c).sum()


def test_prototypes_pull_on_features(place) -> None:
    """Other prototypes change the local update; lambda 0 makes them irrelevant."""
    for lam, matters in ((1.0, True), (0.0, False)):
        method = FedProto(lam=lam)
        worker, models = place(method), []
        for value in (0.0, 2.0):
            torch.manual_seed(0)
            down = Payload(protos=Tree((str(c), torch.full((96,), value)) for c in (0, 1)))
            models.append(
                method.client(down, Payload(), ClientContext(worker, 0, 1)).state.tree("model")
            )
        assert models[0].equal(models[1]) is not matters


def test_prediction_by_nearest_prototype_or_head(place) -> None:
    worker = place(FedProto())
    model = Payload(model=worker.tree("private"))
    x, _ = worker.federation.samples(0, "test")
    features = worker.outputs(x).features
    down = Payload(protos=Tree({"1": features[0], "3": features[1]}))
    said = FedProto().personal(down, model, ClientContext(worker, 0, 1))(x)
    assert said[:2].argmax(1).tolist() == [1, 3]
    assert set(said.argmax(1).tolist()) == {1, 3}, "classes without prototype are never said"
    head = worker.predictor()(x)
    assert torch.equal(
        FedProto(predict="head").personal(down, model, ClientContext(worker, 0, 1))(x), head
    )
    assert torch.equal(
        FedProto().personal(Payload(), model, ClientContext(worker, 0, 1))(x), head
    ), "before the first prototypes"


def test_prototypes_are_tiny_beside_weights() -> None:
    seen = trace(FedProto())
    vector = 96 * 4
    up = seen.metrics[-1]["bytes"]["up"]
    assert (
        4 * 3 * vector < up < 4 * 3 * (vector + 200)
    )  # four clients, three classes, and their names and counts
