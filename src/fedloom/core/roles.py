"""Roles: what happens to each tensor of a model.

A module or module type decides, never a part of a name.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Literal

from torch import nn

from .errors import FedloomError

Role = Literal["shared", "private", "frozen"]


class Roles:
    """One role for every parameter and buffer of `model`.

    `shared` travels and is averaged, `private` never leaves the client, `frozen` is neither trained
    nor sent. `private` and `frozen` list modules of the model or module types (`[model.head]`,
    `[nn.BatchNorm2d]`); what they do not claim is shared. Buffers follow their module, so BatchNorm
    statistics have a role like everything else.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        private: Iterable[nn.Module | type[nn.Module]] = (),
        frozen: Iterable[nn.Module | type[nn.Module]] = (),
    ) -> None:
        self.of: dict[str, Role] = dict.fromkeys(model.state_dict(), "shared")
        for role, claims in (("private", list(private)), ("frozen", list(frozen))):
            for name in _claimed(model, claims):
                if self.of[name] not in ("shared", role):
                    raise FedloomError(f"tensor {name!r} cannot be both private and frozen.")
                self.of[name] = role  # type: ignore[assignment]
        for name in frozen_in(model):
            self.of[name] = "frozen"

    def also(self, model: nn.Module, *, private: Iterable[nn.Module | type[nn.Module]]) -> Roles:
        """These roles, with more modules `private`."""
        roles = copy.copy(self)
        roles.of = dict(self.of)
        for name in Roles(model, private=private).names("private"):
            roles.of[name] = "private"
        return roles

    def names(self, role: Role) -> list[str]:
        """The names of all tensors with this role, in the model's order."""
        return [n for n, r in self.of.items() if r == role]


def frozen_in(model: nn.Module) -> list[str]:
    """The names of the tensors that the owner of a network has frozen.

    They are parameters that want no gradient, and the buffers of modules that have parameters, but
    none that wants one: in these nothing is trained, so no statistics are gathered either.
    """
    names = {n for n, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}
    if not names:
        return []
    for prefix, module in model.named_modules(remove_duplicate=False):
        parameters = list(module.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            names.update(f"{prefix}.{n}" if prefix else n for n, _ in module.named_buffers())
    return [name for name in model.state_dict() if name in names]


def at_rest(model: nn.Module, frozen: Collection[str]) -> list[nn.Module]:
    """The largest modules that have tensors, all of them `frozen`.

    They are in evaluation mode while the rest of the model is trained.
    """
    if not frozen:
        return []
    resting: list[nn.Module] = []

    def look(module: nn.Module, prefix: str) -> None:
        names = [prefix + name for name in module.state_dict()]
        if names and all(name in frozen for name in names):
            resting.append(module)
            return
        for name, child in module.named_children():
            look(child, f"{prefix}{name}.")

    look(model, "")
    return resting


def twin(model: nn.Module, frozen: Collection[str] | None = None) -> nn.Module:
    """A copy of a network that shares the memory of its frozen tensors with it.

    By default these are `frozen_in` it.
    """
    names = set(frozen_in(model) if frozen is None else frozen)
    shared: dict[int, Any] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in names:
            same = tensor.detach()
            if isinstance(tensor, nn.Parameter):
                same = nn.Parameter(same, requires_grad=tensor.requires_grad)
            shared[id(tensor)] = same
    return copy.deepcopy(model, shared)


def _claimed(model: nn.Module, claims: list[nn.Module | type[nn.Module]]) -> Iterator[str]:
    """The names of all tensors that belong to one of these modules or module types."""
    for claim in claims:
        if not isinstance(claim, (nn.Module, type)):
            raise FedloomError(f"roles are given to modules or module types, not to {claim!r}.")
        prefixes = []
        for name, module in model.named_modules(remove_duplicate=False):
            if module is claim or (isinstance(claim, type) and isinstance(module, claim)):
                prefixes.append(f"{name}." if name else "")
        if not prefixes and isinstance(claim, nn.Module):
            kind = type(claim).__name__
            raise FedloomError(f"a {kind} that is given a role is not part of the model.")
        for name in model.state_dict():
            if name.startswith(tuple(prefixes)):
                yield name
