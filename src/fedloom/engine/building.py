"""From a config and a federation to the network of its clients, or to the several ones."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..adapters import adapt, factors, refuse_uncalled
from ..client.networks import Named, Networks
from ..core.device import CPU
from ..core.errors import FedloomError
from ..core.rng import key
from ..data.federation import Federation
from ..models import Task, build
from ..models.base import in_two
from ..models.fit_for_use import refuse_unfit
from . import networks
from .config import Config


def networks_of(
    config: Config,
    federation: Federation,
    own: nn.Module | Sequence[nn.Module | None] | None,
) -> nn.Module | Networks:
    """The network that a config describes, or the several ones; `own` were made in Python."""
    if isinstance(own, nn.Module):
        return _fitting(config, own, federation)
    made = [module for module in own or () if module is not None]
    if config.networks is None:
        return _fitting(config, made[0], federation) if made else network(config, federation)
    modules, different = [], networks.different(config.networks)
    for named in different:
        if named.model == networks.GIVEN:
            modules.append(_fitting(config, made.pop(0), federation))
        else:
            modules.append(network(config, federation, named))
    owned = networks.owned(config.networks, federation)
    return Networks(tuple(modules), tuple(different), tuple(owned))


def _fitting(config: Config, own: nn.Module, federation: Federation) -> nn.Module:
    """A user's own network, refused if it does not fit the samples; an adapter gets a copy."""
    own = in_two(own)
    refuse_unfit(own, _shown(federation))
    if config.adapter is not None:
        own = copy.deepcopy(own)
    return _adapted(config, own, federation)


def network(config: Config, federation: Federation, named: Named | None = None) -> nn.Module:
    """The model that a config describes, or one of several that it names.

    Its first weights depend on the seed only.
    """
    named = named or Named(config.model, config.network)
    if config.adapter is not None and named.options.get("projection"):
        raise FedloomError(
            f"the adapter {config.adapter} freezes the body of {named.model}, with its projection: "
            "say frozen=true in place of an adapter, or leave out the projection."
        )
    data = federation.data
    shape = tuple(data.x.shape[1:])
    task = Task(
        shape,
        len(data.classes),
        data.vocabulary,
        data.encoder,
        data.mean,
        data.std,
        data.words,
    )
    with CPU.seeded(key(config.seed, "init")):
        model = build(named.model, task, **named.options)
    if ".py:" in named.model:
        refuse_unfit(model, _shown(federation))
    return _adapted(config, model, federation)


def _adapted(config: Config, model: nn.Module, federation: Federation) -> nn.Module:
    """The network with the adapter that the config names, if it names one."""
    if config.adapter is not None:
        model = adapt(model, config.adapter, config.seed, **config.adapting)
    if factors(model):
        refuse_uncalled(model, _shown(federation))
    return model


def _shown(federation: Federation) -> Tensor:
    """Two samples as a network wants them, to see what it does with them."""
    data = federation.data
    return data.prepare(data.take(torch.arange(min(2, len(data.y)))))
