"""Names, nearest names, prefixes, lazy imports and the entries of other packages."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import FedloomError
from fedloom.core.registry import Registry
from fedloom.executors import EXECUTORS

# A package `things` that holds its own registry, as `fedloom.executors` does.
PACKAGE = """
from fedloom.core.registry import Registry
THINGS = Registry("thing", "test.things", "things")
"""
FILE = """
from . import THINGS
@THINGS.register("{name}")
class Thing: pass
"""
Write = Callable[[dict[str, str]], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes files to a folder that Python imports from; their modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    def files(contents: dict[str, str]) -> None:
        for name, text in contents.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    yield files
    for name in set(sys.modules) - before:
        if name.startswith(("things", "elsewhere")):
            del sys.modules[name]


def things(write: Write, *names: str) -> Registry[Any]:
    """The registry of a package with one file for each name."""
    write({"things/__init__.py": PACKAGE})
    for name in names:
        stem = name.rstrip(":").replace("-", "_")
        write({f"things/{stem}.py": FILE.format(name=name)})
    registry: Registry[Any] = import_module("things").THINGS
    return registry


def entry_points(write: Write, **points: str) -> None:
    """An installed distribution, as far as Python sees, with these entry points."""
    lines = [f"{name} = {target}" for name, target in points.items()]
    folder = "elsewhere-1.0.dist-info"
    write(
        {
            f"{folder}/METADATA": "Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n",
            f"{folder}/entry_points.txt": "\n".join(["[test.things]", *lines, ""]),
        }
    )


def test_the_decorator_adds_and_hands_back_what_it_decorates() -> None:
    registry: Registry[type] = Registry("thing", "test.things")

    @registry.register("one")
    class One:
        pass

    assert isinstance(One, type)
    assert registry.find("one") is One
    assert registry.names() == ("one",)
    assert registry.items() == [("one", One)]


@pytest.mark.parametrize("again", ["one", "ONE"])
def test_a_name_is_taken_once(again: str) -> None:
    registry: Registry[int] = Registry("thing", "test.things")
    registry.add("one", 1)
    with pytest.raises(FedloomError, match="a thing named 'one' is registered already"):
        registry.add(again, 1000)
    assert registry.find("one") == 1


def test_the_same_entry_may_be_added_again() -> None:
    registry: Registry[str] = Registry("thing", "test.things")
    registry.add("one", "entry")
    registry.add("one", "entry")
    assert registry.names() == ("one",)


def test_an_unknown_name_gets_the_nearest_or_all() -> None:
    registry: Registry[int] = Registry("thing", "test.things")
    registry.add("hammer", 1)
    registry.add("saw", 2)
    with pytest.raises(FedloomError, match=r"unknown thing 'hamer'; did you mean 'hammer'\?"):
        registry.find("hamer")
    with pytest.raises(FedloomError, match=r"unknown thing 'x'; known: hammer, saw\."):
        registry.find("x")
    assert "hamer" not in registry
    assert "hammer" in registry


def test_the_nearest_name_is_found_whatever_its_case() -> None:
    registry: Registry[int] = Registry("thing", "test.things")
    registry.add("hammer", 1)
    with pytest.raises(FedloomError, match=r"did you mean 'hammer'\?"):
        registry.find("HAMER")


def test_case_does_not_matter(write: Write) -> None:
    registry = things(write, "fedala")
    assert registry.find("FedALA") is registry.find("fedala")
    assert registry.spelling("FedALA") == "fedala"
    assert "FEDALA" in registry


def test_a_prefix_is_found_with_what_follows() -> None:
    registry: Registry[int] = Registry("thing", "test.things")
    registry.add("hf:", 1)
    registry.add("plain", 2)
    assert registry.split("hf:some/path:x") == (1, "some/path:x")
    assert registry.split("HF:x") == (1, "x")
    assert registry.split("plain") == (2, None)
    with pytest.raises(FedloomError, match="'hf:' needs something after the colon"):
        registry.split("hf:")
    with pytest.raises(FedloomError, match=r"unknown thing 'hx:'; did you mean 'hf:'\?"):
        registry.split("hx:path")


def test_only_the_module_that_is_asked_for_is_imported(write: Write) -> None:
    registry = things(write, "first", "tip-adapter", "hf:")
    assert registry.find("tip-adapter").__module__ == "things.tip_adapter"
    assert set(registry.loaded()) == {"tip-adapter"}
    assert registry.split("hf:path")[0].__module__ == "things.hf"
    assert set(registry.loaded()) == {"tip-adapter", "hf:"}
    assert registry.names() == ("first", "hf:", "tip-adapter")


def test_a_module_may_hold_several_entries_under_any_name(write: Write) -> None:
    write({"things/pair.py": FILE.format(name="left") + FILE.format(name="right")})
    registry = things(write, "other")
    assert registry.find("Right").__module__ == "things.pair"
    assert set(registry.loaded()) == {"left", "right"}, "the source says which module it is"


def test_every_thread_sees_all_names(write: Write) -> None:
    write({"things/second.py": "import time\ntime.sleep(0.5)\n" + FILE.format(name="second")})
    registry = things(write, "first")
    with ThreadPoolExecutor(4) as threads:
        seen = [threads.submit(registry.names) for _ in range(4)]
    assert [names.result() for names in seen] == [("first", "second")] * 4


def test_a_module_that_fails_is_not_passed_over(write: Write) -> None:
    write({"things/broken.py": "raise RuntimeError('no')"})
    registry = things(write, "first")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            registry.names()


def test_listing_reads_and_imports_nothing(write: Write) -> None:
    write({"things/broken.py": 'raise RuntimeError\n@THINGS.register("broken")\ndef f(): ...\n'})
    registry = things(write, "first", "hf:")
    entry_points(write, distant="elsewhere_nowhere")
    assert registry.listed() == ("broken", "distant", "first", "hf:")
    assert registry.loaded() == {}


def test_only_the_registry_s_own_decorators_are_listed(write: Write) -> None:
    text = '''
"""A file may write of @THINGS.register("prose")."""
@THINGS.register(
    "wrapped"
)
@things.THINGS.register('qualified')
@OTHERS.register("other")
@SOMETHINGS.register("another")
@cache("cached")
def f(): ...
    @THINGS.register("indented")
THINGS.find("found")
print("printed")
# @THINGS.register("comment")
'''
    write({"things/many.py": text})
    assert things(write).listed() == ("qualified", "wrapped")


def test_a_registry_may_name_its_decorator(write: Write) -> None:
    text = (
        '@method("fedavg")\nclass A: ...\n@mymethod("no")\n@METHODS.register("no")\nclass B: ...\n'
    )
    write({"things/__init__.py": "", "things/many.py": text})
    registry: Registry[Any] = Registry("method", "test.methods", "things", decorator="method")
    assert registry.listed() == ("fedavg",)


def test_other_packages_add_modules_and_objects(write: Write) -> None:
    module = 'from things import THINGS\n@THINGS.register("from-module")\ndef thing(): ...\n'
    write({"elsewhere_module.py": module, "elsewhere_object.py": "thing = object()\n"})
    points = {"from-module": "elsewhere_module", "direct": "elsewhere_object:thing"}
    entry_points(write, **points)
    registry = things(write, "first")
    assert registry.listed() == ("direct", "first", "from-module")
    assert registry.find("Direct") is import_module("elsewhere_object").thing
    assert set(registry.loaded()) == {"direct"}, "the others are not needed for it"
    assert registry.names() == ("direct", "first", "from-module")
    assert registry.find("from-module").__module__ == "elsewhere_module"


def test_an_entry_point_that_cannot_be_loaded_only_warns(write: Write) -> None:
    write({"elsewhere_broken.py": "raise RuntimeError('out of order')"})
    entry_points(write, broken="elsewhere_broken", first="os:sep")
    registry = things(write, "first")
    with pytest.warns(UserWarning) as caught:
        assert registry.names() == ("first",)
    messages = sorted(str(warning.message) for warning in caught)
    assert messages == [
        "the thing 'broken' could not be loaded: RuntimeError: out of order",
        "the thing 'first' could not be loaded: FedloomError: a thing named 'first' is registered "
        "already.",
    ]
    assert registry.find("first").__module__ == "things.first"


def test_a_broken_entry_point_does_not_disturb_who_asks_for_another(write: Write) -> None:
    entry_points(write, broken="elsewhere_missing")
    registry = things(write, "first")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.find("first")


def test_the_executors_are_listed_as_they_are_registered() -> None:
    assert EXECUTORS.listed() == EXECUTORS.names()
    assert set(EXECUTORS.names()) >= {"auto", "debug", "inplace", "pool", "vmap"}


HALF = """
from . import THINGS, also
@THINGS.register("half")
class Half: pass
from elsewhere import missing
@THINGS.register("other half")
class Other: pass
"""


def test_a_module_that_fails_leaves_no_half_behind(write: Write) -> None:
    """What it imported before stays: that is not imported again."""
    registry = things(write, "also")
    write({"things/half.py": HALF})
    for _ in range(2):  # the second time fails for the same reason, not because of the first
        with pytest.raises(ModuleNotFoundError, match="elsewhere"):
            registry.find("half")
        assert list(registry.loaded()) == ["also"]
        with pytest.raises(ModuleNotFoundError, match="elsewhere"):
            registry.names()
    write({"elsewhere.py": "missing = 1\n"})
    assert registry.find("half").__name__ == "Half"
    assert registry.names() == ("also", "half", "other half")


def test_another_package_that_fails_leaves_no_half_behind(write: Write) -> None:
    registry = things(write, "own")
    module = 'from things import THINGS\n@THINGS.register("half")\ndef f(): ...\n1 / 0\n'
    write({"elsewhere.py": module})
    entry_points(write, broken="elsewhere")
    with pytest.warns(UserWarning, match="'broken' could not be loaded: ZeroDivisionError"):
        assert registry.names() == ("own",)
