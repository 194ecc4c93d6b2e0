"""Roles: what happens to each tensor of a model.

A module or module type decides, never a part of a name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Literal

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
