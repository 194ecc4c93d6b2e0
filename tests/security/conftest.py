"""The federations of tests/executors/flower, for those who attack them."""

import importlib.util
import sys
from pathlib import Path

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
