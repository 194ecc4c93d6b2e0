"""Every setting is explained, and the page about them is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.core.lookup import names
from fedloom.engine import settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.mark.parametrize("section", settings.SECTIONS)
def test_every_setting_has_a_meaning(section: str) -> None:
    found = list(settings.rows(section))
    assert len(found) >= 3
    assert [key for key, _, meaning in found if not meaning] == []


@pytest.mark.parametrize("section", settings.SECTIONS)
def test_a_description_is_a_whole_sentence(section: str) -> None:
    short = []
    for key, field in settings.described(settings.SECTIONS[section][0]).items():
        text = field.description or ""
        if not text.endswith(".") or len(text.split()) < 5:
            short.append(f"{key}: {text}")
    assert not short


def test_every_setting_of_a_method_has_a_default_that_can_be_written() -> None:
    assert ("mu", "0.01") in [(key, default) for key, default, _ in settings.method_rows("fedprox")]
    assert sum(len(settings.method_rows(name)) for name in names()) >= 2


def test_the_page_is_what_the_command_prints() -> None:
    assert PAGE.read_text() == settings.markdown(), (
        "run: fedloom settings --markdown > docs/settings.md"
    )
