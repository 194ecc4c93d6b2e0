"""Finding and making methods and plug-ins: `fedavg`, `FedALA`, `fpl+dfdc`, `path/to/mine.py`.

A method of this library is a module of `fedloom.methods`, a plug-in one of
`fedloom.methods.plugins`; other packages add theirs by the entry points `fedloom.methods` and
`fedloom.plugins`. A method that a user defines in a notebook or keeps in a file of his own is found
by its name or its path; it is in no list, may be defined again, and comes before a registered one
of the same name.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, cast, dataclass_transform

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as validated

from .errors import FedloomError, explain, shortened, unknown
from .method import Method, Plugin, Traits
from .registry import Registry

METHODS: Registry[type[Method]] = Registry(
    "method", "fedloom.methods", "fedloom.methods", decorator="method"
)
PLUGINS: Registry[type[Plugin]] = Registry(
    "plug-in", "fedloom.plugins", "fedloom.methods.plugins", decorator="plugin"
)

T = TypeVar("T", bound=Method)
P = TypeVar("P", bound=Plugin)

_USER_MODULE = "fedloom_user_"
_users: dict[str, type[Method]] = {}  # methods from notebooks and users' files, by name
_files: dict[str, type[Method]] = {}  # those of users' files, by path
_combined: dict[tuple[type[Method], str], type[Method]] = {}  # one class for each METHOD+PLUGIN


@dataclass_transform(frozen_default=True, kw_only_default=True)
def method(name: str) -> Callable[[type[T]], type[T]]:
    """Register a class as the method `name`, as a frozen dataclass whose fields are checked."""

    def register(cls: type[T]) -> type[T]:
        finished = _finished(cls, name)
        finished.name = name
        if _is_users(finished):
            _users[name] = finished
        else:
            METHODS.add(name, finished)
        return finished

    return register


@dataclass_transform(frozen_default=True, kw_only_default=True)
def plugin(name: str) -> Callable[[type[P]], type[P]]:
    """Register a class as the plug-in `+name`; like a method's, its fields are checked."""

    def register(cls: type[P]) -> type[P]:
        finished = _finished(cls, f"+{name}")
        PLUGINS.add(name, finished)
        return finished

    return register


base = validated(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
base.__doc__ = "Make a class with settings that several methods inherit; it has no name of its own."


def find(spec: str) -> type[Method]:
    """The class of a method by its name or its file, with the plug-ins that the spec adds."""
    name, plugins_added = parsed(spec)
    cls = _from_file(Path(name)) if is_file(spec) else _by_name(name)
    for added in plugins_added:
        cls = plug(cls, added)
    return cls


def make(spec: str, params: Mapping[str, Any] | None = None) -> Method:
    """The method `spec` with these hyper-parameters; an error names the one that is wrong."""
    cls = find(spec)
    params = params or {}
    settings = _fields(cls)
    for key in params:
        if key not in settings:
            raise unknown(f"setting of {spec}", key, settings)
    try:
        return cls(**params)
    except ValidationError as error:
        raise FedloomError(f"{spec}: {explain(error)}") from None


def trusted(spec: str) -> bool:
    """Whether finding a method executes only fedloom's code and that of installed packages.

    A user's file counts as trusted once it has been executed in this process: somebody named it.
    """
    return not is_file(spec) or str(Path(parsed(spec)[0]).resolve()) in _files


def is_file(spec: str) -> bool:
    """Whether a method is named by a file, which finding it executes."""
    name, _ = parsed(spec)
    return name.endswith(".py") and "\0" not in name  # no file has that in its name


def refuse_untrusted(spec: str, where: str | Path) -> None:
    """Refuse a method file that only another file names, such as the config of a run folder."""
    if not trusted(spec):
        path = Path(parsed(spec)[0]).resolve()
        raise FedloomError(
            f"{where} names the method file {path}, whose code would be executed; read it first, "
            "and say --trust (in Python, trust=True) if you trust it."
        )


def names() -> tuple[str, ...]:
    """All registered methods, in alphabetical order."""
    return METHODS.names()


def methods_with(has: Callable[[Traits], bool]) -> list[str]:
    """The registered methods whose traits are so, in alphabetical order."""
    return [name for name, cls in METHODS.items() if has(cls.traits)]


def plugins() -> tuple[str, ...]:
    """All registered plug-ins, in alphabetical order."""
    return PLUGINS.names()


def parsed(spec: str) -> tuple[str, list[str]]:
    """A method's name or file, and the plug-ins round it: `fpl+dfdc` is `fpl` and `["dfdc"]`."""
    added: list[str] = []
    while "+" in spec and not spec.endswith(".py"):
        spec, _, last = spec.rpartition("+")
        added.insert(0, last)
    return spec, added


def plug(cls: type[Method], name: str) -> type[Method]:
    """The class of the method `cls` with the plug-in `name` round it."""
    part = PLUGINS.find(name)
    name = PLUGINS.spelling(name)
    if (cls, name) in _combined:
        return _combined[cls, name]
    whole = f"{cls.name}+{name}"
    if issubclass(cls, part):
        raise FedloomError(f"{whole}: {cls.name} has {name} already.")
    both = _fields(part) & _fields(cls)
    if both:
        raise FedloomError(
            f"{whole}: both have a setting {min(both)!r}, so they cannot be combined."
        )
    reason = part.refuses(cls)
    if reason:
        raise FedloomError(f"{whole}: {reason}")
    origin = None
    if cls.origin:
        origin = f"{cls.origin}+{name}"
    attributes = {
        "__module__": part.__module__,
        "__doc__": cls.__doc__,
        "name": whole,
        "origin": origin,
        "plugged": (cls, name),
        "traits": _traits_of_both(cls, part.traits),
    }
    combined = type(f"{cls.__name__}{part.__name__}", (part, cls), attributes)
    _combined[cls, name] = _finished(cast(type[Method], combined), whole)
    return _combined[cls, name]


def _fields(cls: Any) -> set[str]:
    """The names of a dataclass's fields."""
    return {field.name for field in fields(cls)}


def _traits_of_both(cls: type[Method], added: Traits) -> Traits:
    """The traits of the method `cls` with a plug-in round it that has the traits `added`."""
    traits = cls.traits
    presets = {}
    for name in (*traits.presets, *added.presets):
        presets[name] = {**traits.presets.get(name, {}), **added.presets.get(name, {})}
    alone: Mapping[str, Any] | None = None
    if traits.alone is not None and added.alone is not None:
        neutral = traits.neutral[0] if traits.neutral else {}
        alone = {**neutral, **traits.alone}
    quiet = None
    if added.neutral is not None:
        quiet = added.neutral[0], cls.origin or cls.name
    sums = traits.sums and added.sums
    return traits.but(neutral=quiet, alone=alone, presets=presets, sums=sums)


def _finished(cls: type[T], name: str) -> type[T]:
    """The class as a frozen dataclass with checked fields that other processes can be sent."""
    finished = cast(type[T], base(cls))
    _refuse_class_variables(finished, name)
    finished.__reduce__ = _reduced  # type: ignore[method-assign, assignment]
    return finished


def _refuse_class_variables(cls: type[Method], name: str) -> None:
    """Traits were class variables once; such a variable would have no effect."""
    traits, settings = _fields(Traits), _fields(cls)
    for parent in cls.__mro__:
        for wrong in traits & set(vars(parent)) - settings:
            raise FedloomError(
                f"{name}: {wrong!r} is not a class variable but one of the traits; write "
                f"traits = {cls.__mro__[1].__name__}.traits.but({wrong}=...)."
            )


def _reduced(self: Method) -> Any:
    """How a method is pickled: by name or file; a class from a notebook travels by reference."""
    cls: type[Method] = type(self)
    added: list[str] = []
    while cls.plugged:
        cls, name = cls.plugged
        added.insert(0, name)
    if cls.__module__ == "__main__":
        return _rebuilt, (cls, added, self.params())
    return make, (type(self).origin or self.name, self.params())


def _rebuilt(cls: type[Method], added: list[str], params: dict[str, Any]) -> Method:
    for name in added:
        cls = plug(cls, name)
    return cls(**params)


def _is_users(cls: type[Method]) -> bool:
    """Whether the class comes from a notebook, a script or a user's file."""
    return cls.__module__ == "__main__" or cls.__module__.startswith(_USER_MODULE)


def _by_name(name: str) -> type[Method]:
    for spelling, cls in _users.items():
        if spelling.lower() == name.lower():
            return cls
    try:
        return METHODS.find(name)
    except FedloomError as error:
        if not os.path.exists(f"{name}.py"):  # unlike a Path, it takes any text for a name
            raise
        raise FedloomError(f"{error} (to use your own file, say {name}.py)") from None


def _from_file(path: Path) -> type[Method]:
    """The one method that a user's file defines; a file is executed once."""
    origin = str(path.resolve())
    if origin in _files:
        return _files[origin]
    if not os.path.isfile(path):
        raise FedloomError(f"there is no method file {shortened(origin)}.")
    module_name = f"{_USER_MODULE}{path.stem}"
    before = dict(_users)
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # What it had defined by then is half a file.
        del sys.modules[module_name]
        _users.clear()
        _users.update(before)
        raise
    new = []
    for name, cls in _users.items():
        if before.get(name) is not cls and cls.__module__ == module_name:
            new.append(cls)
    if len(new) != 1:
        raise FedloomError(f"{path} must define exactly one @method, found {len(new)}.")
    new[0].origin = origin
    _files[origin] = new[0]
    return new[0]
