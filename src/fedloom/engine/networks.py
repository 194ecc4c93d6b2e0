"""Networks of clients that do not all have the same one: how they are named, and who has which."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ..client.networks import Named, refuse_one_network
from ..core.errors import FedloomError, unknown
from ..data.clients import Client
from ..data.federation import Federation
from ..models import options as model_options
from ..models import spelling as model_spelling

GIVEN = "given"  # the name of a network that was made in Python
Entry = dict[str, Any]  # a model's name under `model`, and its options
Several = Sequence[Entry] | Mapping[str, Entry]  # dealt out in turn, or by domain


def spelled(value: Any) -> list[Entry] | dict[str, Entry] | None:
    """The networks that a user names, as a list or by domain, with models' names as registered."""
    if value is None or value == "" or value == []:
        return None
    if isinstance(value, str):
        value = [name.strip() for name in value.split(",")]
    if isinstance(value, Mapping) and "model" not in value:
        return {str(domain): _entry(one) for domain, one in value.items()}
    if isinstance(value, list | tuple):
        return [_entry(one) for one in value]
    raise _wrong(value)


def _entry(one: Any) -> Entry:
    if isinstance(one, str):
        one = {"model": one}
    if not isinstance(one, Mapping) or not isinstance(one.get("model"), str):
        raise _wrong(one)
    name = one["model"]
    return {**one, "model": name if name == GIVEN else model_spelling(name)}


def _wrong(value: Any) -> FedloomError:
    return FedloomError(
        "networks is a list of models' names, or a table with one for each domain; a name may be a "
        f'table {{model = "mlp", hidden = [64]}} with options of the model. {value!r} is neither.'
    )


def name(body: dict[str, Any]) -> None:
    """Let the networks' names stand where otherwise that of the only model is."""
    names = title(body["networks"])
    if body["model"] not in ("auto", names):
        raise FedloomError(
            f"the run has the model {body['model']} and the networks {names}: say one or the other."
        )
    body["model"] = names


def settle(body: dict[str, Any], accepted: str, stronger: Collection[str]) -> None:
    """Give every network all of its options, see `complete`.

    `accepted` is what the method's traits say of networks that differ.
    """
    whole = complete(body["networks"], body.get("network", {}), stronger)
    kinds = different(whole)
    if len(kinds) > 1:
        refuse_one_network(body["method"], accepted)
        body |= {"networks": whole, "network": {}}
    else:  # one network under several names is the model of all
        body |= {"networks": None, "model": kinds[0].model, "network": kinds[0].options}


def entries(networks: Several) -> list[Entry]:
    """The networks that are named, one by one."""
    return list(networks.values() if isinstance(networks, Mapping) else networks)


def title(networks: Several) -> str:
    """Their names in one line, each once."""
    return ",".join(dict.fromkeys(entry["model"] for entry in entries(networks)))


def keys(networks: Several) -> set[str]:
    """The options that at least one of the networks has."""
    return {key for entry in entries(networks) for key in _options(entry)}


def complete(
    networks: Several,
    common: Mapping[str, Any],
    stronger: Collection[str],
) -> list[Entry] | dict[str, Entry]:
    """The networks with all their options.

    `common` ones are for every network that has them and none of its own; those of the common ones
    that are `stronger` come before its own.
    """
    if isinstance(networks, Mapping):
        return {d: _complete(entry, common, stronger) for d, entry in networks.items()}
    return [_complete(entry, common, stronger) for entry in networks]


def _complete(entry: Entry, common: Mapping[str, Any], stronger: Collection[str]) -> Entry:
    own = {key: value for key, value in entry.items() if key != "model"}
    options = _options(entry)
    for key in own:
        if key not in options:
            raise unknown(f"option of model '{entry['model']}'", key, options)
    fitting = {key: value for key, value in common.items() if key in options}
    forced = {key: value for key, value in fitting.items() if key in stronger}
    whole = {"model": entry["model"], **options, **fitting, **own, **forced}
    plain: Entry = json.loads(json.dumps(whole))  # as a file would give it back
    return {key: value for key, value in plain.items() if value is not None}


def _options(entry: Entry) -> dict[str, Any]:
    return {} if entry["model"] == GIVEN else dict(model_options(entry["model"]))


def different(networks: Several) -> list[Named]:
    """The networks without repetitions, in the order in which they are named."""
    first: dict[str, Named] = {}
    for number, entry in enumerate(entries(networks)):
        options = {key: value for key, value in entry.items() if key != "model"}
        first.setdefault(_mark(entry, number), Named(entry["model"], options))
    return list(first.values())


def owned(networks: Several, federation: Federation) -> list[int]:
    """For each client, and each one outside, which of the `different` networks it has."""
    marks = [_mark(entry, number) for number, entry in enumerate(entries(networks))]
    places = {mark: place for place, mark in enumerate(dict.fromkeys(marks))}
    members = (*federation.clients, *federation.outside)
    if not isinstance(networks, Mapping):
        return [places[marks[k % len(marks)]] for k in range(len(members))]
    by_domain = dict(zip(networks, marks, strict=True))
    return [places[mark] for mark in _by_domain(by_domain, members)]


def _by_domain(marks: Mapping[str, str], members: Sequence[Client]) -> Iterator[str]:
    first = next(iter(marks.values()))
    for k, member in enumerate(members):
        if not len(member.train) and not len(member.test):
            yield first  # it is elsewhere, and computes nothing here
        elif member.domain is None:
            raise FedloomError(
                f"networks are named by domain, and client {k} has samples of several domains or "
                "of one without a name: list networks to deal them out in turn."
            )
        elif member.domain not in marks:
            raise unknown("domain among networks", member.domain, marks)
        else:
            yield marks[member.domain]


def _mark(entry: Entry, number: int) -> str:
    """The same for equal networks; those made in Python are all different."""
    if entry["model"] == GIVEN:
        return f"{GIVEN} {number}"
    return json.dumps(entry, sort_keys=True)
