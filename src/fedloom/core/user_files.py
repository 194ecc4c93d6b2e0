"""Python files of a user's own that settings may name beside the method: `mine.py:network`.

Such a file is executed only if it has been allowed. A config that a user writes allows the files
that it names; one that lies in a folder, or that a server sends, does not.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import lookup
from .errors import FedloomError, shortened, unknown

NAMED = re.compile(
    r"(?:pth:|py:)?(?P<file>[^:\0]+\.py):(?P<function>[^:]+)(?::(?P<rest>.+))?", re.S
)
_allowed: set[str] = set()
_modules: dict[str, Any] = {}  # executed files by path


def code_in(value: Any) -> Iterator[str]:
    """The Python files that encoders or networks named in a setting would execute."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from code_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from code_in(inner)
    elif isinstance(value, str) and ".py" in value:
        for name in value.split(","):
            named = NAMED.fullmatch(name.strip())
            if named is not None:
                yield str(Path(named["file"]).resolve())


def _named(settings: Mapping[str, Any]) -> Iterator[str]:
    """The files that a config, or an exported model's description, names beside the method."""
    for section in ("encoder", "model", "network", "networks", "input"):
        yield from code_in(settings.get(section))


def allow(settings: Mapping[str, Any]) -> None:
    """Allow the files that these settings name: a user has written them, or trusts who has."""
    _allowed.update(_named(settings))


def trusted(settings: Mapping[str, Any]) -> bool:
    """Whether these settings execute only what somebody has named: method, encoder, backbone."""
    known = lookup.trusted(str(settings.get("method", "")))
    return known and _allowed.issuperset(_named(settings))


def refuse_untrusted(settings: Mapping[str, Any], where: str | Path) -> None:
    """Refuse files that only another file names, such as the config of a run folder."""
    lookup.refuse_untrusted(str(settings.get("method", "")), where)
    for path in _named(settings):
        _refuse(path, where)


def _refuse(path: str, where: str | Path) -> None:
    if path not in _allowed:
        raise FedloomError(
            f"{where} names the file {shortened(path)}, whose code would be executed; read it "
            "first, and say --trust (in Python, trust=True) if you trust it."
        )


def function_of(file: str, name: str) -> Callable[[], Any]:
    """The function of that name in a user's file, which is executed once."""
    path = str(Path(file).resolve())
    _refuse(path, "a setting")
    if path not in _modules:
        if not Path(path).is_file():
            raise FedloomError(f"there is no file {shortened(path)}.")
        spec = importlib.util.spec_from_file_location(f"fedloom_user_{Path(path).stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _modules[path] = module
    found = getattr(_modules[path], name, None)
    if not callable(found):
        names = [n for n, value in vars(_modules[path]).items() if callable(value)]
        raise unknown(f"function in {file}", name, names)
    function: Callable[[], Any] = found
    return function
