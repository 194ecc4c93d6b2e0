"""What the server writes down beside a run: its name, its starts, the sites, and who answered."""

from __future__ import annotations

import json
import logging
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.errors import CheckpointError, FedloomError
from ...core.files import write_atomic
from .sites import Description
from .words import cut

log = logging.getLogger("flwr")
LOG = "federation-log.json"


@dataclass
class Book:
    """The server's notes on one experiment. `attempt` counts how often the server started it."""

    folder: Path | None
    experiment: str
    attempt: int
    sites: dict[int, Description] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)  # client -> the key that it first came with
    answers: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def open(folder: Path | None, name: str) -> Book:
        """The book of a run folder, with one more attempt; a new book if the folder has none."""
        if folder is not None and (folder / LOG).exists():
            book = Book.read(folder)
            book.attempt += 1
        else:
            # Another run with the same settings must not find the states of this one, so part of
            # the name is random.
            book = Book(folder, f"{name}-{secrets.token_hex(4)}", 1)
        book.save()
        return book

    @staticmethod
    def read(folder: Path) -> Book:
        """The book of a run folder as it stands."""
        path = folder / LOG
        try:
            body = json.loads(path.read_bytes())
            book = Book(folder, str(body["experiment"]), int(body["attempt"]))
            book.keys = {int(client): str(key) for client, key in body.get("keys", {}).items()}
            sites = dict(body["sites"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CheckpointError(
                f"{path} is damaged: the sites' states cannot be found without it."
            ) from None
        for client, description in sites.items():
            try:
                site = Description.decode(json.dumps(description))
            except FedloomError as error:
                # It is asked again. Nothing but its description is lost.
                log.warning("what %s says of site %s is set aside: %s", LOG, cut(client), error)
                continue
            book.sites[site.client] = site
        return book

    def save(self) -> None:
        """Write it down."""
        if self.folder is None:
            return
        sites: dict[int, Any] = {}
        for client, description in sorted(self.sites.items()):
            sites[client] = json.loads(description.encode())
        body: dict[str, Any] = {"experiment": self.experiment, "attempt": self.attempt}
        body["sites"] = sites
        if self.keys:
            body["keys"] = {client: self.keys[client] for client in sorted(self.keys)}
        write_atomic(self.folder / LOG, json.dumps(body, indent=1).encode())

    def note(self, entry: dict[str, Any]) -> None:
        """Note who answered in a round, and who did not."""
        self.answers.append(entry)
        if self.folder is not None:
            with open(self.folder / "answers.jsonl", "a") as file:
                file.write(json.dumps(entry) + "\n")
        missing = dict(entry["refused"])
        missing |= dict.fromkeys(entry["silent"], "silent")
        missing |= dict.fromkeys(entry["absent"], "absent")
        reasons = "".join(f"; site {client}: {reason}" for client, reason in missing.items())
        answered = len(entry["answered"])
        where = f"round {entry['round']}, {entry['kind']}"
        log.info("%s: %s of %s answered%s", where, answered, entry["asked"], reasons)
