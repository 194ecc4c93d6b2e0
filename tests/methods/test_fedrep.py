"""FedRep: head first, then body, and what does not train does not move."""

import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.core.payload import Payload
from fedloom.methods.fedrep import FedRep


@pytest.mark.parametrize("training", [{}, {"momentum": 0.9, "weight_decay": 0.1}])
def test_each_phase_leaves_the_other_part_bitwise(place, monkeypatch, training) -> None:
    """BatchNorm too stays as it is.

    So it does with momentum and weight decay, under which a zeroed gradient would still move.
    """
    seen = []
    plain = ClientContext.fit

    def watched(self, *args, **changes):
        before = {n: t.clone() for n, t in self.worker.tensors.items()}
        fit = plain(self, *args, **changes)
        seen.append(
            (
                {n for n, t in self.worker.tensors.items() if not torch.equal(t, before[n])},
                fit.steps,
            )
        )
        return fit

    monkeypatch.setattr(ClientContext, "fit", watched)
    method = FedRep(head_epochs=3)
    worker = place(method, epochs=2, **training)
    method.client(Payload(model=worker.tree("shared")), Payload(), ClientContext(worker, 0, 1))
    (head, head_steps), (body, body_steps) = seen
    assert head == {"head.weight", "head.bias"}
    # What a bias adds before BatchNorm is subtracted again: it moves by rounding, if at all.
    assert body | {"body.0.bias"} == {n for n in worker.tensors if n.startswith("body.")}
    assert (head_steps, body_steps) == (3 * 3, 2 * 3)  # 24 samples in batches of 8


def test_the_head_is_new_before_the_body_moves(parabolas) -> None:
    """One batch: the head steps ten times towards a - w, then the body once on what is left."""
    server, states = parabolas([4], [1]).run(FedRep(), 1.0, lr=0.1, steps=1, b=0.0)
    head = 3 * (1 - 0.9**10)
    assert states[0].tree("model")["head.value"].item() == pytest.approx(head, abs=1e-5)
    assert server.tree("model")["body.value"].item() == pytest.approx(
        1 - 0.1 * (1 + head - 4), abs=1e-5
    )


def test_fine_tuning_for_prediction_moves_the_head_only_and_is_forgotten(place) -> None:
    method = FedRep(finetune=2)
    worker = place(method)
    update = method.client(
        Payload(model=worker.tree("shared")), Payload(), ClientContext(worker, 0, 1)
    )
    before = update.state.encode()
    method.personal(update.trained, update.state, ClientContext(worker, 0, 1))
    assert update.state.encode() == before
    body, head = update.trained.tree("model"), update.state.tree("model")
    assert all(torch.equal(worker.tensors[n], t) for n, t in body.items())
    assert not any(torch.equal(worker.tensors[n], t) for n, t in head.items())
