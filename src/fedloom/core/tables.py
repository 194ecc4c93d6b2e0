"""Rows of figures as other tools want them: a pandas data frame, or HTML for a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import FedloomError

Rows = Sequence[Mapping[str, Any]]
TABLE = """\
{% if before %}
<p><b>{{ before }}</b></p>
{% endif %}
<table><thead><tr>{% for name in columns %}<th>{{ name }}</th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table>
{% if after %}
<p>{{ after }}</p>
{% endif %}
"""


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
    from jinja2 import Environment  # loaded when a notebook asks for a table

    columns: dict[str, None] = {}
    for row in rows:
        columns |= dict.fromkeys(row)
    cells = [[shown(row.get(name)) for name in columns] for row in rows]
    template = Environment(autoescape=True, trim_blocks=True).from_string(TABLE)
    return template.render(before=before, columns=columns, rows=cells, after=after)


def shown(value: Any) -> str:
    """A value as text; what is not there is a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
