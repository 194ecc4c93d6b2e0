"""`Registry`: the one way in which this library is extended.

Methods, plug-ins, executors, readers, partitions, models, encoders, metrics and report sections each
have a registry. A new entry is one file with a decorator in it. A file in the registry's own package
is found by itself; another package points to its file with an entry point:

    [project.entry-points."fedloom.metrics"]
    my_metric = "my_package.my_metric"
"""

from __future__ import annotations

import pkgutil
import re
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from .errors import FedloomError, unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """Everything of one kind, by name.

    `kind` is the word for an entry in error messages. `group` names the entry points of other
    packages. `packages` are the packages whose modules may hold entries; none of them is imported
    before it is needed, so a worker that wants one method does not wait for all of them.

    A name that ends with a colon is a prefix: an entry `hf:` is found for `hf:PATH`, see `split`.
    """

    def __init__(self, kind: str, group: str, *packages: str) -> None:
        self.kind = kind
        self.group = group
        self._packages = packages
        self._entries: dict[str, T] = {}
        self._complete = False

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator that adds what it decorates under `name`."""

        def add(entry: T) -> T:
            self.add(name, entry)
            return entry

        return add

    def add(self, name: str, entry: T) -> None:
        """Add an entry; a name can be taken only once."""
        if name in self._entries and self._entries[name] is not entry:
            raise FedloomError(f"a {self.kind} named {name!r} is registered already.")
        self._entries[name] = entry

    def find(self, name: str) -> T:
        """The entry of that name, whatever its case; an unknown name gets an error with the nearest."""
        found = self._lookup(name)
        if found is None:
            self._import_module_of(name)
            found = self._lookup(name)
        if found is None:
            self.load_all()
            found = self._lookup(name)
        if found is None:
            raise unknown(self.kind, name, self._entries)
        return found

    def spelling(self, name: str) -> str:
        """The name as it was registered: `FedALA` is `fedala`."""
        self.find(name)
        if name in self._entries:
            return name
        return next(known for known in self._entries if known.lower() == name.lower())

    def split(self, name: str) -> tuple[T, str | None]:
        """The entry, and for a prefix such as `hf:PATH` what follows the colon."""
        prefix, colon, rest = name.partition(":")
        if not colon or name in self._entries:
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
        """All names, found by reading files instead of importing them: help texts cannot wait for torch."""
        found = {point.name for point in self._entry_points()}
        for path in self._files():
            found.update(
                re.findall(r'^@?[\w.]*\(\s*"([^"]+)"', path.read_text("utf-8"), re.MULTILINE)
            )
        return tuple(sorted(found))

    def load_all(self) -> None:
        """Import every module that may hold an entry, those of other packages too."""
        if self._complete:
            return
        self._complete = True
        for package in self._packages:
            for module in self._modules(package):
                import_module(module)
        for point in self._entry_points():
            self._load(point)

    def _lookup(self, name: str) -> T | None:
        if name in self._entries:
            return self._entries[name]
        for known, entry in self._entries.items():
            if known.lower() == name.lower():
                return entry
        return None

    def _import_module_of(self, name: str) -> None:
        """Import the module that is named after the entry, if there is one."""
        stem = name.lower().replace("-", "_")
        if not stem.isidentifier():
            return
        for package in self._packages:
            if find_spec(f"{package}.{stem}"):
                import_module(f"{package}.{stem}")

    def _modules(self, package: str) -> Iterator[str]:
        for module in pkgutil.iter_modules(import_module(package).__path__):
            yield f"{package}.{module.name}"

    def _files(self) -> Iterator[Path]:
        for package in self._packages:
            spec = find_spec(package)
            for folder in (spec.submodule_search_locations or ()) if spec else ():
                yield from sorted(Path(folder).glob("*.py"))

    def _entry_points(self) -> list[EntryPoint]:
        return sorted(entry_points(group=self.group), key=lambda point: point.name)

    def _load(self, point: EntryPoint) -> None:
        """Load another package's entry. A package that fails must not take all others with it."""
        try:
            entry = point.load()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"the {self.kind} {point.name!r} could not be loaded: {said}", stacklevel=2
            )
            return
        if not isinstance(
            entry, ModuleType
        ):  # a module has registered its entries when it is imported
            self.add(point.name, entry)
