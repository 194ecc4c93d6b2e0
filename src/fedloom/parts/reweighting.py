"""Plug-ins that decide how much each client's upload counts."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.method import Method, Plugin, Uploads
from ..core.payload import Payload


class Reweighting(Plugin):
    """A plug-in that sets the weights of a round's clients once it has seen all their uploads.

    `reweigh` notes them on the server, in the vector `shares` (an entry per client), beside whatever else it learns.
    All uploads of a round are in memory at once, for weights may depend on everybody.
    """

    @classmethod
    def refuses(cls, base: type[Method]) -> str | None:
        if issubclass(base, Reweighting):
            return f"{base.name} sets the weights of clients already."
        return (
            None
            if base.traits.averages
            else f"{base.name} does not average models with weights that could be replaced."
        )

    def reweigh(self, server: Payload, uploads: Mapping[int, Payload]) -> Payload:
        """The server with this round's `shares`."""
        raise NotImplementedError

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        arrived = dict(uploads)
        return super().aggregate(self.reweigh(server, arrived), iter(arrived.items()))

    def weight(self, server: Payload, k: int) -> float:
        return float(server.tensor("shares")[k])
