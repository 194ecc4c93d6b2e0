"""The gallery of results: every table with figures, the command that made it, and its date."""

from __future__ import annotations

import datetime
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_RULE = re.compile(r"^\|[-:| ]+\|$")
_COMMAND = re.compile(r"(python -m )?(fedloom|benchmarks)\S* .+")
_FIGURE = re.compile(r"[*]*[-+]?\d[\d.,]*[*]*\s*($|%|±|[(\[|/x]|to |s$|MB|GB|ms)")
# Tables of figures that no command of ours made: a paper's own, or plain arithmetic.
NOT_MEASURED = ("The paper's figures", "What passes the server", "The work")


@dataclass(frozen=True)
class Table:
    """A table of a page, with what stands around it."""

    file: str
    line: int  # of its header, from 0
    section: str
    caption: str
    rows: tuple[str, ...]
    command: str | None


def files() -> list[str]:
    """The pages that are looked through, as paths in the project."""
    folders = [*sorted(ROOT.glob("papers/*.md")), *sorted(ROOT.glob("docs/*.md"))]
    return ["README.md", *(path.relative_to(ROOT).as_posix() for path in folders)]


def tables(file: str, text: str) -> Iterator[Table]:
    """The tables of figures that a page has."""
    lines = text.splitlines()
    headings, spans = _headings(lines), list(_spans(lines))
    starts, ends = zip(*spans, strict=True) if spans else ((), ())
    command = None
    for start, end in spans:
        rows = tuple(lines[start:end])
        section = lines[max(h for h in headings if h <= start)].lstrip("# ")
        if not _has_figures(rows) or section in NOT_MEASURED:
            continue
        before = max(line for line in (*headings, *ends) if line <= start)
        after = min(line for line in (*headings, *starts) if line > start)
        caption = _paragraph_before(lines, start)
        if caption or before not in ends:  # else it goes on where another one ended
            command = _command(lines, before, after, start, end)
        yield Table(file, start, section, caption, rows, command)


def _headings(lines: list[str]) -> list[int]:
    """Where sections begin; the first begins at the top, the last ends at the bottom."""
    found, fenced = [0], False
    for number, line in enumerate(lines):
        if line.startswith("```"):
            fenced = not fenced
        elif line.startswith("#") and not fenced:
            found.append(number)
    return [*found, len(lines)]


def _spans(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Where tables begin and end."""
    for number in range(1, len(lines)):
        if not _RULE.match(lines[number]) or not lines[number - 1].startswith("|"):
            continue
        end = number
        while end < len(lines) and lines[end].startswith("|"):
            end += 1
        yield number - 1, end


def _has_figures(rows: tuple[str, ...]) -> bool:
    """Whether most cells, but for the first of each row, are figures."""
    cells = [
        cell.strip() for row in rows[2:] for cell in re.split(r"(?<!\\)\|", row.strip("|"))[1:]
    ]
    filled = [cell for cell in cells if cell]
    return sum(bool(_FIGURE.match(cell)) for cell in filled) > len(filled) / 2


def _paragraph_before(lines: list[str], start: int) -> str:
    end = start
    while end and not lines[end - 1].strip():
        end -= 1
    first = end
    while first and lines[first - 1].strip() and not lines[first - 1].startswith(("|", "#", "```")):
        first -= 1
    return "\n".join(lines[first:end])


def _command(lines: list[str], before: int, after: int, start: int, end: int) -> str | None:
    """The command that a table was made with, by where pages say it.

    It stands in the sentence before the table, or behind it before another table or section begins
    (line `after`). Where a heading comes `before`, and no table, it may stand between the two.
    """
    places = [
        _inline(_paragraph_before(lines, start)),
        _blocks(lines[end:after]),
    ]
    if not lines[max(before - 1, 0)].startswith("|"):
        between = lines[before:start]
        places += [_blocks(between)[::-1], _inline("\n".join(between))[::-1]]
    return next((found[0] for found in places if found), None)


def _inline(text: str) -> list[str]:
    """The commands in a text's code, but for those in blocks."""
    found = [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
    return [code for code in found if _COMMAND.match(code)]


def _blocks(lines: list[str]) -> list[str]:
    """The commands in blocks of code; one may go on behind a backslash."""
    found: list[str] = []
    fenced = open_end = False
    for line in lines:
        if line.startswith("```"):
            fenced, open_end = not fenced, False
        elif fenced and open_end:
            found[-1] += "\n" + line
            open_end = line.endswith("\\")
        elif fenced and _COMMAND.match(line.removeprefix("$ ")):
            found.append(line.removeprefix("$ "))
            open_end = line.endswith("\\")
    return found


def dates(file: str) -> dict[int, str]:
    """When each line of a file was last changed; empty outside a git checkout."""
    command = ["git", "blame", "--line-porcelain", "--", file]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    except FileNotFoundError:
        return {}
    found: dict[int, str] = {}
    for line in done.stdout.splitlines():
        if line.startswith("author-time "):
            found[len(found)] = line.split()[1]
    return found


def day(seconds: str) -> str:
    """A day of the calendar, of seconds since 1970."""
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).date().isoformat()


def page(relinked: Callable[[str, str], str]) -> str:
    """The gallery; `relinked(text, file)` mends links of a file's text for it."""
    lines = ["---", "search:", "  exclude: true", "---", "", "# Results", "", *_INTRO, ""]
    others = ["## Without a command of ours", "", *_OTHERS, ""]
    for file in files():
        text = (ROOT / file).read_text("utf-8")
        found = list(tables(file, text))
        made = [table for table in found if table.command]
        link = relinked(f"[{text.splitlines()[0].lstrip('# ')}]({Path(file).name})", file)
        if len(made) < len(found):
            others.append(f"- {link}: {len(found) - len(made)}")
        if made:
            changed = dates(file)
            lines += [f"## {link}", ""]
            for table in made:
                lines += [*_shown(table, changed, relinked), ""]
    return "\n".join([*lines, *others]) + "\n"


def _shown(table: Table, changed: dict[int, str], relinked: Callable[[str, str], str]) -> list[str]:
    span = range(table.line, table.line + len(table.rows))
    days = [changed[line] for line in span if line in changed]
    lines = [relinked(table.caption, table.file), ""] if table.caption else []
    lines += [relinked("\n".join(table.rows), table.file), ""]
    lines += ["```console", table.command or "", "```", ""]
    return [*lines, f"Last changed: {day(max(days, key=int))}." if days else ""]


_INTRO = [
    "Every table of figures on these pages, with the command that stands beside it there and the",
    "day on which a figure of it was last changed. They were measured on a few cores without a",
    "GPU; what is reduced, and the papers' own figures, is said on the pages.",
]
_OTHERS = [
    "Tables of figures that a paper prints, that the authors' own code gave, or whose setting is a",
    "former one; the pages say which. How many of them each page has:",
]
