"""The house stands: rooms depend downwards only, the hallway is empty, no room is too large."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "fedloom"

# The rooms, lowest first. A module may import from its own room and from rooms below it; the
# longest prefix counts, so that Flower's server, which runs the engine, stands above the other
# executors.
ROOMS = (
    "core",
    "metrics",
    "data",
    "encoders",
    "models",
    "adapters",
    "client",
    "parts",
    "methods",
    "executors",
    "engine",
    "executors.flower",
    "report",
    "experiments",
    "deploy",
    "loggers",
    "testing",
    "cli",
)
HALLWAY = {"__init__", "__main__", "deploy", "loggers"}
LARGEST_MODULE = 350
LARGEST_FIT = 150


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name without `fedloom.`; packages by theirs."""
    named = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        named[".".join(parts)] = path
    return named


MODULES = modules()


def base_of(name: str, path: Path, node: ast.ImportFrom) -> str | None:
    """The module that a `from ... import` names, without `fedloom.`; None for other packages."""
    if node.level == 0:
        module = node.module or ""
        if module == "fedloom":
            return ""
        return module.removeprefix("fedloom.") if module.startswith("fedloom.") else None
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    package = [part for part in package if part]
    above = package[: len(package) - (node.level - 1)]
    return ".".join([*above, *(node.module.split(".") if node.module else [])])


def imports(name: str) -> set[str]:
    """What a module imports of the package: at its top, inside functions, and for types only."""
    path = MODULES[name]
    wanted: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("fedloom.")]
            wanted.update(found.removeprefix("fedloom.") for found in names)
        elif isinstance(node, ast.ImportFrom):
            base = base_of(name, path, node)
            if base is None:
                continue
            for alias in node.names:
                inner = f"{base}.{alias.name}" if base else alias.name
                wanted.add(inner if inner in MODULES else base)
    return wanted - {name}


GRAPH = {name: imports(name) for name in MODULES}


def room(name: str) -> str | None:
    """The room of a module; None for the package itself, which stands above them all."""
    fitting = [known for known in ROOMS if name == known or name.startswith(f"{known}.")]
    return max(fitting, key=len) if fitting else None


def test_every_module_has_a_room() -> None:
    homeless = [name for name in MODULES if room(name) is None and name not in ("", "__main__")]
    assert not homeless
    assert {room(name) for name in MODULES} >= set(ROOMS)


def test_nothing_else_lies_at_the_top() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == HALLWAY


def test_imports_point_downwards() -> None:
    upwards = []
    for name, wanted in GRAPH.items():
        here = room(name)
        if here is None:
            continue
        for other in wanted:
            there = room(other)
            if other == "" or (there is not None and ROOMS.index(there) > ROOMS.index(here)):
                upwards.append(f"{name} imports {other or 'fedloom'}")
    assert not upwards, "\n".join(sorted(upwards))


def test_there_is_no_import_cycle() -> None:
    """Remove modules that import nothing or that nobody imports; only cycles are left."""
    left = {name: set(wanted) & set(MODULES) for name, wanted in GRAPH.items()}
    while True:
        imported = set().union(*left.values())
        outside = [name for name, wanted in left.items() if not wanted or name not in imported]
        if not outside:
            break
        for name in outside:
            del left[name]
        for wanted in left.values():
            wanted.difference_update(outside)
    assert not left, {name: sorted(wanted) for name, wanted in left.items()}


def test_the_graph_is_not_empty() -> None:
    """The tests above would pass on an empty graph."""
    assert len(MODULES) > 150
    assert sum(map(len, GRAPH.values())) > 500
    assert "core.errors" in GRAPH["core.payload"]


def code_lines(path: Path) -> int:
    """Lines that are neither blank, nor a comment, nor part of a docstring."""
    text = path.read_text("utf-8")
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            prose.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    count = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.strip().startswith("#") and number not in prose:
            count += 1
    return count


def test_a_module_can_be_read_in_one_go() -> None:
    lines = {name: code_lines(path) for name, path in MODULES.items()}
    assert not {name: n for name, n in lines.items() if n > LARGEST_MODULE}


def test_the_training_loop_can_be_read_on_one_page() -> None:
    assert code_lines(MODULES["client.fit"]) < LARGEST_FIT
