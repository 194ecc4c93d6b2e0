"""Python 3.11 to 3.14: what can be known of a version without its PyTorch."""

from __future__ import annotations

import ast
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(
    path for room in ("src", "tests", "docs", "examples", "benchmarks") for path in
    (ROOT / room).rglob("*.py")
)  # fmt: skip
# Modules of Python 3.11 that 3.12, 3.13 or 3.14 no longer have.
GONE = {
    *("asynchat", "asyncore", "distutils", "imp", "smtpd"),
    *(
        "aifc",
        "audioop",
        "cgi",
        "cgitb",
        "chunk",
        "crypt",
        "imghdr",
        "lib2to3",
        "mailcap",
        "msilib",
    ),
    *(
        "nis",
        "nntplib",
        "ossaudiodev",
        "pipes",
        "sndhdr",
        "spwd",
        "sunau",
        "telnetlib",
        "uu",
        "xdrlib",
    ),
}
# Names that are gone by 3.14, or that warn there.
OLD = {
    *("ast.Num", "ast.Str", "ast.Bytes", "ast.NameConstant", "ast.Ellipsis", "typing.ByteString"),
    *("datetime.utcnow", "datetime.utcfromtimestamp", "pkgutil.find_loader", "pkgutil.get_loader"),
    *("importlib.find_loader", "locale.getdefaultlocale", "asyncio.get_event_loop_policy"),
    *(
        "collections.abc.ByteString",
        "logging.warn",
        "unittest.makeSuite",
        "configparser.SafeConfigParser",
    ),
}
COMPILE = """
import sys, warnings
warnings.simplefilter("error")
for path in sys.stdin.read().split("\\0"):
    compile(open(path, encoding="utf-8").read(), path, "exec", dont_inherit=True)
print(sys.version_info[:2])
"""


def test_every_file_is_python_3_11_and_uses_nothing_that_newer_versions_lack() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11" and len(FILES) > 700
    last_words, found = {name.rpartition(".")[2] for name in OLD}, []
    for path in FILES:
        tree = ast.parse(path.read_text("utf-8"), str(path), feature_version=(3, 11))
        for node in ast.walk(tree):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module or ""]
            elif isinstance(node, ast.Attribute) and node.attr in last_words:
                found += [
                    f"{path.name}:{node.lineno}: {name}" for name in OLD & {ast.unparse(node)}
                ]
            found += [f"{path.name}: {name}" for name in modules if name.split(".")[0] in GONE]
    assert not found


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_a_newer_interpreter_compiles_every_file_without_a_warning(version: str) -> None:
    """Such as for an escape that a string does not know; nothing is written or executed."""
    python = shutil.which(f"python{version}")
    command = [python or "", "-I", "-c", COMPILE]
    names = "\0".join(map(str, FILES))
    if not python or subprocess.run([python, "--version"], capture_output=True).returncode:
        pytest.skip(f"python{version} is not installed")
    done = subprocess.run(command, input=names, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"({version.replace('.', ', ')})\n"
