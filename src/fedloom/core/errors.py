"""Errors that name the thing that is wrong and the nearest right one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class FedloomError(ValueError):
    """Something that the user can mend. The message is one clear sentence."""


class ClientError(FedloomError):
    """A client's work failed; the message names the round, the client and the step."""


class CheckpointError(FedloomError):
    """A run folder cannot be read, or cannot be trusted."""


def unknown(kind: str, name: object, choices: Iterable[str], otherwise: str = "") -> FedloomError:
    """The error for a name that is not among `choices`.

    It suggests the nearest name, whatever its case; if none is near, it says `otherwise`, or lists
    all names.
    """
    names = sorted(choices)
    by_lower = {candidate.lower(): candidate for candidate in names}
    near = get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.5)
    if near:
        hint = f"did you mean {by_lower[near[0]]!r}?"
    elif otherwise:
        hint = f"{otherwise}."
    else:
        hint = f"known: {', '.join(names) or 'none'}."
    return FedloomError(f"unknown {kind} {shortened(str(name))!r}; {hint}")


def shortened(text: str, length: int = 300) -> str:
    """A text, cut if it is longer than anybody wants to read in an error."""
    if len(text) <= length:
        return text
    return f"{text[: length - 4]} ..."


# How pydantic names the alternatives of a setting that may have several types.
_ALTERNATIVE = re.compile(r"(constrained-)?(float|int|str|bool)|(dict|list|tuple)\[.*")


def explain(error: ValidationError) -> str:
    """A pydantic error as one sentence."""
    faults = []
    of_right_type = set()  # settings whose value has one of the right types, but is wrong otherwise
    for fault in error.errors():
        place = [str(part) for part in fault["loc"] if not _ALTERNATIVE.fullmatch(str(part))]
        setting = ".".join(place)
        is_type_fault = fault["type"].endswith(("_type", "_parsing"))
        if not is_type_fault:
            of_right_type.add(setting)
        message = re.sub(r", unable to parse.*", "", fault["msg"]).removeprefix("Value error, ")
        message = (message[0].lower() + message[1:]).replace("a valid tuple", "a list")
        # A rule between several settings names them itself; its input is all of them.
        if not isinstance(fault.get("input"), dict):
            message = f"{setting} = {shortened(repr(fault.get('input')))}: {message}"
        faults.append((setting, is_type_fault, message))
    messages = []
    for setting, is_type_fault, message in faults:
        # If one alternative fits, nobody wants to read that the others do not.
        if not (is_type_fault and setting in of_right_type):
            messages.append(message)
    sentence = "; ".join(dict.fromkeys(messages))
    return sentence if sentence.endswith((".", "?")) else f"{sentence}."
