"""No test of this suite may be one that cannot fail."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
# Figures that lie between 0 and 1, or at least above 0, whatever they are figures of.
NEVER_NEGATIVE = ("accuracy", "seconds", "count")


@cache
def functions() -> list[tuple[str, ast.FunctionDef]]:
    """All tests and where they stand."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                found.append((f"{path.relative_to(TESTS)}:{node.lineno}", node))
    return found


def always_true(test: ast.expr) -> bool:
    """Whether a condition holds whatever was computed."""
    if isinstance(test, ast.Constant | ast.Tuple | ast.JoinedStr):
        return True
    if not isinstance(test, ast.Compare):
        return False
    said = ast.unparse(test)
    if said.endswith(">= 0") and "len(" in said:
        return True
    bounds = said.startswith(("0 <=", "0.0 <=")) and said.endswith(("<= 1", "<= 1.0"))
    least = said.endswith((">= 0", ">= 0.0"))
    return (bounds or least) and any(word in said for word in NEVER_NEGATIVE)


def test_no_assertion_holds_by_itself() -> None:
    seen, empty = 0, []
    for place, function in functions():
        for node in ast.walk(function):
            if isinstance(node, ast.Assert):
                seen += 1
                if always_true(node.test):
                    empty.append(f"{place}: {ast.unparse(node.test)}")
    assert seen > 5000
    assert not empty, "\n".join(empty)


def test_every_test_does_something_that_can_fail() -> None:
    """An assertion, or a call of something that checks; not names and values alone."""
    seen, idle = 0, []
    for place, function in functions():
        seen += 1
        if not any(isinstance(node, ast.Assert | ast.Call) for node in ast.walk(function)):
            idle.append(place)
    assert seen > 2000
    assert not idle


def test_what_cannot_fail_is_recognised() -> None:
    for text in ("True", "0 <= run.accuracy <= 1", "summary['accuracy_mean'] >= 0", "len(x) >= 0"):
        assert always_true(ast.parse(text, mode="eval").body)
    for text in ("0 <= share < 1", "accuracy >= 0.5", "x >= 0", "accuracy == 1"):
        assert not always_true(ast.parse(text, mode="eval").body)
