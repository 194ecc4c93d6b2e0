"""Which methods are worth trying: those made for a federation's troubles that can run on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from ...core.errors import FedloomError
from ...core.lookup import find, names
from ...core.method import Need, Traits, Trouble
from ...core.private_torch import BATCHNORMS
from ...data.federation import Federation
from ...engine.building import network
from ...engine.config import Config
from ...report.verdict import ALONE, SIMPLE
from .work import Work

ALWAYS = (ALONE, *SIMPLE)  # what every other method has to be measured against
MOST = 8  # methods beside these

TROUBLES: Mapping[Trouble, str] = {
    "labels": "labels that are unevenly dealt out",
    "domains": "domains that look different",
    "few": "few samples each",
    "worst": "clients that fall behind",
    "alike": "clients that are alike",
}
NEEDS: Mapping[Need, str] = {
    "batchnorm": "a network with BatchNorm (--set norm=true)",
    "body": "a network with layers below its head (--model mlp)",
    "images": "images",
    "validation": "validation samples (--set validation=0.1)",
    "projection": "frozen features and --model projection",
    "prompts": "a frozen ViT (--model vpt)",
}
Count = Callable[[str], Work]


@dataclass(frozen=True)
class Candidate:
    """A method on the shortlist: which troubles it is made for, and what a round of it costs."""

    method: str
    helps: tuple[Trouble, ...]
    work: Work


@dataclass(frozen=True)
class Shortlist:
    """The methods to try, in order, and why others are not among them."""

    candidates: tuple[Candidate, ...]
    left_out: Mapping[str, str]

    @property
    def methods(self) -> list[str]:
        """Their names."""
        return [candidate.method for candidate in self.candidates]


def shortlist(
    troubles: Sequence[Trouble],
    config: Config,
    federation: Federation,
    count: Count,
    asked: Sequence[str] = (),
    most: int = MOST,
) -> Shortlist:
    """Choose methods by their traits and have a round of each counted.

    `federation` has samples as the network takes them. `asked` are methods that the user wants
    tried in place of a choice by traits. With `most` 0, only those are counted that are always
    tried.
    """
    have = facilities(config, federation)
    left_out: dict[str, str] = {}
    always, others = [], []
    considered = asked or names()
    if not most:
        considered = ()
    for method in dict.fromkeys((*ALWAYS, *considered)):
        traits = find(method).traits
        fitting = [trouble for trouble in traits.helps if trouble in troubles]
        wanted = method in ALWAYS or method in asked
        if not wanted and not fitting:
            continue
        reason = lacking(traits.needs, have) or _other_world(traits, config)
        if reason:
            left_out[method] = reason
            continue
        try:
            candidate = Candidate(method, tuple(fitting), count(method))
        except Exception as error:  # whatever a method may raise on data that it was not made for
            left_out[method] = str(error)
            continue
        if method in ALWAYS:
            always.append(candidate)
        else:
            others.append(candidate)
    for method in ALWAYS[:2]:
        if method in left_out:
            raise FedloomError(f"{method} cannot run on these data: {left_out[method]}")
    if not asked:
        others.sort(key=lambda candidate: _place(candidate, troubles))
        for candidate in others[most:]:
            left_out[candidate.method] = f"{most} others fit as well or better, or cost less"
        others = others[:most]
    return Shortlist((*always, *others), left_out)


def _place(candidate: Candidate, troubles: Sequence[Trouble]) -> tuple[int, bool, int, float, str]:
    """Where a method stands: first by how many troubles it is made for, last by what it costs.

    Where labels are uneven, a model of its own serves a client better than any common one. A method
    for everything must not take the place of one made for just these troubles, of which there are
    more than places.
    """
    traits = find(candidate.method).traits
    common = "labels" in troubles and not traits.personalised
    elsewhere = len(traits.helps) - len(candidate.helps)
    return -len(candidate.helps), common, elsewhere, candidate.work.points, candidate.method


def facilities(config: Config, federation: Federation) -> set[Need]:
    """What data and network have to offer."""
    have: set[Need] = set()
    if federation.data.kind == "image":
        have.add("images")
    if any(len(client.validation) for client in federation.clients):
        have.add("validation")
    if config.encoder and config.model == "projection":
        have.add("projection")
    if config.model == "vpt":
        have.add("prompts")
    if config.model == "given":  # the user's own network, of which nothing is known here
        return have | {"batchnorm", "body"}
    built = network(config, federation)
    if any(isinstance(module, BATCHNORMS) for module in built.modules()):
        have.add("batchnorm")
    body = built.body
    assert isinstance(body, nn.Module)
    if any(parameter.requires_grad for parameter in body.parameters()):
        have.add("body")
    return have


def lacking(needs: Sequence[Need], have: set[Need]) -> str:
    """What a method needs and there is not, in words; empty if it has everything."""
    missing = [NEEDS[need] for need in needs if need not in have]
    if not missing:
        return ""
    return f"it needs {' and '.join(missing)}"


def _other_world(traits: Traits, config: Config) -> str:
    """Why a method cannot be raced with the others, which train the network as it is."""
    if traits.world == "dual" and not config.encoder:
        return "it needs features of a dual encoder (--encoder lite-clip)"
    if traits.adapter and not config.adapter:
        return f"it trains an adapter only (--set adapter={traits.adapter})"
    return ""
