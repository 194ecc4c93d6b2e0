"""AFL: the ascent on lambda by hand."""

import pytest

from fedloom.core.lookup import make
from fedloom.methods.afl import AFL

W = "body.value"


def worlds(parabolas):
    """At w = 1 the losses are 1 and 3, and single steps of size 0.5 lead to w_k = 0 and 4."""
    return parabolas([0, 2], [1, 3], curvature=[2.0, 6.0])


def test_lambda_after_one_round(parabolas) -> None:
    server, _ = worlds(parabolas).run(AFL(gamma=0.1), 1.0, lr=0.5, steps=1)
    assert server.tensor("lam").tolist() == pytest.approx(
        [0.4, 0.6]
    )  # (0.5, 0.5) + (0.1, 0.3), projected
    assert server.tree("model")[W].item() == pytest.approx(
        0.5 * 0 + 0.5 * 4
    )  # averaged with lambda before the ascent


def test_lambda_is_kept_from_round_to_round(parabolas) -> None:
    """Restarted every round it could never leave (0.5, 0.5) by more than one step."""
    world = parabolas([0, 2], [1, 1], curvature=[1.0, 1.0])
    one, _ = world.run(AFL(gamma=0.05), 0.0, lr=0.01, steps=1)
    three, _ = world.run(AFL(gamma=0.05), 0.0, lr=0.01, steps=1, rounds=3)
    assert one.tensor("lam").tolist() == pytest.approx([0.45, 0.55])
    assert three.tensor("lam")[1].item() > 0.62


def test_the_loss_is_that_of_the_received_model(parabolas) -> None:
    """Lambda does not change with the work done after the download."""
    lams = [
        worlds(parabolas).run(AFL(gamma=0.1), 1.0, lr=0.1, steps=s)[0].tensor("lam").tolist()
        for s in (1, 7)
    ]
    assert lams[0] == lams[1]


def test_it_finds_the_minimax_point(parabolas) -> None:
    """Losses (w^2)/2 and 3 (w-4)^2/2 are equal at w = 4 sqrt 3 / (1 + sqrt 3).

    Size and curvature do not matter.
    """
    world = parabolas([0, 4], [9, 1], curvature=[1.0, 3.0])
    server, _ = world.run(AFL(gamma=0.02), 2.5, lr=0.2, steps=1, rounds=150, eval_every=150)
    assert server.tree("model")[W].item() == pytest.approx(4 * 3**0.5 / (1 + 3**0.5), abs=0.02)


def test_an_absent_client_keeps_its_lambda_but_for_the_projection(parabolas) -> None:
    server, _ = worlds(parabolas).run(AFL(gamma=0.1), 1.0, lr=0.5, steps=1, dropouts={1: [0]})
    assert server.tensor("lam").tolist() == pytest.approx([0.35, 0.65])  # (0.5, 0.8), projected
    assert server.tree("model")[W].item() == pytest.approx(
        4.0
    )  # normalised over those who answered


def test_start_by_size_makes_room_for_newcomers(parabolas) -> None:
    server, _ = worlds(parabolas).run(
        AFL(gamma=0.0, start="size"), 1.0, lr=0.5, steps=1, rounds=3, ratio=0.5
    )
    known = server.tensor("known").tolist()
    assert sorted(server.tensor("lam").tolist()) == pytest.approx(
        [0.25, 0.75] if all(known) else [0.0, 1.0]
    )


def test_the_mean_of_all_models(parabolas) -> None:
    world = parabolas([0], [1])
    server, _ = world.run(AFL(gamma=0.0, average=True), 1.0, lr=0.5, steps=1, rounds=3)
    assert server.tree("model")[W].item() == pytest.approx(0.125)
    assert server.tree("mean")[W].item() == pytest.approx((0.5 + 0.25 + 0.125) / 3)


def test_the_mean_is_what_all_clients_use() -> None:
    from fedloom.testing.checks import check_bytes, check_common, check_resume

    for check in (check_common, check_bytes, check_resume):
        check(AFL(average=True))


def test_gamma_zero_with_equal_sizes_is_fedavg(parabolas) -> None:
    world = parabolas([0, 4], [2, 2])
    ours, _ = world.run(AFL(gamma=0.0), 1.0, lr=0.1, steps=3, rounds=2)
    plain, _ = world.run(make("fedavg"), 1.0, lr=0.1, steps=3, rounds=2)
    assert ours.tree("model")[W].item() == pytest.approx(plain.tree("model")[W].item(), abs=1e-6)
