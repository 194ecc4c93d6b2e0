"""Which Flower node is which client, and who is there."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from ...core.errors import FedloomError
from ...core.files import sha256
from .book import Book
from .mail import replies
from .settings import Settings
from .sites import LONGEST_TEXT, Description, agreeing, disagreement
from .wire import DESCRIBE, check_reply
from .words import cut

log = logging.getLogger("flwr")


class _Question(NamedTuple):
    """A question to a node that has not been answered yet."""

    node: int
    due: float


class Roster:
    """Which node is which client. Nodes come and go; a client is known by the number it gives.

    A node that describes itself is `heard`. Nothing is kept of it, and it is asked for nothing,
    before it is accepted. From then on its number belongs to its key, if nodes have keys.
    """

    def __init__(self, grid: Grid, book: Book, settings: Settings) -> None:
        self.grid = grid
        self.book = book
        self.settings = settings
        self.nodes: dict[int, int] = {}  # client -> node
        self.heard: dict[int, Description] = {}  # clients that are new or have changed
        self.refused: dict[int, str] = {}  # node -> why it is not one of the sites
        self._keys: dict[int, str] = {}  # node -> a checksum of its key
        self._asked: set[int] = set()  # nodes that have answered
        self._pending: dict[str, _Question] = {}  # by the id of the message
        self._present: set[int] = set()

    def refresh(self) -> dict[int, Description]:
        """See who is there, ask newcomers what they are, and hear the answers. Never waits.

        Returns the sites that are new or have changed, and neither accepted nor left out yet.
        """
        self._look()
        self._asked &= self._present  # a node that comes back may have changed: it is asked again
        self._ask_newcomers()
        for message, reply in replies(self.grid, list(self._pending)):
            # An error that Flower itself reports has no sender; only this id tells whose it is.
            question = self._pending.pop(message, None)
            if question is not None:
                self._hear(question.node, reply)
        now = time.monotonic()
        self._pending = {i: question for i, question in self._pending.items() if question.due > now}
        return dict(self.heard)

    def _look(self) -> None:
        """Note which nodes are there, and their keys."""
        nodes = list(self.grid.get_nodes())
        self._present = {node.node_id for node in nodes}
        for node in nodes:
            # Simulated nodes have random bytes where others have a key.
            if self.settings.keys and node.public_key.startswith(b"-----BEGIN "):
                self._keys[node.node_id] = sha256(node.public_key)

    def _ask_newcomers(self) -> None:
        asked = self._asked | {question.node for question in self._pending.values()}
        newcomers = [node for node in self._present if node not in asked]
        if not newcomers:
            return
        messages = []
        for node in newcomers:
            content = RecordDict({"ask": ConfigRecord({})})
            messages.append(Message(content, node, DESCRIBE, ttl=self.settings.timeout))
        due = time.monotonic() + self.settings.timeout
        for message, node in zip(self.grid.push_messages(messages), newcomers, strict=True):
            if message:
                self._pending[message] = _Question(node, due)

    def _hear(self, node: int, reply: Message | FedloomError) -> None:
        """Hear what a node says of itself, or note why it is not let in."""
        try:
            if isinstance(reply, FedloomError):
                raise reply
            if reply.has_error():  # perhaps the message ran out of time: ask again later
                raise FedloomError(reply.error.reason or f"error {reply.error.code}")
            self._asked.add(node)
            check_reply(reply.content, LONGEST_TEXT)
            about = (reply.content.config_records.get("site") or {}).get("about")
            self._enter(node, Description.decode(str(about)))
        except FedloomError as error:
            self._refuse(node, str(error))
        except Exception as error:  # whatever it has sent, the others go on
            self._refuse(node, f"{type(error).__name__}: {error}")

    def _refuse(self, node: int, why: str) -> None:
        self.refused[node] = cut(why)
        log.warning("node %s is not let in: %s", node, self.refused[node])

    def _enter(self, node: int, site: Description) -> None:
        """Note which client a node is, if it may be that client."""
        client = site.client
        self._check_key(node, client)
        other = self.nodes.get(client)
        if other not in (None, node) and other in self._present:
            raise FedloomError(f"it claims to be site {client}, which node {other} is already")
        for former in [k for k, n in self.nodes.items() if n == node and k != client]:
            del self.nodes[former]
            self.heard.pop(former, None)
        self.nodes[client] = node
        self.refused.pop(node, None)
        if self.book.sites.get(client) == site:
            self.accept(site)
        else:
            self.heard[client] = site

    def _check_key(self, node: int, client: int) -> None:
        """Refuse a node whose key belongs to another client, or whose client to another key."""
        key = self._keys.get(node)
        if key is None:
            return
        for owner, registered in self.book.keys.items():
            if registered == key and owner != client:
                raise FedloomError(f"it claims to be site {client}, and its key is site {owner}'s")
        if self.book.keys.get(client, key) != key:
            raise FedloomError(
                f"it claims to be site {client}, which has another key (if the site was given a "
                "new key, or nodes have no registered keys, set federation.keys=false)"
            )

    def accept(self, site: Description) -> None:
        """Let a site in that was heard, and write it down with its key."""
        client = site.client
        key = self._keys.get(self.nodes.get(client, -1))
        self.heard.pop(client, None)
        if self.book.sites.get(client) == site and (key is None or client in self.book.keys):
            return
        self.book.sites[client] = site
        if key is not None:
            self.book.keys[client] = key
        self.book.save()

    def leave_out(self, client: int, why: str) -> None:
        """Turn away a site that was heard."""
        self.heard.pop(client, None)
        node = self.nodes.pop(client, None)
        if node is not None:
            self._refuse(node, why)

    def node(self, client: int) -> int | None:
        """The node of a client, if it is there and accepted."""
        node = self.nodes.get(client)
        if node in self._present and client not in self.heard:
            return node
        return None

    def missed(self, client: int) -> None:
        """Note that a client did not answer in time.

        It is not asked again in this round, which would cost as much time again.
        """
        self._present.discard(self.nodes.get(client, -1))

    def there(self) -> list[int]:
        """The clients whose nodes are there, whether they are accepted or not."""
        return sorted(client for client, node in self.nodes.items() if node in self._present)


def misfit(roster: Roster, site: Description, clients: int | None) -> str | None:
    """Why a site that was heard cannot join those that are accepted; None if it can."""
    if clients is not None and site.clients != clients:
        return f"site {site.client} counts {site.clients} sites, the run has {clients}."
    return disagreement(roster.book.sites, site)


def gather(roster: Roster, settings: Settings, clients: int | None = None) -> None:
    """Wait for the sites, and let in those that agree on what they work with.

    Before the first site is accepted, the majority decides. `clients` is the number of sites that
    the run was made for, if it says so.
    """
    end = time.monotonic() + settings.wait
    while True:
        heard = roster.refresh()
        misfits = {k: misfit(roster, site, clients) for k, site in heard.items()}
        fitting = {k: site for k, site in heard.items() if misfits[k] is None}
        if not roster.book.sites:
            fitting = agreeing(fitting)
            misfits |= {k: misfits[k] or disagreement(fitting, heard[k]) for k in heard}
        wanted = settings.sites or clients or _counted({**roster.book.sites, **fitting})
        there = [k for k in roster.there() if k in fitting or k not in heard]
        if len(there) >= wanted:
            break
        if time.monotonic() >= end:
            refused = [f" Node {n} was not let in: {why}" for n, why in roster.refused.items()]
            refused += [f" The {why}" for why in misfits.values() if why]
            raise FedloomError(
                f"{len(there)} of {wanted} sites came within {settings.wait:.0f} seconds."
                + "".join(refused)
            )
        time.sleep(min(0.2, settings.wait))
    for client, site in heard.items():
        if client in fitting:
            roster.accept(site)
        else:
            roster.leave_out(client, misfits[client] or "it does not fit the others.")


def _counted(sites: dict[int, Description]) -> int:
    """How many sites there are, by what they say themselves."""
    return sites[min(sites)].clients if sites else 1
