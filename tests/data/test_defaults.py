"""`Dataset(x, y)`: what is filled in where nobody says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import Dataset, FedloomError, federate


def test_samples_and_labels_are_enough() -> None:
    data = Dataset(np.random.default_rng(0).normal(size=(20, 3)), [0, 2] * 10)
    assert data.x.dtype == torch.float32 and data.kind == "vector"
    assert data.classes == ("0", "1", "2") and data.domains == ("data",)
    assert torch.nonzero(data.test).flatten().tolist() == [4, 9, 14, 19]


def test_labels_may_be_texts() -> None:
    data = Dataset(torch.zeros(4, 2), ["ill", "well", "well", "ill"])
    assert data.classes == ("ill", "well") and data.y.tolist() == [0, 1, 1, 0]
    ordered = Dataset(torch.zeros(2, 2), ["ill", "well"], classes=("well", "ill"))
    assert ordered.y.tolist() == [1, 0]
    with pytest.raises(FedloomError, match="label 'dead' is none of the classes"):
        Dataset(torch.zeros(2, 2), ["ill", "dead"], classes=("well", "ill"))


def test_groups_decide_about_the_test_part() -> None:
    group = torch.arange(40) // 4
    data = Dataset(torch.zeros(40, 2), group % 2, group=group)
    tested = set(group[data.test].tolist())
    assert len(tested) == 2 and not tested & set(group[~data.test].tolist())
    assert {g % 2 for g in tested} == {0, 1}


def test_federate_auto_takes_clients_then_domains_then_iid() -> None:
    x, y = torch.zeros(60, 2), torch.arange(60) % 2
    plain = Dataset(x, y)
    assert federate(plain, "auto", clients=3).partition == "iid"
    by_domain = Dataset(x, y, domain=torch.arange(60) // 20)
    assert federate(by_domain, "auto").partition == "domains"
    assert len(federate(by_domain, "auto")) == 3
    owned = Dataset(x, y, owner=torch.arange(60) % 4)
    assert federate(owned, "auto").partition == "natural"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": "digits"}, "wants samples first, not 'digits'"),
        ({"y": [0.5, 1.5]}, "labels must be whole numbers or texts"),
        ({"group": torch.zeros(3)}, "has 3 entries for 2 labels"),
        ({"classes": ("a",)}, "labels must lie between 0 and 0"),
    ],
)
def test_what_does_not_fit_is_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(FedloomError, match=message):
        Dataset(**{"x": torch.zeros(2, 2), "y": [0, 1], **fields})  # type: ignore[arg-type]
