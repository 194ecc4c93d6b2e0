"""The split model, the task it is built for, and the registry of builders."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..core import private_torch
from ..core.errors import FedloomError, unknown
from ..core.registry import Registry
from ..core.roles import twin
from ..core.settings import keyword_options, refuse_nameless
from ..core.user_files import code_in


class Split(nn.Module):
    """A network in two parts.

    `body` gives a feature vector of `width` numbers, `head` turns it into logits. `place` is where
    the head was in the network that `split` took apart. `again` are the options with which an
    exported model's network is built once more, where they are not those of the run.
    """

    body: nn.Module
    head: nn.Module
    width: int
    place: str
    again: Mapping[str, Any]

    def __init__(
        self,
        body: nn.Module,
        head: nn.Module,
        width: int,
        place: str = "",
        again: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.width = width
        self.place = place
        self.again = dict(again)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


class Added(nn.Module):
    """What a plug-in adds to a body.

    It is part of the model, but not one of the layers that methods look for in it.
    """


def layers(module: nn.Module) -> Iterator[nn.Module]:
    """A module and everything in it, in order, without what plug-ins added."""
    if not isinstance(module, Added):
        yield module
        for child in module.children():
            yield from layers(child)


@dataclass(frozen=True)
class Task:
    """What a model must fit: the shape of one sample, the number of classes, the vocabulary size.

    `vocabulary` is for tokens and counts every token id, the padding id 0 included. `encoder` names
    the frozen encoders that made the samples; `mean` and `std` are those that images were
    normalised with. `words` is the list that numbered tokens, unless they were hashed.
    """

    shape: tuple[int, ...]
    classes: int
    vocabulary: int | None = None
    encoder: str | None = None
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    words: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1:
            raise FedloomError(f"a task's shape needs at least one positive size, not {self.shape}")
        if self.classes < 1:
            raise FedloomError(f"a task needs at least one class, not {self.classes}")
        if self.vocabulary is not None and self.vocabulary < 1:
            raise FedloomError(
                f"a task's vocabulary needs at least one token, not {self.vocabulary}"
            )


def split(module: nn.Module, head: str | None = None) -> Split:
    """Split a copy of a plain network at its last `nn.Linear`; what is frozen in it is not copied.

    `head`, a dotted path, names another one. "Last" is in the order in which the layers were
    assigned. The network must return what the head returns: anything applied afterwards, such as a
    softmax, would act on the features instead. A run refuses such a network (`refuse_unfit`).
    """
    unhooked(module)
    return apart(twin(module), head)  # the user's own network stays whole


def apart(body: nn.Module, head: str | None = None) -> Split:
    """A plain network, itself, split as by `split`."""
    modules = dict(body.named_modules())
    if head is None:
        head = _last_linear(modules, type(body).__name__)
    if head not in modules:
        raise unknown(
            f"submodule of {type(body).__name__}", head, (name for name in modules if name)
        )
    last = modules[head]
    if not isinstance(last, nn.Linear):
        raise FedloomError(
            f"the head must be an nn.Linear, but '{head}' is a {type(last).__name__}"
        )
    if last is body:
        return Split(nn.Identity(), last, last.in_features)
    path, _, leaf = head.rpartition(".")
    parent = modules[path]
    if isinstance(parent, nn.Sequential) and parent[-1] is not last:
        raise FedloomError(
            f"the head '{head}' must come last, but a {type(parent[-1]).__name__} follows it"
        )
    setattr(parent, leaf, nn.Identity())
    return Split(body, last, last.in_features, head)


def in_two(module: nn.Module, head: str | None = None) -> nn.Module:
    """A network with a body and a head: itself if it has them, else as `split` makes it."""
    if head is None and hasattr(module, "body") and hasattr(module, "head"):
        return module
    return split(module, head)


def _last_linear(modules: dict[str, nn.Module], network: str) -> str:
    last = None
    for name, module in modules.items():
        if isinstance(module, nn.Linear):
            last = name
    if last is None:
        raise FedloomError(f"{network} has no nn.Linear that could be its head")
    return last


def unhooked(module: nn.Module) -> None:
    """Refuse hooks on parameters: a network is copied, and copies of parameters have none."""
    for name, p in module.named_parameters():
        if private_torch.hooked_tensor(p):
            raise FedloomError(
                f"parameter {name!r} has a hook, which copies of the network would lack; hooks on "
                "modules are kept, and `local.fit(gradient=...)` changes gradients."
            )


# ------------------------------------------------------------------------------ the registry

Builder = Callable[..., Split]
Function = TypeVar("Function", bound=Builder)
MODELS: Registry[Builder] = Registry(
    "model", "fedloom.models", "fedloom.models", decorator="register"
)


def register(name: str) -> Callable[[Function], Function]:
    """Make a builder `(task, *, option=default, ...) -> Split` available as `name`.

    The builder of a prefix, such as `timm:`, takes what follows the colon after the task.
    """
    leading = 2 if name.endswith(":") else 1

    def add(builder: Function) -> Function:
        refuse_nameless(name, builder, leading)
        MODELS.add(name, builder)
        return builder

    return add


def found(name: str) -> tuple[Builder, str | None]:
    """The builder of that name; of a prefix such as `timm:`, and of a file, with what it takes."""
    if any(code_in(name)):
        return MODELS.find("py:"), name
    prefix, colon, rest = name.partition(":")
    if colon and rest:
        return MODELS.find(f"{prefix}:"), rest
    return MODELS.find(name), None


def spelling(name: str) -> str:
    """The name as it was registered: `CNN` is `cnn`, `Timm:resnet18` is `timm:resnet18`."""
    if any(code_in(name)):
        return name
    prefix, colon, rest = name.partition(":")
    return MODELS.spelling(prefix + colon) + rest


def options(name: str) -> dict[str, Any]:
    """The options of a model with their defaults."""
    return {key: option.default for key, option in keyword_options(found(name)[0]).items()}


def doc(name: str) -> str:
    """The first paragraph of a model's docstring, on one line."""
    return " ".join((inspect.getdoc(found(name)[0]) or "").split("\n\n")[0].split())


def build(name: str, task: Task, **given: Any) -> Split:
    """Build the model called `name` for `task`, freshly initialised from torch's random state."""
    for option in given:
        if option not in options(name):
            raise unknown(f"option of model '{name}'", option, options(name))
    builder, rest = found(name)
    if rest is not None:
        model = builder(task, rest, **given)
    elif name.endswith(":"):
        raise FedloomError(f"model {name!r} needs something after the colon.")
    else:
        model = builder(task, **given)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


# ------------------------------------------------------------------------------ checks of builders


def image(model: str, task: Task, least: int = 1) -> tuple[int, int, int]:
    """Channels, height and width of the task's images, or an error if `model` cannot take them."""
    if len(task.shape) != 3 or task.vocabulary is not None or min(task.shape[1:]) < least:
        raise FedloomError(
            f"model '{model}' needs images (channels, height, width) of at least {least}x{least} "
            f"pixels, {_but(task)}"
        )
    return task.shape[0], task.shape[1], task.shape[2]


def numbers(model: str, task: Task) -> int:
    """How many numbers a flattened sample has, or an error if the samples are tokens."""
    if task.vocabulary is not None:
        raise FedloomError(f"model '{model}' needs numeric inputs, {_but(task)}")
    return math.prod(task.shape)


def tokens(model: str, task: Task) -> int:
    """The task's vocabulary size, or an error if the samples are not token sequences."""
    if task.vocabulary is None or len(task.shape) != 1:
        raise FedloomError(
            f"model '{model}' needs token sequences (length,) and a vocabulary, {_but(task)}"
        )
    return task.vocabulary


def positive(model: str, **sizes: Any) -> None:
    """Refuse sizes that are not positive integers; torch's own error would not name the option."""
    for option, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise FedloomError(
                f"option '{option}' of model '{model}' must be a positive integer, not {size!r}"
            )


def _but(task: Task) -> str:
    kind = "numbers"
    if task.vocabulary is not None:
        kind = f"tokens out of {task.vocabulary}"
    return f"but the task's samples are {kind} of shape {task.shape}"
