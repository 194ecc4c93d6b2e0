"""`Registry`: the one way in which this library is extended.

Methods, plug-ins, executors, readers, partitions, models, encoders, metrics and report sections
each have a registry. A new entry is one file with a decorator in it. The registry finds a file in
its own package by itself; another package points to its file with an entry point of the same name:

    [project.entry-points."fedloom.metrics"]
    my_metric = "my_package.my_metric"
"""

from __future__ import annotations

import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from .errors import FedloomError, unknown

T = TypeVar("T")


_REGISTRIES: WeakSet[Registry[Any]] = WeakSet()


def _imported(module: str) -> ModuleType:
    """A module; one that fails to be imported leaves no entry behind in any registry."""
    with _whole():
        return import_module(module)


@contextmanager
def _whole() -> Iterator[None]:
    """If an import fails in here, forget what the modules that went with it had registered.

    What they imported themselves, and could, stays: it is not imported again.
    """
    try:
        yield
    except BaseException:
        for registry in _REGISTRIES:
            registry._forget_gone()
        raise


def _being_imported() -> str:
    """The innermost module on the stack whose code is being executed."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


@lru_cache(maxsize=1)
def _installed(path: tuple[str, ...]) -> Any:  # its type differs between Pythons
    """The entry points of all packages on the path, read once for all registries."""
    return entry_points()


class Registry(Generic[T]):
    """Everything of one kind, by name. Names are found whatever their case.

    `kind` is the word for an entry in error messages. `group` names the entry points of other
    packages. `packages` are the packages whose modules may hold entries; none of them is imported
    before it is needed, so a worker that wants one method does not wait for all of them.
    `decorator` is how files spell the decorator; by default, the group `fedloom.executors` has
    `@EXECUTORS.register("name")`.

    A name that ends with a colon is a prefix: the entry `hf:` is found for `hf:PATH`, see `split`.
    """

    def __init__(self, kind: str, group: str, *packages: str, decorator: str = "") -> None:
        self.kind = kind
        self.group = group
        self._packages = packages
        self._decorator = decorator or f"{group.rpartition('.')[2].upper()}.register"
        self._entries: dict[str, T] = {}
        self._modules: dict[str, str] = {}  # name -> the module that was being imported
        self._complete = False
        self._loading = RLock()
        _REGISTRIES.add(self)

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator that adds what it decorates under `name`."""

        def add(entry: T) -> T:
            self.add(name, entry)
            return entry

        return add

    def add(self, name: str, entry: T) -> None:
        """Add an entry; a name can be taken only once, in whatever case."""
        taken = self._spelling(name)
        if taken is not None and self._entries[taken] is not entry:
            raise FedloomError(f"a {self.kind} named {taken!r} is registered already.")
        self._entries[name] = entry
        self._modules[name] = _being_imported()

    def find(self, name: str) -> T:
        """The entry of that name; the error for an unknown name suggests the nearest."""
        return self._entries[self.spelling(name)]

    def spelling(self, name: str) -> str:
        """The name as it was registered: `FedALA` is `fedala`."""
        spelling = self._spelling(name)
        if spelling is None:
            self._load_only(name)
            spelling = self._spelling(name)
        if spelling is None:
            self.load_all()
            spelling = self._spelling(name)
        if spelling is None:
            raise unknown(self.kind, name, self._entries)
        return spelling

    def split(self, name: str) -> tuple[T, str | None]:
        """The entry, and for a prefix such as `hf:PATH` what follows the colon."""
        prefix, colon, rest = name.partition(":")
        if not colon:
            return self.find(name), None
        entry = self.find(f"{prefix}:")
        if not rest:
            raise FedloomError(f"{self.kind} {name!r} needs something after the colon.")
        return entry, rest

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        self.load_all()
        return tuple(sorted(self._entries))

    def items(self) -> list[tuple[str, T]]:
        """All names with their entries, sorted by name."""
        return [(name, self._entries[name]) for name in self.names()]

    def loaded(self) -> dict[str, T]:
        """The entries that have been imported so far, in the order in which they were added."""
        return dict(self._entries)

    def __contains__(self, name: str) -> bool:
        try:
            self.find(name)
        except FedloomError:
            return False
        return True

    def listed(self) -> tuple[str, ...]:
        """All names, read from source files, not imported: help texts cannot wait for torch.

        Only this registry's decorator, or its `add`, at the beginning of a line counts.
        """
        names = {point.name for point in self._entry_points()}
        for _, registered in self._written():
            names.update(registered)
        return tuple(sorted(names))

    def load_all(self) -> None:
        """Import every module that may hold an entry, those of other packages too."""
        # Another thread waits here: a list that is half loaded would suggest wrong names to it.
        with self._loading:
            if self._complete:
                return
            # Set first, for a module that asks for all names while it is imported.
            self._complete = True
            try:
                for package in self._packages:
                    for module in pkgutil.iter_modules(_imported(package).__path__):
                        _imported(f"{package}.{module.name}")
            except BaseException:
                self._complete = False
                raise
            for point in self._entry_points():
                self._load(point)

    def _forget_gone(self) -> None:
        """Forget the entries of modules whose import has failed."""
        for name, module in list(self._modules.items()):
            if module not in sys.modules:
                self._entries.pop(name, None)
                del self._modules[name]

    def _spelling(self, name: str) -> str | None:
        if name in self._entries:
            return name
        for registered in self._entries:
            if registered.lower() == name.lower():
                return registered
        return None

    def _load_only(self, name: str) -> None:
        """Import the one module or entry point that has the entry, if it can be told which.

        Most modules are named after their entry. Where one is not, the sources say which it is.
        """
        stem = name.lower().rstrip(":").replace("-", "_")
        for package in self._packages:
            if stem.isidentifier() and find_spec(f"{package}.{stem}"):
                _imported(f"{package}.{stem}")
        if self._spelling(name) is not None:
            return
        for module, registered in self._written():
            if name.lower() in map(str.lower, registered):
                _imported(module)
                return
        for point in self._entry_points():
            if point.name.lower() == name.lower():
                self._load(point)

    def _written(self) -> Iterator[tuple[str, list[str]]]:
        """The modules of the packages, and the names that their sources register."""
        registry = self.group.rpartition(".")[2].upper()
        call = rf"(?:@(?:\w+\.)*{re.escape(self._decorator)}|{registry}\.add)"
        pattern = re.compile(rf"""^{call}\(\s*["']([^"']+)["']""", re.MULTILINE)
        for package in self._packages:
            top, *inner = package.split(".")
            spec = find_spec(top)  # of the whole name, it would import the packages above it
            if spec is None or spec.submodule_search_locations is None:
                continue
            for folder in spec.submodule_search_locations:
                for path in sorted(Path(folder, *inner).glob("*.py")):
                    module = f"{package}.{path.stem}".removesuffix(".__init__")
                    yield module, pattern.findall(path.read_text("utf-8"))

    def _entry_points(self) -> list[EntryPoint]:
        points = _installed(tuple(sys.path)).select(group=self.group)
        return sorted(points, key=lambda point: point.name)

    def _load(self, point: EntryPoint) -> None:
        """Load another package's entry. A package that fails must not take all others with it."""
        try:
            with _whole():
                entry = point.load()
            # Importing a module has registered what is in it; anything else is the entry itself.
            if not isinstance(entry, ModuleType):
                self.add(point.name, entry)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            message = f"the {self.kind} {point.name!r} could not be loaded: {reason}"
            warnings.warn(message, stacklevel=2)
