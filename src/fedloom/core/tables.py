"""Rows of figures as other tools want them: a pandas data frame, or HTML for a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .errors import FedloomError

Rows = Sequence[Mapping[str, Any]]


def to_pandas(rows: Rows) -> Any:
    """A data frame with a row for each mapping."""
    try:
        import pandas
    except ImportError:
        raise FedloomError(
            "to_pandas needs pandas, which is not installed: pip install pandas."
        ) from None
    return pandas.DataFrame([dict(row) for row in rows])


def to_html(rows: Rows, before: str = "", after: str = "") -> str:
    """A table for a notebook, with a paragraph before it and one after it.

    Its columns are all keys that occur, in the order in which they do.
    """
    columns: dict[str, None] = {}
    for row in rows:
        columns |= dict.fromkeys(row)
    lines = []
    if before:
        lines.append(f"<p><b>{escape(before)}</b></p>")
    heads = "".join(f"<th>{escape(str(name))}</th>" for name in columns)
    lines.append(f"<table><thead><tr>{heads}</tr></thead><tbody>")
    for row in rows:
        cells = "".join(f"<td>{escape(shown(row.get(name)))}</td>" for name in columns)
        lines.append(f"<tr>{cells}</tr>")
    lines.append("</tbody></table>")
    if after:
        lines.append(f"<p>{escape(after)}</p>")
    return "\n".join(lines)


def shown(value: Any) -> str:
    """A value as text; what is not there is a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
