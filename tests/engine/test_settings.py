"""Every setting is explained, and the page about them is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.core.lookup import METHODS, PLUGINS, names
from fedloom.core.registry import Registry
from fedloom.core.settings import described, keyword_options
from fedloom.data.partitions import PARTITIONS
from fedloom.engine import settings
from fedloom.models import MODELS

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.mark.parametrize("section", settings.SECTIONS)
def test_every_setting_has_a_meaning(section: str) -> None:
    found = list(settings.rows(section))
    assert len(found) >= 3
    assert [key for key, _, meaning in found if not meaning] == []


def not_a_sentence(description: str | None) -> bool:
    text = description or ""
    return not text.endswith(".") or len(text.split()) < 5


@pytest.mark.parametrize("section", settings.SECTIONS)
def test_a_description_is_a_whole_sentence(section: str) -> None:
    short = []
    for key, field in described(settings.SECTIONS[section][0]).items():
        if not_a_sentence(field.description):
            short.append(f"{key}: {field.description}")
    assert not short


@pytest.mark.parametrize("registry", [METHODS, PLUGINS], ids=lambda registry: registry.kind)
def test_methods_and_plug_ins_describe_their_settings_in_sentences(registry: Registry) -> None:
    short = []
    checked = 0
    for name, cls in registry.items():
        for key, field in described(cls).items():
            checked += 1
            if not_a_sentence(field.description):
                short.append(f"{name}.{key}: {field.description}")
    assert not short
    assert checked >= 5


def test_partitions_and_models_describe_their_options_in_sentences() -> None:
    options = {name: keyword_options(build) for name, build in MODELS.items()}
    options |= {name: entry.options for name, entry in PARTITIONS.items()}
    short = []
    for name, of_one in options.items():
        for key, option in of_one.items():
            if not_a_sentence(option.description):
                short.append(f"{name}.{key}: {option.description}")
    assert not short
    assert sum(map(len, options.values())) >= 20


def test_the_page_has_the_sentences_of_partitions_and_models() -> None:
    page = settings.markdown()
    beta = PARTITIONS.find("dirichlet").options["beta"]
    assert f"| `dirichlet: beta` | `0.1` | {beta.description} |" in page
    assert f"| {keyword_options(MODELS.find('cnn'))['width'].description} |" in page


def test_every_setting_of_a_method_has_a_default_that_can_be_written() -> None:
    assert ("mu", "0.01") in [(key, default) for key, default, _ in settings.method_rows("fedprox")]
    assert sum(len(settings.method_rows(name)) for name in names()) >= 2


def test_the_page_is_what_the_command_prints() -> None:
    assert PAGE.read_text() == settings.markdown(), (
        "run: fedloom settings --markdown > docs/settings.md"
    )
