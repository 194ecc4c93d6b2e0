"""`Method`: the contract between an algorithm and everything that runs it.

A method is a pure function of what arrives, what the client remembers and what data it has. It may keep nothing on
itself: a client's memory is `state`, the server's memory is `server`, both payloads (names -> tensors and scalars).
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, cast, dataclass_transform

import torch
from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as validated
from torch import Tensor, nn

from .errors import FedloomError, explain, unknown
from .local import Batch, Local, Predictor, Worker
from .payload import Payload
from .roles import Roles

Stage = Literal["before", "after"]
Uploads = Iterable[
    tuple[int, Payload]
]  # (client, upload), in a fixed order, each to be looked at once


@dataclass(frozen=True)
class Update:
    """What a client hands back."""

    upload: Payload  # goes to the server
    state: Payload = field(default_factory=Payload)  # stays with the client until its next round
    trained: Payload = field(
        default_factory=Payload
    )  # what it holds now, in the form of a download


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What is true of a method whatever its settings; the engine, the checks and the report ask for it.

    A method that inherits states what differs: `traits = FedAvg.traits.but(personalised=True)`.
    """

    # Which personal model the paper reports: the one before or the one after local training.
    stage: Stage = "before"
    # False: every client uses the common model.
    personalised: bool = True
    # Whether the server averages models and asks `weight` how much each one counts.
    averages: bool = False
    # Where the paper's local training differs from the defaults of `Training`.
    training: Mapping[str, Any] = field(default_factory=dict)
    # Named sets of settings, the method's own or of training: {"official": {"mu": 0.1}}. The defaults
    # are the preset `paper`.
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # ({"mu": 0}, "fedavg"): with mu=0 every client's (personal) model is FedAvg's.
    neutral: tuple[Mapping[str, Any], str] | None = None
    # Settings, beside the neutral ones, with which a single client is plain training. None: it never is.
    alone: Mapping[str, Any] | None = field(default_factory=dict)
    # What samples must be: anything the model takes, or features of a dual encoder.
    world: Literal["any", "dual"] = "any"
    # The server's tensors with an entry for each client; a client that joins after training gets an
    # entry of zeros. None: to a client that has sent nothing, the server has nothing of use to send.
    by_client: tuple[str, ...] | None = ("sizes",)

    def but(self, **changes: Any) -> Traits:
        """The same traits but for these."""
        return replace(self, **changes)


class Method:
    """One algorithm. Subclasses are made with `@method(name)`; their fields are the hyper-parameters.

    The hooks below are the whole contract; `methods/fedavg.py` shows them filled in.
    """

    name: ClassVar[str] = ""
    traits: ClassVar[Traits] = Traits()
    origin: ClassVar[str | None] = None  # the file a user's own method came from
    plugged: ClassVar[tuple[type[Method], str] | None] = (
        None  # of METHOD+PLUGIN: the class of METHOD, and PLUGIN
    )

    def extend(self, model: Any, classes: Sequence[str]) -> nn.Module:
        """The network with what the method adds to it (a second head, a projection); by default nothing.

        It keeps its `body` and `head`; new modules are attributes of it, with first weights that depend on the seed.
        """
        return model

    def roles(self, model: nn.Module) -> Roles:
        """What happens to each tensor of the model; by default all are shared."""
        return Roles(model)

    def init(self, worker: Worker) -> Payload:
        """The server before the first round."""
        raise NotImplementedError

    def hello(self, local: Local) -> Payload:
        """What a client says when it first appears."""
        return Payload(size=local.size)

    def join(self, server: Payload, hellos: Mapping[int, Payload]) -> Payload:
        """What the server makes of newcomers: by default it notes their sizes in the vector `sizes`."""
        sizes = server.tensor("sizes").clone()
        for k, hello in hellos.items():
            sizes[k] = int(hello.number("size"))
        return server.replace(sizes=sizes)

    def download(self, server: Payload, k: int) -> Payload:
        """What the server sends to client `k`."""
        raise NotImplementedError

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        """Local work; the only place that sees data."""
        raise NotImplementedError

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        """What the server learns from this round's uploads."""
        raise NotImplementedError

    def weight(self, server: Payload, k: int) -> float:
        """How much client k's upload counts, in methods whose server averages."""
        raise NotImplementedError

    def groups(self, server: Payload) -> Sequence[int] | None:
        """Which group of clients each one is taken to belong to (negative: none), in methods that find groups.

        Evaluation compares them with the clients' domains, which no method knows.
        """
        return None

    def watched(self, model: Any) -> Sequence[nn.Module]:
        """Modules that `terms` wants to see at work; by default none."""
        return ()

    def terms(self, batch: Batch, model: Any) -> dict[str, Tensor]:
        """What is added to the loss of every `local.fit`, by name; `batch.seen` is of the `watched` modules."""
        return {}

    @property
    def adds(self) -> bool:
        """Whether `terms` are its own, so that no loss is what `local.fit` was given."""
        return type(self).terms is not Method.terms

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        """What a client would use, given a download (or `trained`) and its state. It may train first; nothing stays."""
        raise NotImplementedError

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        """The one model for everybody, if the method has one."""
        return None

    def figures(self, server: Payload, worker: Worker) -> Mapping[str, float]:
        """Numbers of the method's own about the server after a round; they go into that round's line of metrics."""
        return {}

    def promise(self) -> tuple[float, float] | None:
        """Noise multiplier and delta of the Gaussian mechanism behind each class's vector in an upload; None: there is
        no such promise of privacy. See `parts/privacy.py`."""
        return None

    def params(self) -> dict[str, Any]:
        """The hyper-parameters as plain values."""
        return asdict(self)  # type: ignore[call-overload]

    def __reduce__(self) -> Any:
        # A worker process finds the method by its name or file; a class from a notebook travels by reference.
        base: type[Method] = type(self)
        plugins: list[str] = []
        while base.plugged:
            base, name = base.plugged
            plugins.insert(0, name)
        if base.__module__ == "__main__":
            return _rebuild, (base, plugins, self.params())
        return make, (type(self).origin or self.name, self.params())


def _rebuild(cls: type[Method], plugins: list[str], params: dict[str, Any]) -> Method:
    for name in plugins:
        cls = plug(cls, name)
    return cls(**params)


class Plugin(Method):
    """Something that can be put round any method whose clients share weights: `fedavg+dfdc`, `fpl+dfdc`.

    A plug-in is a mixin, made with `@plugin(name)`: its hooks come before the method's own and reach them with
    `super()`. `extend`, `roles`, `watched` and `terms` add modules and loss terms, `client` and `download` add entries
    to what travels, `init`, `join` and `aggregate` to what the server knows, `weight` (see `parts/reweighting.py`)
    changes how much a client counts. Its fields are settings of the whole, beside the method's.
    """

    @classmethod
    def refuses(cls, base: type[Method]) -> str | None:
        """Why it cannot be put round `base`, if it cannot."""
        return None

    def init(self, worker: Worker) -> Payload:
        if not worker.roles.names("shared"):
            raise FedloomError(
                f"{self.name}: its clients share no weights, so there is nothing to plug in to."
            )
        return super().init(worker)


def sizes(worker: Worker) -> torch.Tensor:
    """The server's record of client sizes before anybody has said hello."""
    return torch.zeros(worker.clients, dtype=torch.int64)


# -- the registry ---------------------------------------------------------------------------------------------------
REGISTRY: dict[str, type[Method]] = {}
T = TypeVar("T", bound=Method)
_checked = validated(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))


@dataclass_transform(frozen_default=True, kw_only_default=True)
def method(name: str) -> Callable[[type[T]], type[T]]:
    """Register a class as the method `name` and make it a frozen dataclass whose fields are checked."""

    def register(cls: type[T]) -> type[T]:
        made = cast(type[T], _checked(cls))
        made.name = name
        REGISTRY[name] = made
        return made

    return register


PLUGINS: dict[str, type[Plugin]] = {}
P = TypeVar("P", bound=Plugin)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def plugin(name: str) -> Callable[[type[P]], type[P]]:
    """Register a class as the plug-in `+name`; like a method's, its fields are checked."""

    def register(cls: type[P]) -> type[P]:
        made = cast(type[P], _checked(cls))
        PLUGINS[name] = made
        return made

    return register


def plugins() -> tuple[str, ...]:
    """All plug-ins, in alphabetical order."""
    package = importlib.import_module("fedloom.methods.plugins")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"fedloom.methods.plugins.{module.name}")
    return tuple(sorted(PLUGINS))


_PLUGGED: dict[
    tuple[type[Method], str], type[Method]
] = {}  # one class per combination, however often it is named


def plug(base: type[Method], name: str) -> type[Method]:
    """The class of the method `base` with the plug-in `name` round it."""
    if (base, name) in _PLUGGED:
        return _PLUGGED[base, name]
    if name not in plugins():
        raise unknown("plug-in", name, PLUGINS)
    part, whole = PLUGINS[name], f"{base.name}+{name}"
    if issubclass(base, part):
        raise FedloomError(f"{whole}: {base.name} has {name} already.")
    mine, theirs = ({f.name for f in fields(c)} for c in (part, base))  # type: ignore[arg-type]
    if both := sorted(mine & theirs):
        raise FedloomError(f"{whole}: both have a setting {both[0]!r}, so they cannot be combined.")
    if reason := part.refuses(base):
        raise FedloomError(f"{whole}: {reason}")
    said = {
        "__module__": part.__module__,
        "__doc__": base.__doc__,
        "name": whole,
        "origin": f"{base.origin}+{name}" if base.origin else None,
        "plugged": (base, name),
        "traits": _combined(base.traits, part.traits),
    }
    made = type(f"{base.__name__}{part.__name__}", (part, base), said)
    _PLUGGED[base, name] = cast(type[Method], _checked(made))
    return _PLUGGED[base, name]


def _combined(base: Traits, part: Traits) -> Traits:
    """The traits of a method with a plug-in round it."""
    presets = {}
    for name in (*base.presets, *part.presets):
        presets[name] = {**base.presets.get(name, {}), **part.presets.get(name, {})}
    alone: Mapping[str, Any] | None = None
    if base.alone is not None and part.alone is not None:
        neutral = base.neutral[0] if base.neutral else {}
        alone = {**neutral, **base.alone}
    return base.but(neutral=None, alone=alone, presets=presets)


def parsed(spec: str) -> tuple[str, list[str]]:
    """A method's name or file, and the plug-ins round it: `fpl+dfdc` is `fpl` and `["dfdc"]`."""
    found: list[str] = []
    while "+" in spec and not spec.endswith(".py"):
        spec, _, last = spec.rpartition("+")
        found.insert(0, last)
    return spec, found


def names() -> tuple[str, ...]:
    """All methods that come with the library, in alphabetical order."""
    package = importlib.import_module("fedloom.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"fedloom.methods.{module.name}")
    return tuple(
        sorted(
            n for n, cls in REGISTRY.items() if cls.origin is None and cls.__module__ != "__main__"
        )
    )


def find(spec: str) -> type[Method]:
    """The method class of that name, or the one defined in a Python file (`path/to/mine.py`), with its plug-ins."""
    spec, plugged = parsed(spec)
    if plugged:
        cls = find(spec)
        for name in plugged:
            cls = plug(cls, name)
        return cls
    if spec.endswith(".py"):
        return _from_file(Path(spec))
    if spec not in REGISTRY and importlib.util.find_spec(
        own := f"fedloom.methods.{spec.replace('-', '_')}"
    ):
        importlib.import_module(own)  # not all of them: a worker starts in no time
    if spec not in REGISTRY:
        names()
    if spec not in REGISTRY:
        hint = f" (to use your own file, say {spec}.py)" if Path(f"{spec}.py").exists() else ""
        raise FedloomError(f"{unknown('method', spec, REGISTRY)}{hint}")
    return REGISTRY[spec]


def make(spec: str, params: Mapping[str, Any] | None = None) -> Method:
    """The method `spec` with these hyper-parameters; anything wrong is named."""
    cls = find(spec)
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    for key in params or {}:
        if key not in known:
            raise unknown(f"setting of {spec}", key, known)
    try:
        return cls(**(params or {}))
    except ValidationError as error:
        raise FedloomError(f"{spec}: {explain(error)}") from None


def _from_file(path: Path) -> type[Method]:
    origin = str(path.resolve())
    for cls in REGISTRY.values():
        if cls.origin == origin:
            return cls
    if not path.exists():
        raise FedloomError(f"there is no method file {path.resolve()}.")
    before = dict(REGISTRY)
    spec = importlib.util.spec_from_file_location(f"fedloom_user_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    new = [
        cls
        for n, cls in REGISTRY.items()
        if before.get(n) is not cls and cls.__module__ == spec.name
    ]
    if len(new) != 1:
        raise FedloomError(f"{path} must define exactly one @method, found {len(new)}.")
    new[0].origin = origin
    return new[0]
