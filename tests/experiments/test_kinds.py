"""What methods are for, need and promise, and the pages that say so."""

from __future__ import annotations

import json
import re
from itertools import chain
from pathlib import Path

import pytest

from fedloom.core.errors import FedloomError
from fedloom.core.lookup import METHODS, PLUGINS, find, names, plugins
from fedloom.core.method import Method
from fedloom.experiments import kinds

README = Path(__file__).parents[2] / "papers" / "README.md"


def rows() -> dict[str, tuple[str, str]]:
    """By method, the heading that it stands under in papers/README.md, and what it needs there."""
    found, heading = {}, ""
    for line in README.read_text("utf-8").partition("## Checked")[0].splitlines():
        if line.startswith("### "):
            heading = line.removeprefix("### ")
        row = re.fullmatch(r"\| (`.*`)(?: \(.*\))? \| .* \| (.*) ?\| \[.*\) \|", line)
        if row:
            for name in re.findall(r"`([^`]+)`", row[1]):
                assert name not in found, f"{name} stands there twice"
                found[name] = heading, row[2].strip()
    return found


def test_the_table_of_pages_has_each_method_under_what_it_is_for() -> None:
    found = rows()
    assert {*names(), *(f"+{plugin}" for plugin in plugins())} == set(found)
    for name, (heading, needs) in found.items():
        if name.startswith("+"):
            cls: type[Method] = PLUGINS.find(name[1:])
            stands = kinds.ADDED[PLUGINS.find(name[1:]).purpose]
        else:
            cls = METHODS.find(name)
            stands = kinds.purpose(cls)
        assert heading == stands, name
        assert needs == ", ".join(kinds.needs(cls)), name


def test_every_method_has_one_purpose() -> None:
    groups = kinds.by_purpose(names())
    assert sorted(chain.from_iterable(groups.values())) == sorted(names())
    assert list(groups) == list(kinds.PURPOSES)
    assert "fedgcr" in groups[kinds.DOMAINS] and "ifca" in groups[kinds.GROUPS]


def test_every_plug_in_has_one_purpose_and_a_sentence_of_its_own() -> None:
    groups = kinds.plugins_by_purpose(plugins())
    assert sorted(chain.from_iterable(groups.values())) == sorted(plugins())
    assert kinds.ADDED["other"] not in groups
    assert "krum" in groups[kinds.ADDED["robust"]] and "topk" in groups[kinds.ADDED["short"]]
    sentences = {(PLUGINS.find(name).__doc__ or "").split("\n")[0] for name in plugins()}
    assert len(sentences) == len(plugins()) and all(sentences)


def test_what_plug_ins_need_and_promise() -> None:
    def chosen(text: str) -> list[str]:
        return kinds.with_needs(plugins(), text, PLUGINS.find)

    assert chosen("body") == ["dfdc"] and chosen("plain") == ["dpsgd"]
    assert chosen("nothing") == ["feddecorr"] and "topk" in chosen("models")
    for name in (*chosen("averaging"), *chosen("models")):
        assert PLUGINS.find(name).refuses(METHODS.find("fedproto")), name
    assert kinds.promises(PLUGINS.find("dp")) == [
        "METHOD with dp_noise=0 dp_clip=none",
        "differential privacy, if asked",
    ]
    assert "what dp promises still holds" in kinds.promises(PLUGINS.find("quantise"))


def test_needs_filter() -> None:
    assert "harmofl" in kinds.with_needs(names(), "images")
    assert "fedavg" in kinds.with_needs(names(), "nothing")
    assert not set(kinds.with_needs(names(), "body")) & set(kinds.with_needs(names(), "nothing"))
    with pytest.raises(FedloomError, match="unknown need 'imags'; did you mean 'images'"):
        kinds.with_needs(names(), "imags")
    for need in {need for name in names() for need in kinds.needs(METHODS.find(name))}:
        assert kinds.meaning(need)


def test_promises_are_those_of_the_traits() -> None:
    assert kinds.promises(find("fedprox")) == ["fedavg with mu=0"]
    assert kinds.promises(find("fedproto")) == [
        "local with lam=0 predict=head",
        "differential privacy, if asked",
        "another network for each client",
        "a model for newcomers",
    ]


def test_the_command_lists_them(fedloom) -> None:
    code, out, _ = fedloom("methods", "--needs", "validation")
    assert code == 0 and "fedfomo" in out and "fedavg " not in out and "+dp" not in out
    code, out, _ = fedloom("methods", "--needs", "averaging")
    assert code == 0 and "+krum" in out and "+topk" not in out and "fedavg " not in out
    code, out, _ = fedloom("methods", "fedfomo")
    assert code == 0 and "It needs validation samples" in out and "It promises: local with" in out
    row = json.loads(fedloom("methods", "--needs", "validation", "--json")[1])[0]
    assert row["needs"] == ["validation"] and row["purpose"] == kinds.PERSONAL
