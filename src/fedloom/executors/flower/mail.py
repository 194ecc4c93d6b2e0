"""Replies as they come in, each on its own: one that cannot be read hides no other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from ...core.errors import FedloomError
from .words import cut


def replies(grid: Grid, messages: Iterable[str]) -> Iterator[tuple[str, Message | FedloomError]]:
    """The replies that have come to these messages, by the id of the message.

    Flower makes objects of all replies that it is asked for at once. If one of them cannot be
    read, the others are lost with it, so they are asked for one by one.
    """
    for message in messages:
        try:
            came = list(grid.pull_messages([message]))
        except httpx.HTTPError:
            raise  # the SuperLink cannot be reached, which is no site's doing
        except Exception as error:
            why = cut(f"{type(error).__name__}: {error}")
            yield message, FedloomError(f"the reply cannot be read: {why}")
            continue
        for reply in came:
            yield message, reply
