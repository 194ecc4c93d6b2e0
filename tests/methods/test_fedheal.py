"""FedHEAL: masks, weights and steps by hand."""

import pytest
import torch

from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.methods.fedheal import FedHEAL


def server(n: int = 2, **more) -> Payload:
    zeros = torch.zeros(n, dtype=torch.float64)
    w = Tree({"a": torch.zeros(2), "b": torch.zeros(1), "running": torch.zeros(1)})
    return Payload(
        model=w, sizes=torch.arange(1, n + 1), rounds=zeros, weights=zeros, increments=zeros, **more
    )


def up(a: list[float], b: float, running: float = 0.0) -> Payload:
    """An upload whose Delta = w - w_k is (a, b)."""
    delta = Tree({"a": -torch.tensor(a), "b": -torch.tensor([b])})
    return Payload(delta=delta, buffers=Tree({"running": torch.tensor([running])}))


def test_weights_after_the_first_round() -> None:
    """Distances 1 and 3: raw 0.5 + 0.4 (0.25, 0.75) = (0.6, 0.8)."""
    after = FedHEAL().aggregate(
        server(), iter([(0, up([1.0, 0.0], 0.0)), (1, up([0.0, 1.0], 2.0))])
    )
    assert after.tensor("weights").tolist() == pytest.approx([0.6, 0.8])
    shares = 0.6 / 1.4, 0.8 / 1.4
    assert shares == pytest.approx((0.42857, 0.57143), abs=1e-5)
    assert after.tree("model")["a"].tolist() == pytest.approx([-shares[0], -shares[1]])
    assert after.tree("model")["b"].item() == pytest.approx(-2 * shares[1])


def test_distances_are_summed_over_tensors_not_joint() -> None:
    """|a| + |b| = 5 + 12, not 13, against 17: equal weights."""
    after = FedHEAL().aggregate(
        server(), iter([(0, up([3.0, 4.0], 12.0)), (1, up([0.0, 17.0], 0.0))])
    )
    assert after.tensor("increments").tolist() == pytest.approx([0.2, 0.2])


def test_an_element_against_the_history_is_masked() -> None:
    """Client 0 rose in both rounds so far and now falls at a[0] only.

    Client 1's update is applied there in full.
    """
    method, after = FedHEAL(), server()
    for _ in range(2):
        after = method.aggregate(after, iter([(0, up([1.0, 1.0], 1.0)), (1, up([1.0, 1.0], 1.0))]))
    before = after.tree("model")["a"]
    after = method.aggregate(after, iter([(0, up([-1.0, 1.0], 1.0)), (1, up([1.0, 1.0], 1.0))]))
    assert (after.tree("model")["a"] - before).tolist() == pytest.approx([-1.0, -1.0])
    history = after.tree("history/0")
    assert history["a"].tolist() == pytest.approx([2 / 3, 1.0])  # of three rounds, masked or not
    assert after.tensor("rounds").tolist() == [3, 3]
    # masked elements do not count in the distance either
    shares = torch.tensor([1 + 1, 2**0.5 + 1])
    shares = shares / shares.sum()
    wanted = 0.6 * (0.4 * 0.5 * (1 + 0.6)) + 0.4 * shares[0].item()
    assert after.tensor("increments")[0].item() == pytest.approx(wanted)


def test_the_threshold_is_strict() -> None:
    """One of two rounds rose: consistency is 0.5 both ways, masked at tau = 0.5 and not below."""
    for tau, moves in ((0.5, False), (0.49, True)):
        method, after = FedHEAL(tau=tau), server(1)
        for sign in (1.0, -1.0, 1.0):
            was = after.tree("model")["b"].item()
            after = method.aggregate(after, iter([(0, up([0.0, 0.0], sign))]))
        assert (after.tree("model")["b"].item() != was) is moves


def test_where_all_are_masked_nothing_moves() -> None:
    method, after = FedHEAL(), server()
    for sign in (1.0, 1.0, -1.0):
        was = after.tree("model")["a"]
        after = method.aggregate(
            after, iter([(0, up([sign, 1.0], 1.0)), (1, up([sign, 1.0], 1.0))])
        )
    moved = after.tree("model")["a"] - was
    assert moved[0] == 0 and moved[1] == pytest.approx(-1.0)


def test_a_client_may_first_appear_later_and_absent_ones_keep_their_record() -> None:
    method = FedHEAL()
    first = method.aggregate(server(), iter([(0, up([1.0, 0.0], 0.0))]))
    after = method.aggregate(first, iter([(1, up([1.0, 0.0], 0.0))]))
    for name in ("weights", "increments", "rounds"):
        assert after.tensor(name)[0] == first.tensor(name)[0]
    assert after.tree("history/0").equal(first.tree("history/0"))
    assert after.tensor("weights")[1].item() == pytest.approx(1.4)  # 1/1 + 0.4 of all the distance
    assert after.tree("model")["a"].tolist() == pytest.approx([-2.0, 0.0])


def test_buffers_are_averaged_and_not_masked() -> None:
    after = FedHEAL().aggregate(
        server(), iter([(0, up([1.0, 0.0], 0.0, 1.0)), (1, up([0.0, 1.0], 2.0, -1.0))])
    )
    assert after.tree("model")["running"].item() == pytest.approx((0.6 - 0.8) / 1.4)
    assert "running" not in after.tree("history/0")


def test_no_update_at_all() -> None:
    after = FedHEAL().aggregate(
        server(), iter([(0, up([0.0, 0.0], 0.0)), (1, up([0.0, 0.0], 0.0))])
    )
    assert after.tree("model")["a"].tolist() == [0.0, 0.0]
    nobody = server()
    assert FedHEAL().aggregate(nobody, iter([])).equal(nobody)


def test_the_first_round_without_beta_is_the_plain_mean(parabolas) -> None:
    """Sizes do not count, so it is FedAvg of clients of equal size."""
    ours, _ = parabolas([0, 4], [1, 3]).run(FedHEAL(beta=0.0), 1.0, lr=0.1, steps=5)
    plain, _ = parabolas([0, 4], [2, 2]).run(make("fedavg"), 1.0, lr=0.1, steps=5)
    w = "body.value"
    assert ours.tree("model")[w].item() == pytest.approx(plain.tree("model")[w].item(), abs=1e-6)
