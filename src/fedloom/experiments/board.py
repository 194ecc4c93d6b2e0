"""A reproduced table as text: our figures beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LEFT_OUT = "not run: left out"


def text(figure: Mapping[str, float | None], plain: bool = False) -> str:
    """One of our figures written like the papers': mean(std) in percent, or a plain number."""
    mean = figure["mean"]
    std = figure["std"]
    if mean is None:
        return "-"
    if plain:
        return f"{mean:.0f}" if mean >= 1000 or mean == int(mean) else f"{mean:.2f}"
    if std is None:
        return f"{100 * mean:.2f}"
    return f"{100 * mean:.2f}({100 * std:.2f})"


def texts(block: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Our figures of a row; a dash for each if there are none."""
    if not row["ours"]:
        return ["-"] * len(block["columns"])
    return [text(figure, plain) for figure, plain in zip(row["ours"], block["plain"], strict=True)]


def markdown(board: Mapping[str, Any]) -> str:
    """The table as Markdown, with everything that differs from the paper beside it."""
    seeds = ", ".join(map(str, board["seeds"]))
    minutes = board["seconds"] / 60
    lines = [f"# {board['title']}", "", f"{board['paper']}.", "", board["measure"], ""]
    lines.append(f"Scale {board['scale']}, seeds {seeds}; the runs took {minutes:.1f} minutes.")
    for block in asked_for(board):
        lines += ["", f"## {block['name']}", "", *_markdown_table(block)]
        if block["data"]:
            lines += ["", f"Ours: {block['data']}."]
        if block["differs"]:
            lines += ["", "Differs from the paper:"]
            lines += [f"- {difference}" for difference in block["differs"]]
    for name in board.get("pictures", ()):
        lines += ["", f"![{name.removesuffix('.svg')}](<{name}>)"]
    return "\n".join(lines) + "\n"


def _markdown_table(block: Mapping[str, Any]) -> list[str]:
    """The figures of a block: after each of our columns the paper's, if the paper has any."""
    in_paper = any(set(row["paper"]) != {"-"} for row in block["rows"])
    headings = []
    for column in block["columns"]:
        headings.append(f"{column}, ours")
        if in_paper:
            headings.append(f"{column}, paper")
    lines = [f"| method | {' | '.join(headings)} | |", f"| --- |{' ---: |' * len(headings)} --- |"]
    for row in block["rows"]:
        figures = []
        for ours, paper in zip(texts(block, row), row["paper"], strict=True):
            figures.append(ours)
            if in_paper:
                figures.append(paper)
        lines.append(f"| {row['row']} | {' | '.join(figures)} | {row['remark'] or ''} |")
    return lines


def asked_for(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a table that the user did not leave out."""
    blocks = []
    for block in side_by_side(board):
        if any(row["remark"] != LEFT_OUT for row in block["rows"]):
            blocks.append(block)
    return blocks


def side_by_side(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a table, those with one name and the same rows as one block.

    Their columns stand beside each other, and where the paper has one, a column of means follows.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for block in board["settings"]:
        rows = [row["row"] for row in block["rows"]]
        groups.setdefault((block["name"], *rows), []).append(block)
    joined = [_joined(blocks) for blocks in groups.values()]
    if board.get("means"):
        for number, block in enumerate(joined):
            _add_means(block, {row: line[number] for row, line in board["means"].items()})
    return joined


def _joined(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Blocks with the same name and rows as one block."""
    columns: list[str] = []
    plain: list[bool] = []
    differs: list[str] = []
    for block in blocks:
        columns += block["columns"]
        plain += block["plain"]
        differs += block["differs"]
    return {
        "name": blocks[0]["name"],
        "columns": columns,
        "plain": plain,
        "rows": [_joined_row(blocks, number) for number in range(len(blocks[0]["rows"]))],
        "data": _joined_texts([block["data"] for block in blocks]),
        "differs": list(dict.fromkeys(differs)),
    }


def _joined_row(blocks: Sequence[Mapping[str, Any]], number: int) -> dict[str, Any]:
    ours: list[Mapping[str, Any]] = []
    paper: list[str] = []
    not_run: list[str] = []
    for block in blocks:
        row = block["rows"][number]
        paper += row["paper"]
        if row["ours"]:
            ours += row["ours"]
        else:
            ours += [{"mean": None, "std": None}] * len(block["columns"])
            not_run += block["columns"]
    remark = _joined_texts([block["rows"][number]["remark"] for block in blocks])
    any_run = len(not_run) < len(ours)
    if any_run and not_run:  # the file has each column's reason
        remark = f"not run: {', '.join(not_run)}"
    first = blocks[0]["rows"][number]
    return {**first, "ours": ours if any_run else None, "paper": paper, "remark": remark}


def _joined_texts(parts: Sequence[str | None]) -> str | None:
    """The different texts among the parts, with semicolons between them."""
    return "; ".join(dict.fromkeys(part for part in parts if part)) or None


def _add_means(block: dict[str, Any], printed: Mapping[str, str]) -> None:
    """Add a column: the mean over the columns measured here, beside the paper's over all of its."""
    block["columns"].append("Mean")
    block["plain"].append(False)
    for row in block["rows"]:
        row["paper"].append(printed.get(row["row"], "-"))
        if row["ours"]:
            measured = [figure["mean"] for figure in row["ours"] if figure["mean"] is not None]
            mean = sum(measured) / len(measured) if measured else None
            row["ours"].append({"mean": mean, "std": None})
    block["differs"].append(
        "Mean: ours is over the columns measured here, the paper's over all its own"
    )
