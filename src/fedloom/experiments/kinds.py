"""What each method is for, what it needs and what it promises, in words made from its traits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from ..core.errors import unknown
from ..core.lookup import METHODS
from ..core.method import Method, Need
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
ADDED = "Plug-ins, round a method whose clients share weights"
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


def needs(cls: type[Method]) -> list[str]:
    """What a method cannot do without, in short words."""
    dual = ["dual"] if cls.traits.world == "dual" else []
    return [*dual, *cls.traits.needs]


def promises(cls: type[Method]) -> list[str]:
    """What holds for a method beyond what all methods promise."""
    traits, held = cls.traits, []
    if traits.neutral is not None:
        settings = " ".join(f"{key}={_plain(value)}" for key, value in traits.neutral[0].items())
        held.append(f"{traits.neutral[1]} with {settings}")
    if hasattr(cls, "promise"):
        held.append("differential privacy, if asked")
    if traits.networks != "same":
        held.append("another network for each client")
    if traits.personalised and traits.by_client is not None:
        held.append("a model for newcomers")
    return held


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def meaning(need: str) -> str:
    """A need in a sentence's words."""
    if need == "dual":
        return "features of a dual encoder (--encoder lite-clip)"
    return NEEDS[cast(Need, need)]


def with_needs(wanted: Sequence[str], text: str) -> list[str]:
    """Those of the methods that need all that is listed, or that need `nothing`."""
    asked = [part.strip() for part in text.split(",")]
    known: list[Need | str] = [*NEEDS, "dual", NOTHING]
    for part in asked:
        if part not in known:
            raise unknown("need", part, known)
    chosen = []
    for name in wanted:
        have = needs(METHODS.find(name)) or [NOTHING]
        if set(asked) <= set(have):
            chosen.append(name)
    return chosen
