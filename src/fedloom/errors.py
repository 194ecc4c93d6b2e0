"""Errors that name the thing and the nearest right one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedloomError(Exception):
    """Something the user can mend. The message is one clear sentence."""


class ClientError(FedloomError):
    """A client's work failed; the message names round, client and step."""


class CheckpointError(FedloomError):
    """A run folder cannot be read, or not be trusted."""


def unknown(kind: str, name: object, known: Iterable[str]) -> FedloomError:
    """The error for a name that is not among `known`, with the nearest one suggested."""
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}."
    return FedloomError(f"unknown {kind} {str(name)!r}; {hint}")
