"""A reproduced table as text: our figures beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LEFT_OUT = "not run: left out"
NO_FIGURE = {"mean": None, "std": None}


def text(figure: Mapping[str, float | None], plain: bool = False) -> str:
    """One of our figures written like the papers': mean(std) in percent, or a plain number."""
    mean = figure["mean"]
    std = figure["std"]
    if mean is None:
        return "-"
    if plain and (mean >= 1000 or mean == int(mean)):
        return f"{mean:.0f}"
    if plain:
        return f"{mean:.2f}"
    if std is None:
        return f"{100 * mean:.2f}"
    return f"{100 * mean:.2f}({100 * std:.2f})"


def texts(block: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Our figures of a row; a dash for each if there are none."""
    if not row["ours"]:
        return ["-"] * len(block["columns"])
    return list(map(text, row["ours"], block["plain"]))


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
            for difference in block["differs"]:
                lines.append(f"- {difference}")
    for name in board.get("pictures", ()):
        lines += ["", f"![{name.removesuffix('.svg')}](<{name}>)"]
    return "\n".join(lines) + "\n"


def _markdown_table(block: Mapping[str, Any]) -> list[str]:
    """The figures of a block: after each of our columns the paper's, if the paper has any."""
    printed: set[str] = set()
    for row in block["rows"]:
        printed.update(row["paper"])
    in_paper = bool(printed - {"-"})
    headings = []
    for column in block["columns"]:
        headings.append(f"{column}, ours")
        if in_paper:
            headings.append(f"{column}, paper")
    lines = [f"| method | {' | '.join(headings)} | |", f"| --- |{' ---: |' * len(headings)} --- |"]
    for row in [*block["rows"], *block["floors"]]:
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
        remarks = {row["remark"] for row in block["rows"]}
        if remarks - {LEFT_OUT}:
            blocks.append(block)
    return blocks


def side_by_side(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a table, those with one name and the same rows as one block.

    Their columns stand beside each other, and where the paper has one, a column of means follows.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for block in board["settings"]:
        key = [block["name"]]
        for row in block["rows"]:
            key.append(row["row"])
        groups.setdefault(tuple(key), []).append(block)
    joined = list(map(_joined, groups.values()))
    if board.get("means"):
        for number, block in enumerate(joined):
            _add_means(block, board["means"], number)
    return joined


def _joined(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Blocks with the same name and rows as one block."""
    columns: list[str] = []
    plain: list[bool] = []
    data: list[str | None] = []
    differs: list[str] = []
    for block in blocks:
        columns += block["columns"]
        plain += block["plain"]
        data.append(block["data"])
        differs += block["differs"]
    return {
        "name": blocks[0]["name"],
        "columns": columns,
        "plain": plain,
        "rows": [_joined_row(blocks, number) for number in range(len(blocks[0]["rows"]))],
        "floors": _joined_floors(blocks),
        "data": _joined_texts(data),
        "differs": list(dict.fromkeys(differs)),
    }


def _joined_row(blocks: Sequence[Mapping[str, Any]], number: int) -> dict[str, Any]:
    ours: list[Mapping[str, Any]] = []
    paper: list[str] = []
    remarks: list[str | None] = []
    not_run: list[str] = []
    for block in blocks:
        row = block["rows"][number]
        paper += row["paper"]
        remarks.append(row["remark"])
        if row["ours"]:
            ours += row["ours"]
        else:
            ours += [NO_FIGURE] * len(block["columns"])
            not_run += block["columns"]
    joined = {**blocks[0]["rows"][number], "paper": paper, "remark": _joined_texts(remarks)}
    if len(not_run) == len(ours):
        return {**joined, "ours": None}
    if not_run:  # the file has each column's reason
        joined["remark"] = f"not run: {', '.join(not_run)}"
    return {**joined, "ours": ours}


def _joined_floors(blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows that need no model; a column that was not run has no figures in them."""
    names: list[str] = []
    for block in blocks:
        names += [floor["row"] for floor in block.get("floors", ())]
    joined = []
    for name in dict.fromkeys(names):
        ours: list[Mapping[str, Any]] = []
        for block in blocks:
            found = [floor["ours"] for floor in block.get("floors", ()) if floor["row"] == name]
            ours += found[0] if found else [NO_FIGURE] * len(block["columns"])
        joined.append({"row": name, "ours": ours, "paper": ["-"] * len(ours), "remark": None})
    return joined


def _joined_texts(parts: Sequence[str | None]) -> str | None:
    """The different texts among the parts, with semicolons between them."""
    return "; ".join(dict.fromkeys(filter(None, parts))) or None


def _mean(figures: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean over the columns that were measured."""
    measured = [figure["mean"] for figure in figures if figure["mean"] is not None]
    if not measured:
        return None
    return float(sum(measured) / len(measured))


def _add_means(block: dict[str, Any], printed: Mapping[str, Sequence[str]], number: int) -> None:
    """Add a column: the mean over the columns measured here, beside the paper's over all of its.

    `printed` has the paper's means by row, and `number` says which of them are this block's.
    """
    block["columns"].append("Mean")
    block["plain"].append(False)
    for row in [*block["rows"], *block["floors"]]:
        in_paper = "-"
        if row["row"] in printed:
            in_paper = printed[row["row"]][number]
        row["paper"].append(in_paper)
        if row["ours"]:
            row["ours"].append({"mean": _mean(row["ours"]), "std": None})
    if any(row["paper"][-1] != "-" for row in block["rows"]):
        block["differs"].append(
            "Mean: ours is over the columns measured here, the paper's over all its own"
        )
