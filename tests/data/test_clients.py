"""Clients as arrays: the same clients, whichever way they are made."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fedloom.core.errors import FedloomError
from fedloom.core.payload import Payload
from fedloom.data.clients import SPLITS, Client, Clients, domain_names, first_alike, sizes
from fedloom.data.dataset import Dataset
from fedloom.data.described import arrays, described, listed, number_of, samples_of
from fedloom.data.federation import Federation
from fedloom.data.fingerprint import fingerprint
from fedloom.metrics.distribution import MANY

NONE = np.arange(0)


def members() -> list[Client]:
    return [
        Client(np.array([4, 1]), NONE, np.array([7]), "a"),
        Client(np.array([2], dtype=np.int32), np.array([0, 3]), NONE, None),
        Client(np.array([5]), NONE, np.array([7]), "b"),
    ]


def data(n: int = 8) -> Dataset:
    return Dataset(torch.zeros(n, 2), torch.arange(n) % 3, classes=("x", "y", "z"))


def test_clients_come_out_as_they_went_in() -> None:
    federation = Federation(data(), members())
    assert isinstance(federation.clients, Clients) and len(federation) == 3
    for given, kept in zip(members(), federation.clients, strict=True):
        assert given.domain == kept.domain
        for split in SPLITS:
            assert getattr(given, split).tolist() == getattr(kept, split).tolist()
    assert federation.clients[-1].domain == "b"
    assert [c.domain for c in federation.clients[:2]] == ["a", None]
    assert sizes(federation.clients, "train").tolist() == [2, 1, 1]
    assert domain_names(federation.clients) == ["a", None, "b"]
    with pytest.raises(IndexError):
        federation.clients[3]


def test_owners_say_who_has_what() -> None:
    owner = np.array([1, 0, 1, -1, 0, 2])
    test = np.array([False, False, True, True, True, False])
    held = np.array([False, False, True, False, False, False])
    clients = Clients.owned(owner, test, held, np.array([1, 0, 0]), ("a", "b"))
    assert [c.train.tolist() for c in clients] == [[1], [0], [5]]
    assert [c.test.tolist() for c in clients] == [[4], [2], []]  # a test sample is for nothing else
    assert [c.domain for c in clients] == ["b", "a", "a"]
    with pytest.raises(FedloomError, match="2 entries for 3 clients"):
        Clients.owned(owner, test, held, np.array([1, 0]))


def test_what_a_site_claims_takes_no_memory() -> None:
    claimed = Client(np.broadcast_to(np.int64(0), 10**12), NONE, NONE)
    federation = Federation(data(), (claimed, *members()))
    assert federation.rows(0).strides == (0,) and len(federation.clients[0].train) == 10**12
    assert sizes(federation.clients, "train").tolist() == [10**12, 2, 1, 1]


@pytest.mark.parametrize("clients", [3, MANY + 1])
def test_a_sample_that_is_not_there_is_refused(clients: int) -> None:
    wrong = [*members(), *[Client(np.array([6]), NONE, NONE)] * (clients - 3)]
    wrong[2] = Client(np.array([5]), np.array([8]), NONE)
    with pytest.raises(FedloomError, match="client 2: validation names sample 8"):
        Federation(data(), wrong)
    with pytest.raises(FedloomError, match="client 0: train must be a NumPy vector"):
        Federation(data(), [Client([1], NONE, NONE)])  # type: ignore[arg-type]


def test_the_first_with_the_same_samples() -> None:
    clients = Clients.of([*members(), *members()])
    everybody = np.arange(6)
    assert first_alike(clients, "train", everybody).tolist() == [0, 1, 2, 0, 1, 2]
    assert first_alike(clients, "test", everybody).tolist() == [0, 1, 0, 0, 1, 0]
    assert first_alike(clients, "train", np.array([1, 3, 5])).tolist() == [0, 1, 2]


def many() -> Federation:
    n = MANY + 1
    owner = np.repeat(np.arange(n), 2)
    test = np.arange(2 * n) % 2 == 1
    places = np.arange(n) % 3 - 1
    return Federation(data(2 * n), Clients.owned(owner, test, None, places, ("a", "b")))


def test_very_many_are_summed_up_and_lie_in_arrays() -> None:
    federation = many()
    facts = described(federation)
    n = MANY + 1
    assert number_of(facts) == n and listed(facts) == []
    assert samples_of(facts, "train") == samples_of(facts, "test") == n
    assert facts["clients"]["domains"] == {"a": 3334, "b": 3333}
    stored = Payload.decode(arrays(federation).encode())
    assert stored.tensor("domain").tolist() == federation.clients.domain.tolist()  # type: ignore
    assert stored.tensor("train").tolist() == [1] * n
    for k in (0, 1, n - 1):
        start, end = stored.tensor("counts/starts")[k : k + 2].tolist()
        assert stored.tensor("counts/number")[start:end].tolist() == [1]
        label = int(federation.data.y[federation.rows(k)][0])
        assert stored.tensor("counts/label")[start:end].tolist() == [label]


def test_a_few_are_listed_as_ever() -> None:
    facts = described(Federation(data(), members()))
    assert number_of(facts) == 3 and samples_of(facts, "train") == 4
    assert listed(facts)[0] == {
        "domain": "a",
        "train": 2,
        "validation": 0,
        "test": 1,
        "counts": [0, 2, 0],
        "test_counts": [0, 1, 0],
    }


def test_who_has_what_is_known_again() -> None:
    before = many()
    clients = before.clients
    assert isinstance(clients, Clients) and fingerprint(many()) == fingerprint(before)
    moved = dataclasses.replace(clients, domain=np.roll(clients.domain, 1))
    assert fingerprint(Federation(before.data, moved)) != fingerprint(before)
