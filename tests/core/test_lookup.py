"""Methods and plug-ins are found by name whatever its case, by file, and from a notebook."""

import pickle
import sys
from pathlib import Path

import pytest

from fedloom.core.errors import FedloomError
from fedloom.core.lookup import METHODS, PLUGINS, find, make, method, names, plugins
from fedloom.core.method import Traits
from fedloom.methods.fedavg import FedAvg

FILE = """
from fedloom import method
from fedloom.methods.fedavg import FedAvg

@method("{name}")
class Mine(FedAvg):
    zeal: float = {zeal}
"""


@pytest.fixture
def registry():
    """Methods that a test registers are forgotten after it."""
    METHODS.load_all()
    before = METHODS.loaded()
    yield
    METHODS._entries = before


def test_both_registries_hold_all_there_is() -> None:
    assert len(names()) >= 45 and names() == METHODS.names()
    assert set(plugins()) >= {"daa", "dfdc", "fedgr"} and plugins() == PLUGINS.names()


def test_both_are_listed_without_imports() -> None:
    assert METHODS.listed() == names()
    assert PLUGINS.listed() == plugins()


@pytest.mark.parametrize("spec", ["FedALA", "FEDALA", "fedala", "FedAvg-FT", "PFedMe"])
def test_the_case_of_a_name_does_not_matter(spec: str) -> None:
    assert find(spec).name == spec.lower()


def test_the_case_of_a_plug_in_does_not_matter() -> None:
    assert find("FPL+DFDC") is find("fpl+dfdc")
    assert find("FPL+DFDC").name == "fpl+dfdc"


def test_a_file_may_use_a_name_that_is_taken(tmp_path: Path) -> None:
    for zeal in (1.0, 2.0):  # two files with one name, as two run folders with a copy each have
        path = tmp_path / f"{zeal}" / "mine.py"
        path.parent.mkdir()
        path.write_text(FILE.format(name="lookup-mine", zeal=zeal))
        made = make(str(path))
        assert made.zeal == zeal
        assert pickle.loads(pickle.dumps(made)) == made
    assert "lookup-mine" not in names()
    assert find("Lookup-Mine").zeal == 2.0


def test_a_file_without_a_method_is_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n")
    with pytest.raises(FedloomError, match="exactly one @method, found 0"):
        find(str(path))
    with pytest.raises(FedloomError, match="no method file"):
        find(str(tmp_path / "nowhere.py"))


def test_a_file_that_is_meant_is_hinted_at(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "fedmine.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedloomError, match=r"say fedmine\.py"):
        find("fedmine")


def test_a_notebook_may_define_a_method_again() -> None:
    def cell(zeal: float) -> type:
        namespace = {"__name__": "__main__"}
        exec(FILE.format(name="lookup-cell", zeal=zeal), namespace)
        return namespace["Mine"]

    cell(1.0)
    second = cell(2.0)
    assert find("lookup-cell") is second
    main = sys.modules["__main__"]
    main.Mine = second  # as in a real notebook, where the class travels by reference
    try:
        assert pickle.loads(pickle.dumps(second())) == second()
    finally:
        del main.Mine


def test_a_registered_name_is_taken(registry) -> None:
    with pytest.raises(FedloomError, match="'fedavg' is registered already"):

        @method("fedavg")
        class Again(FedAvg):
            pass


@pytest.mark.parametrize("variable", ["stage", "training", "neutral", "alone"])
def test_a_class_variable_of_old_is_refused(variable: str, registry) -> None:
    with pytest.raises(FedloomError, match=rf"{variable}.*traits = FedAvg.traits.but\({variable}"):
        method("old-fashioned")(type("Old", (FedAvg,), {variable: None}))


def test_a_setting_may_be_called_like_a_trait(registry) -> None:
    @method("settled")
    class Settled(FedAvg):
        stage: str = "hall"

    assert Settled().stage == "hall" and Settled.traits.stage == Traits().stage


def test_a_file_that_fails_half_way_defines_nothing(tmp_path: Path) -> None:
    path = tmp_path / "half.py"
    path.write_text(
        "from fedloom import method\n"
        "from fedloom.methods.fedavg import FedAvg\n"
        "@method('half-a-file')\n"
        "class Half(FedAvg):\n"
        "    'It is FedAvg.'\n"
        "1 / 0\n"
    )
    with pytest.raises(ZeroDivisionError):
        find(str(path))
    assert "fedloom_user_half" not in sys.modules
    with pytest.raises(FedloomError, match="unknown method 'half-a-file'"):
        find("half-a-file")
