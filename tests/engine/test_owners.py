"""A key that a run does not have is traced to whoever has it."""

from __future__ import annotations

import pytest

from fedloom.core.errors import FedloomError
from fedloom.engine.config import build
from fedloom.engine.owners import owners


def test_methods_plug_ins_partitions_and_models_own_settings() -> None:
    assert "the method fedprox" in owners("mu")
    assert owners("hidden") == ["the model mlp"]
    assert "the partition dirichlet" in owners("beta")
    assert "the plug-in fedgr" in owners("described")
    assert owners("nobody") == []


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("mu", "the method fedprox"),
        ("beta", "the partition dirichlet"),
        ("hidden", "'hidden' is no setting of this run; it belongs to the model mlp."),
        ("epoch", "unknown key 'epoch'; did you mean 'epochs'?"),
        (
            "zzz",
            "unknown key 'zzz'; method, partition and model have: features, norm, width; "
            "`fedloom settings`",
        ),
    ],
)
def test_a_key_that_belongs_elsewhere_says_where(key: str, message: str) -> None:
    with pytest.raises(FedloomError) as error:
        build({"method": "fedavg"}, {key: 1})
    assert message in str(error.value)
