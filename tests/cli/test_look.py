"""The commands that show what there is."""

from __future__ import annotations

from fedloom.core.settings import keyword_options
from fedloom.models import MODELS


def test_models_explains_every_option_of_a_model(fedloom) -> None:
    code, out, _ = fedloom("models")
    assert code == 0
    words = " ".join(out.split())
    for name, build in MODELS.items():
        assert f" {name} " in words
        for key, option in keyword_options(build).items():
            assert f" {key}=" in words
            assert option.description.split()[0] in words
    assert "Channels of the first" in words
