"""The commands that the pages print, as a reader would type them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "AGENTS.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*.md")),
    *sorted((ROOT / "papers").glob("*.md")),
]

_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_TYPED = ("", "console", "sh", "bash")  # languages of blocks that hold commands
_INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)*)`")  # it may go on in the next line
_VARIABLES = re.compile(r"^([A-Z_]+=\S+ +)+")
_PLACEHOLDER = re.compile(r"(^|:)[A-Z][A-Z_0-9]*$|\.\.\.|\|")


@dataclass(frozen=True)
class Command:
    """A command as it is printed, without its comment, and where."""

    page: str
    text: str

    @property
    def words(self) -> list[str]:
        """The words that the shell makes of it."""
        return shlex.split(self.text)


def name_of(page: Path) -> str:
    """A page's name: `README`, `docs/flower`."""
    return page.relative_to(ROOT).with_suffix("").as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return [body for found, body in _BLOCK.findall(page.read_text()) if found == language]


def commands(page: Path, *programs: str, to_fill: bool = False) -> list[Command]:
    """All commands of these programs on a page: in fenced blocks first, then within sentences.

    A command with a word to be filled in (`METHOD`, `...`) is none that can be typed, and is left
    out unless it is asked for. Variables that are set before a command are no part of it.
    """
    text = page.read_text()
    lines = []
    for language, body in _BLOCK.findall(text):
        if language in _TYPED:
            lines += body.replace("\\\n", " ").splitlines()
    for span in _INLINE.findall(_BLOCK.sub("", text)):
        if len(span.split()) > 2:  # shorter ones are names of commands
            lines.append(" ".join(span.split()))
    found = {}
    for line in lines:
        typed = line.strip().removeprefix("$ ").removeprefix(".venv/bin/")
        typed = _VARIABLES.sub("", typed)
        if not typed.startswith(tuple(f"{program} " for program in programs)):
            continue
        words = shlex.split(typed, comments=True)
        if to_fill or (len(words) > 1 and not any(map(_PLACEHOLDER.search, words))):
            command = Command(name_of(page), shlex.join(words))
            found[command.text] = command
    return list(found.values())


def demo() -> Command:
    """What `make demo` types."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^demo:.*\n\t\$\(BIN\)/(fedloom .*)", makefile, re.MULTILINE)
    return Command("Makefile", " ".join(line.split()))
