"""A Grid within one process, for tests and quick trials: messages go straight to a `ClientApp`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from ...core.errors import FedloomError

SERVER = 1  # the node id that Flower gives the server


class InProcessGrid(Grid):
    """A grid whose nodes are the entries of a dictionary: node id -> node config.

    `fault(message)`, if given, says before each delivery what goes wrong: "lost" (the message does
    not arrive), "silent" (it is executed, but the reply is lost) or None. Errors in a client become
    error replies, as in Flower.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Mapping[int, dict[str, Any]],
        run_config: dict[str, Any] | None = None,
        fault: Callable[[Message], str | None] | None = None,
        keys: Mapping[int, bytes] | None = None,
    ) -> None:
        self.app = app
        self.nodes = dict(nodes)
        self.run_config = run_config or {}
        self.fault = fault
        self.keys = keys or {}  # node id -> the key that it is registered with
        self._replies: dict[str, Message] = {}
        self._sent = 0
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SERVER

    def set_run(self, run: Any) -> None:
        """There is one run only."""

    @property
    def run(self) -> Any:
        """Not available: this grid keeps no record of a run."""
        raise FedloomError("the grid within a process keeps no record of a run.")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message, as `Message` makes it."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """The nodes that are there."""
        return list(self.nodes)

    def get_nodes(self) -> list[NodeInfo]:
        """The nodes that are there, with their keys."""
        return [NodeInfo(node_id=n, public_key=self.keys.get(n, b"")) for n in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Deliver messages; each is executed at once."""
        ids = []
        for message in messages:
            self._sent += 1
            message.metadata.__dict__["_message_id"] = f"message-{self._sent}"
            ids.append(message.metadata.message_id)
            fault = self.fault(message) if self.fault else None
            if fault != "lost" and message.metadata.dst_node_id in self.nodes:
                reply = self.deliver(message)
                if fault != "silent":
                    self._replies[message.metadata.message_id] = reply
        return ids

    def deliver(self, message: Message) -> Message:
        """The answer of the client at the message's destination."""
        node = message.metadata.dst_node_id
        context = Context(1, node, dict(self.nodes[node]), RecordDict(), dict(self.run_config))
        try:
            return self.app(message, context)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(code=2, reason=reason), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to these messages that have come so far."""
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Deliver messages and hand back the replies."""
        return self.pull_messages(self.push_messages(messages))
