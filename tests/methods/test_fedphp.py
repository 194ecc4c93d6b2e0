"""FedPHP: how the inherited model grows, that it teaches and that it predicts."""

import pytest
import torch
import torch.nn.functional as F

from fedloom.client.context import ClientContext
from fedloom.core.local import Batch, Outputs
from fedloom.core.payload import Payload
from fedloom.methods.fedphp import FedPHP

W = "body.value"


def test_the_first_time_it_is_the_trained_model(place) -> None:
    worker = place(FedPHP())
    update = worker.method.client(
        Payload(model=worker.tree("shared")), Payload(), ClientContext(worker, 0, 1)
    )
    assert update.state.tree("past").equal(update.upload.tree("model"))
    assert update.state.number("taken") == 1


def test_momentum_grows_with_own_participation(parabolas) -> None:
    """The sixth of ten: mu = 0.9 * 5/10 = 0.45, whatever the round is."""
    method = FedPHP(lam=0.0, horizon=10)
    for taken, kept in ((5, 0.45), (10, 0.9), (50, 0.9)):
        worker = parabolas([4], [2]).worker(method, 0.0, lr=0.25, steps=1)
        past = worker.tree("shared").map(lambda t: t + 8.0)
        state = Payload(past=past, taken=taken)
        update = method.client(
            Payload(model=worker.tree("shared")), state, ClientContext(worker, 0, 97)
        )
        assert update.state.tree("past")[W].item() == pytest.approx(
            kept * 8 + (1 - kept) * 1.0, abs=1e-5
        )
        assert update.state.number("taken") == taken + 1


def test_absence_is_not_participation(parabolas) -> None:
    _, states = parabolas([0, 4], [1, 1]).run(
        FedPHP(lam=0.0), 1.0, lr=0.1, steps=1, rounds=3, dropouts={2: [1]}
    )
    assert [s.number("taken") for s in states] == [3, 2]


@pytest.mark.parametrize("teach", ["mmd", "kd"])
def test_the_loss_keeps_the_labels_and_the_past_teaches(place, teach: str) -> None:
    """With the default lambda, 0.9 of the cross-entropy is left; the past changes the update."""
    method = FedPHP(teach=teach)
    worker = place(method)
    w = worker.tree("shared")
    other = w.map(
        lambda t: (
            t + 0.3 * torch.randn(t.shape, generator=torch.Generator().manual_seed(1)).to(t.dtype)
        )
    )
    ends = []
    for past in (w, other):
        torch.manual_seed(0)
        state = Payload(past=past, taken=1)
        ends.append(
            method.client(Payload(model=w), state, ClientContext(worker, 0, 2)).upload.tree("model")
        )
    assert (ends[0] - ends[1]).norm() > 1e-4
    z, logits, y = torch.randn(6, 5), torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    parts = method.loss(Batch(z, logits, z, y, {"past": Outputs(z, logits)}))
    assert parts["ce"].item() == pytest.approx(0.9 * F.cross_entropy(logits, y).item(), abs=1e-6)


def test_distillation_softens_the_teacher_only() -> None:
    """Equal teacher logits ask for a uniform distribution; the student's logits are left alone."""
    logits = torch.tensor([[2.0, 0.0]])
    teacher = torch.tensor([[4.0, 0.0]])
    batch = Batch(logits, logits, logits, torch.tensor([0]), {"past": Outputs(teacher, teacher)})
    soft = torch.tensor([1.0, 0.0]).softmax(0)
    expected = 0.1 * -(soft * logits[0].log_softmax(0)).sum()
    assert FedPHP(teach="kd").loss(batch)["kd"].item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_inherited_model_predicts(place) -> None:
    method = FedPHP(horizon=2)
    worker = place(method)
    w = Payload(model=worker.tree("shared"))
    state = method.client(w, Payload(), ClientContext(worker, 0, 1)).state
    update = method.client(w, state, ClientContext(worker, 0, 2))
    x, _ = worker.federation.samples(0, "test")
    said = method.personal(update.trained, update.state, ClientContext(worker, 0, 2))(x)
    worker.load(update.state.tree("past"))
    assert torch.equal(said, worker.predictor()(x))
    worker.load(update.upload.tree("model"))
    assert not torch.equal(said, worker.predictor()(x))
