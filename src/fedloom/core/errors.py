"""Errors that name the thing and the nearest right one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class FedloomError(ValueError):
    """Something the user can mend. The message is one clear sentence."""


class ClientError(FedloomError):
    """A client's work failed; the message names round, client and step."""


class CheckpointError(FedloomError):
    """A run folder cannot be read, or not be trusted."""


def unknown(kind: str, name: object, known: Iterable[str], otherwise: str = "") -> FedloomError:
    """The error for a name that is not among `known`: the nearest one, or all of them, or what `otherwise` says."""
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1, cutoff=0.5)
    listed = f"{otherwise}." if otherwise else f"known: {', '.join(names) or 'none'}."
    hint = f"did you mean {near[0]!r}?" if near else listed
    return FedloomError(f"unknown {kind} {str(name)!r}; {hint}")


_TYPE = re.compile(
    r"(constrained-)?(float|int|str|bool)|(dict|list|tuple)\[.*"
)  # pydantic's names of alternatives


def explain(error: ValidationError) -> str:
    """A pydantic error as one sentence."""
    said = []
    found = [
        (".".join(str(p) for p in e["loc"] if not _TYPE.fullmatch(str(p))), e)
        for e in error.errors()
    ]
    # Of a setting that may be of several types, what is wrong with the type that fits is told, not that others do not.
    fits = {where for where, e in found if not e["type"].endswith(("_type", "_parsing"))}
    for where, e in found:
        if where in fits and e["type"].endswith(("_type", "_parsing")):
            continue
        what = re.sub(r", unable to parse.*", "", e["msg"]).removeprefix("Value error, ")
        what = (what[0].lower() + what[1:]).replace("a valid tuple", "a list")
        # A rule between several settings names them itself; its input is all of them.
        said.append(
            what if isinstance(e.get("input"), dict) else f"{where} = {e.get('input')!r}: {what}"
        )
    return "; ".join(dict.fromkeys(said)) + "."
