"""Which Flower node is which client, and who is there."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from ...core.errors import FedloomError
from .book import Book
from .settings import Settings
from .sites import Description, agree
from .wire import DESCRIBE

log = logging.getLogger("flwr")


class _Question(NamedTuple):
    """A question to a node that has not been answered yet."""

    node: int
    due: float


class Roster:
    """Which node is which client. Nodes come and go; a client is known by the number it gives."""

    def __init__(self, grid: Grid, book: Book, timeout: float) -> None:
        self.grid = grid
        self.book = book
        self.timeout = timeout
        self.nodes: dict[int, int] = {}  # client -> node
        self.refused: dict[int, str] = {}  # node -> why it is not one of the sites
        self._asked: set[int] = set()  # nodes that have answered
        self._pending: dict[str, _Question] = {}  # by the id of the message
        self._present: set[int] = set()

    def refresh(self) -> dict[int, Description]:
        """See who is there, ask newcomers what they are, and note the answers. Never waits.

        Returns the sites that are new or have changed.
        """
        self._present = set(self.grid.get_node_ids())
        self._asked &= self._present  # a node that comes back may have changed: it is asked again
        self._ask_newcomers()
        changed: dict[int, Description] = {}
        replies = self.grid.pull_messages(list(self._pending)) if self._pending else ()
        for reply in replies:
            # An error that Flower itself reports has no sender; only this id tells whose it is.
            question = self._pending.pop(reply.metadata.reply_to_message_id, None)
            if question is not None:
                self._hear(question.node, reply, changed)
        now = time.monotonic()
        self._pending = {i: question for i, question in self._pending.items() if question.due > now}
        return changed

    def _ask_newcomers(self) -> None:
        asked = self._asked | {question.node for question in self._pending.values()}
        newcomers = [node for node in self._present if node not in asked]
        if not newcomers:
            return
        messages = []
        for node in newcomers:
            content = RecordDict({"ask": ConfigRecord({})})
            messages.append(Message(content, node, DESCRIBE, ttl=self.timeout))
        due = time.monotonic() + self.timeout
        for message, node in zip(self.grid.push_messages(messages), newcomers, strict=True):
            if message:
                self._pending[message] = _Question(node, due)

    def _hear(self, node: int, reply: Message, changed: dict[int, Description]) -> None:
        """Let a node in, or note why not."""
        try:
            if reply.has_error():  # perhaps the message ran out of time: ask again later
                raise FedloomError(reply.error.reason or f"error {reply.error.code}")
            self._asked.add(node)
            self._enter(node, reply, changed)
        except FedloomError as error:
            self.refused[node] = str(error)
            log.warning("node %s is not let in: %s", node, error)

    def _enter(self, node: int, reply: Message, changed: dict[int, Description]) -> None:
        records = reply.content.config_records
        refusal = records.get("refusal")
        if refusal:
            raise FedloomError(str(refusal.get("why")))
        site = Description.decode(str((records.get("site") or {}).get("about")))
        other = self.nodes.get(site.client)
        if other not in (None, node) and other in self._present:
            raise FedloomError(f"it claims to be site {site.client}, which node {other} is already")
        self.nodes[site.client] = node
        if self.book.sites.get(site.client) != site:
            changed[site.client] = site

    def node(self, client: int) -> int | None:
        """The node of a client, if it is there."""
        node = self.nodes.get(client)
        if node in self._present:
            return node
        return None

    def missed(self, client: int) -> None:
        """Note that a client did not answer in time.

        It is not asked again in this round, which would cost as much time again.
        """
        self._present.discard(self.nodes.get(client, -1))

    def there(self) -> list[int]:
        """The clients that are there."""
        return sorted(client for client in self.nodes if self.node(client) is not None)


def gather(roster: Roster, settings: Settings) -> None:
    """Wait for the sites, and make sure that they agree on what they work with."""
    book = roster.book
    end = time.monotonic() + settings.wait
    while True:
        for client, description in roster.refresh().items():
            book.sites[client] = description
        agree(book.sites)
        wanted = settings.sites or 1
        if not settings.sites and book.sites:
            wanted = book.sites[min(book.sites)].clients
        there = len(roster.there())
        if there >= wanted:
            break
        if time.monotonic() >= end:
            refused = [f" Node {n} was not let in: {why}" for n, why in roster.refused.items()]
            raise FedloomError(
                f"{there} of {wanted} sites came within {settings.wait:.0f} seconds."
                + "".join(refused)
            )
        time.sleep(min(0.2, settings.wait))
    book.save()
