"""Faults inside a reader, which may be somebody else's, are told in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import FedloomError
from fedloom.data.catalogue import kind_of, load
from fedloom.data.readers.base import READERS, Kind, Reader


class Faulty(Reader):
    """A .faulty file, which names the step that fails."""

    def recognises(self, path: Path) -> bool:
        if path.suffix != ".faulty":
            return False
        _fail_in("recognises", str(path))
        return True

    def kind(self, path: str) -> Kind:
        _fail_in("kind", path)
        return "vector"

    def read(self, path: str, *_: Any) -> Any:
        _fail_in("read", path)
        if Path(path).read_text() == "refuse":
            raise FedloomError("line 3: no label.")
        return [1, 2, 3]


def _fail_in(step: str, path: str) -> None:
    if Path(path).read_text() == step:
        raise KeyError("column\nof labels")


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file that the reader `faulty` recognises; the reader is gone after the test."""
    monkeypatch.setattr(READERS, "_entries", {**dict(READERS.items()), "faulty": Faulty})
    return tmp_path / "samples.faulty"


@pytest.mark.parametrize("step", ["recognises", "kind", "read"])
def test_a_fault_names_the_reader_the_path_and_the_cause(faulty: Path, step: str) -> None:
    faulty.write_text(step)
    with pytest.raises(FedloomError) as refusal:
        kind_of(str(faulty))
        load(str(faulty))
    assert isinstance(refusal.value.__cause__, KeyError)
    sentence = str(refusal.value)
    assert sentence.startswith(f"the reader 'faulty' failed at {faulty}: KeyError: 'column")
    assert f"({__file__}, line " in sentence and "\n" not in sentence


def test_a_reader_that_returns_something_else_is_named(faulty: Path) -> None:
    faulty.write_text("nothing fails")
    with pytest.raises(FedloomError, match=f"'faulty' made a list of {faulty}, where a Dataset"):
        load(str(faulty))


def test_a_refusal_of_the_reader_stays_as_it_is(faulty: Path) -> None:
    faulty.write_text("refuse")
    with pytest.raises(FedloomError, match=r"^line 3: no label\.$"):
        load(str(faulty))
