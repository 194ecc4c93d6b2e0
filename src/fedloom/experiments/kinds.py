"""What each method is for, what it needs and what it promises, in words made from its traits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard, cast

from ..core.errors import unknown
from ..core.lookup import METHODS, PLUGINS
from ..core.method import Around, Method, Need, Plugin, Purpose
from .advise.shortlist import NEEDS

ALONE = "Alone, which a federation has to beat"
DUAL = "On frozen vision-language models"
GROUPS = "A model for each group of clients"
OWN_NETWORK = "A model for each client, whose body never travels"
PERSONAL = "A personal model for each client"
DOMAINS = "One common model, for domains that differ"
LABELS = "One common model, for labels that are unevenly dealt out"
WORST = "One common model, for clients that fall behind"
COMMON = "One common model"
PURPOSES = (ALONE, COMMON, LABELS, DOMAINS, WORST, PERSONAL, OWN_NETWORK, GROUPS, DUAL)
ADDED: Mapping[Purpose, str] = {
    "training": "Plug-ins: what clients train",
    "server": "Plug-ins: an optimiser on the server",
    "weights": "Plug-ins: how much each client counts",
    "robust": "Plug-ins: means that a few liars cannot move far",
    "short": "Plug-ins: short uploads",
    "privacy": "Plug-ins: differential privacy",
    "attack": "Plug-ins: attacks, to try the others",
    "other": "Plug-ins: others",
}
AROUND: Mapping[Around, str] = {
    "averaging": "for a plug-in, a method whose server averages what clients upload",
    "models": "for a plug-in, a method whose clients upload models, which are averaged",
    "plain": "for a plug-in, a method with one local training per round, by the cross-entropy",
}
NOTHING = "nothing"  # what most methods need


def purpose(cls: type[Method]) -> str:
    """What a method is for, one of `PURPOSES`."""
    traits = cls.traits
    if traits.world == "dual":
        return DUAL
    if traits.networks == "any":
        return ALONE
    if traits.personalised and hasattr(cls, "groups"):
        return GROUPS
    if traits.personalised:
        return PERSONAL if traits.networks == "same" else OWN_NETWORK
    for trouble, kind in (("domains", DOMAINS), ("worst", WORST), ("labels", LABELS)):
        if trouble in traits.helps:
            return kind
    return COMMON


def by_purpose(wanted: Sequence[str]) -> Mapping[str, list[str]]:
    """These methods under what they are for, in the order of `PURPOSES`."""
    groups: dict[str, list[str]] = {kind: [] for kind in PURPOSES}
    for name in wanted:
        groups[purpose(METHODS.find(name))].append(name)
    return {kind: names for kind, names in groups.items() if names}


def plugins_by_purpose(wanted: Sequence[str]) -> Mapping[str, list[str]]:
    """These plug-ins under what they are for, in the order of `ADDED`."""
    groups: dict[str, list[str]] = {kind: [] for kind in ADDED.values()}
    for name in wanted:
        groups[ADDED[PLUGINS.find(name).purpose]].append(name)
    return {kind: names for kind, names in groups.items() if names}


def needs(cls: type[Method]) -> list[str]:
    """What a method or plug-in cannot do without, in short words."""
    special: list[str] = []
    if cls.traits.world == "dual":
        special.append("dual")
    if _added(cls) and cls.around in AROUND:
        special.append(cls.around)
    return [*special, *cls.traits.needs]


def _added(cls: type[Method]) -> TypeGuard[type[Plugin]]:
    """Whether it is a plug-in, and not a method that is made with one."""
    return issubclass(cls, Plugin) and not cls.name


def promises(cls: type[Method]) -> list[str]:
    """What holds for a method beyond what all methods promise."""
    traits, held = cls.traits, []
    if traits.neutral is not None:
        settings = " ".join(f"{key}={_plain(value)}" for key, value in traits.neutral[0].items())
        held.append(f"{traits.neutral[1]} with {settings}")
    if hasattr(cls, "promise"):
        held.append("differential privacy, if asked")
    if _added(cls):
        if getattr(cls, "private", False) and not hasattr(cls, "promise"):
            held.append("what dp promises still holds")
        return held
    if traits.networks != "same":
        held.append("another network for each client")
    if traits.personalised and traits.by_client is not None:
        held.append("a model for newcomers")
    return held


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool | None) else str(value)


def meaning(need: str) -> str:
    """A need in a sentence's words."""
    if need == "dual":
        return "features of a dual encoder (--encoder lite-clip)"
    if need in AROUND:
        return AROUND[cast(Around, need)]
    return NEEDS[cast(Need, need)]


def with_needs(
    wanted: Sequence[str], text: str, find: Callable[[str], type[Method]] = METHODS.find
) -> list[str]:
    """Those of the methods (or plug-ins) that need all that is listed, or that need `nothing`."""
    asked = [part.strip() for part in text.split(",")]
    known: list[str] = [*NEEDS, "dual", *AROUND, NOTHING]
    for part in asked:
        if part not in known:
            raise unknown("need", part, known)
    chosen = []
    for name in wanted:
        if set(asked) <= set(needs(find(name)) or [NOTHING]):
            chosen.append(name)
    return chosen
