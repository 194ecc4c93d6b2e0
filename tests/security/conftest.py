"""What is attacked: the federations of tests/executors/flower, a finished run and its export."""

import importlib.util
import sys
from pathlib import Path

import pytest

import fedloom
from fedloom import deploy

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # the lies are a module beside the tests

PLACE = HERE.parent / "executors" / "flower" / "conftest.py"
_spec = importlib.util.spec_from_file_location("flower_worlds", PLACE)
assert _spec is not None and _spec.loader is not None
flower = sys.modules["flower_worlds"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(flower)

world = flower.world
deployment = flower.deployment
pytest_collection_modifyitems = flower.pytest_collection_modifyitems


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, which is there to be copied."""
    from fuzz import SMALL

    folder = tmp_path_factory.mktemp("runs") / "honest"
    fedloom.run("fedper", out=folder, report=False, **SMALL)
    return folder


@pytest.fixture(scope="session")
def exported(finished: Path) -> Path:
    """The export of one of its models."""
    return deploy.export(deploy.trained(finished, 0), finished.parent / "model")
