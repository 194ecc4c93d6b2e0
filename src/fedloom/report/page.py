"""The page: what to know first, the leaderboard, the figures, the data, the configurations. One file, no network."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import panels
from .drawing import COLOURS, colour, esc
from .figures import ABSENT, Chart, Value
from .gather import COLUMNS, TUNED, Column, Entry, RunData, cell, gather, percent, signed, text
from .panels import NOTES, Panel

if TYPE_CHECKING:
    from ..engine.folder import Run

EMPTY = "no evaluated round yet"
SIGNIFICANT = 0.05


def render(
    runs: Sequence[RunData], title: str, board: Mapping[str, Any] | None = None, **more: Any
) -> str:
    """A self-contained HTML page about the runs; see `Page` for what else can be given."""
    return Page(runs, title, board, **more).html()


def render_comparison(runs: Sequence[Run], board: Mapping[str, Any], title: str) -> str:
    """The page of a comparison, interactive if Plotly is installed. `board` is what `leaderboard.json` holds."""
    return render([RunData.of(r) for r in runs], title, board, interactive=True)


def plotly_library() -> str | None:
    """Plotly's script, if the extra `plots` is installed. The package itself is not imported, which takes a second."""
    found = importlib.util.find_spec("plotly")
    for place in (found.submodule_search_locations or []) if found else []:
        bundle = Path(place) / "package_data" / "plotly.min.js"
        if bundle.is_file():
            return bundle.read_text(encoding="utf-8")
    return None


class Page:
    """A page in the making.

    `interactive` puts Plotly into the page, if it is installed; `views` are panels about features, by heading; `live`
    is for a page that is asked for again while runs go on.
    """

    def __init__(
        self,
        runs: Sequence[RunData],
        title: str,
        board: Mapping[str, Any] | None = None,
        *,
        interactive: bool = False,
        views: Mapping[str, Sequence[Panel]] | None = None,
        live: bool = False,
    ) -> None:
        self.title, self.board = title, board or {}
        self.entries = gather(runs, self.board)
        self.runs = [r for e in self.entries for r in e.runs]
        self.library = plotly_library() if interactive else None
        self.views, self.live = views or {}, live
        self.figures: dict[str, Any] = {}
        self._tabs = 0
        self._cells: dict[str, dict[int, tuple[Value, Value]]] = {}

    def html(self) -> str:
        """The whole page."""
        script = files("fedloom.report").joinpath("page.js").read_text()
        # By this the browser itself refuses any request: the page stays self-contained, whatever is in it.
        policy = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
        if self.live:
            policy += "; connect-src 'self'"
            script += files("fedloom.report").joinpath("dash.js").read_text()
        main = self.main()
        library = f"<script>{_inline(self.library)}</script>" if self.library else ""
        return (
            f"<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8><title>{esc(self.title)}</title>"
            '<meta name=viewport content="width=device-width, initial-scale=1">'
            f'<meta http-equiv=Content-Security-Policy content="{policy}"><style>{_style()}</style></head>\n<body>'
            f"{main}\n{library}<script>{_inline(script)}</script></body></html>\n"
        )

    def main(self) -> str:
        """What is between the head and the scripts."""
        sections = {
            "Leaderboard": self._leaderboard(),
            "Curves": self._curves(),
            "Domains": self._grid(panels.domains(self.entries)),
            "Fairness": self._fairness(),
            "Clients": self._clients(),
            "Data": self._data(),
            "Costs": self._grid(panels.costs(self.entries)),
            "Privacy": self._privacy(),
            "Features": self._views(),
            "Runs": self._runs(),
            "Settings": self._settings(),
        }
        shown = {name: body for name, body in sections.items() if body}
        links = "".join(f'<a href="#{name.lower()}">{name}</a>' for name in shown)
        head = f"<nav><div><b>fedloom</b>{links}<button class=small id=theme>light / dark</button></div></nav>"
        body = "\n".join(
            f"<section id={name.lower()}><h2>{name}</h2>{body}</section>"
            for name, body in shown.items()
        )
        data = json.dumps(self.figures, separators=(",", ":"), allow_nan=False).replace(
            "<", "\\u003c"
        )
        kept = f"<script type=application/json id=figures>{data}</script>" if self.figures else ""
        kept += (
            "<noscript>The figures of this page need JavaScript.</noscript>" if self.figures else ""
        )
        return f"<div id=all>{head}<main>{self._header()}\n{body}</main>{kept}</div>"

    # -- figures --------------------------------------------------------------------------------------------------
    def _figure(self, panel: Panel) -> str:
        head, foot = (
            f"<h3>{esc(panel.heading)}</h3>",
            f"<figcaption>{esc(panel.caption)}</figcaption>",
        )
        if isinstance(panel.figure, bytes):
            image = base64.b64encode(panel.figure).decode()
            picture = f'<img class=picture alt="{esc(panel.heading)}" src="data:image/png;base64,{image}">'
            return f"<figure>{head}<div class=scroll>{picture}</div>{foot}</figure>"
        if self.library:
            self.figures[panel.id] = panel.figure.plotly()
            height = self.figures[panel.id]["layout"]["height"]
            live = f'<div class=live style="height:{height:.0f}px"></div>'
            body = f'<div class="scroll plot" id="{esc(panel.id)}">{live}</div>'
        else:
            chart = isinstance(panel.figure, Chart)
            drawing = panel.figure.draw()
            body = drawing.svg(fit=chart)
            if chart and drawing.width > 700:
                body = body.replace('class="fit"', 'class="fit wide"', 1)
            body = f'<div class=scroll id="{esc(panel.id)}">{body}</div>'
        return f"<figure>{head}{body}{foot}</figure>"

    def _tabbed(self, found: Sequence[Panel]) -> str:
        """Panels in one place, behind tabs."""
        if len(found) < 2:
            return "".join(map(self._figure, found))
        self._tabs += 1
        parts = []
        for i, panel in enumerate(found):
            id, on = f"tab{self._tabs}-{i}", " checked" * (i == 0)
            parts.append(
                f"<div class=tab><input type=radio name=tab{self._tabs} id={id}{on}><label for={id}>{esc(panel.tab)}"
                f"</label><div class=pane>{self._figure(panel)}</div></div>"
            )
        return f"<div class=tabs>{''.join(parts)}</div>"

    def _grid(self, found: Sequence[Panel], kind: str = "") -> str:
        return (
            f'<div class="grid {kind}">{"".join(map(self._figure, found))}</div>' if found else ""
        )

    # -- first things ---------------------------------------------------------------------------------------------
    def _header(self) -> str:
        facts: dict[str, Any] = {}
        for key in ("data", "partition", "model"):
            facts[key] = dict.fromkeys(
                str(r.config.get(key) or r.summary.get(key) or "") for r in self.runs
            )
        facts["clients"] = dict.fromkeys(
            str(len(r.federation.get("clients") or [])) for r in self.runs
        )
        facts["rounds"] = dict.fromkeys(
            str(r.planned or r.summary.get("rounds") or "") for r in self.runs
        )
        facts["seeds"] = dict.fromkeys(str(r.seed) for r in self.runs if r.seed is not None)
        said = {
            k: ", ".join(v for v in values if (v and v != "0") or k == "seeds")
            for k, values in facts.items()
        }
        settings = self.board.get("settings") or {}
        if isinstance(target := settings.get("target"), int | float):
            why = settings.get("target_is")
            said["target"] = f"{percent(target)} %{f' ({why})' if why else ''}"
        chips = "".join(f"<li>{esc(k)} <b>{esc(v)}</b></li>" for k, v in said.items() if v)
        cards = (
            self._cards()
            if any(e.shown for e in self.entries)
            else f"<p class=say>{EMPTY.capitalize()}.</p>"
        )
        return f"<h1>{esc(self.title)}</h1><ul class=facts>{chips}</ul>{cards}"

    def values(self, key: str) -> dict[int, tuple[Value, Value]]:
        """Mean and std over seeds of a column, by the method's number."""
        if key not in self._cells:
            column = next(c for c in COLUMNS if c.key == key)
            self._cells[key] = {e.number: cell(e, column, self.runs) for e in self.entries}
        return self._cells[key]

    def _top(
        self, key: str, lowest: bool = False, among: Sequence[Entry] | None = None
    ) -> Entry | None:
        values = self.values(key)
        known = [(v, e) for e in among or self.entries if (v := values[e.number][0]) is not None]
        return (min if lowest else max)(known, key=lambda k: k[0])[1] if known else None

    def _cards(self) -> str:
        cards = []

        def card(entry: Entry, about: str, value: str, unit: str, more: str) -> None:
            tint = f'style="--c:var(--{colour(entry.number)})"'
            cards.append(
                f"<div class=card {tint}><small>{esc(about)}</small><strong>{esc(value)} "
                f"<span>{esc(unit)}</span></strong><p><b>{esc(entry.name)}</b>{esc(more)}</p></div>"
            )

        def told(key: str, entry: Entry) -> tuple[Value, Value]:
            return self.values(key)[entry.number]

        lead = self._top("personal")
        if lead:
            value, std = told("personal", lead)
            rest = [
                (v, e)
                for e in self.entries
                if e is not lead and (v := told("personal", e)[0]) is not None
            ]
            gap = ""
            if rest and value is not None:
                second = max(rest, key=lambda k: k[0])
                gap = f", {percent(value - second[0])} points ahead of {second[1].name}"
            card(lead, "Highest personal accuracy", text(value, std, percent), "%", gap)
        helper = self._top("better_than_local")
        if helper:
            share, gain = told("better_than_local", helper), told("gain_over_local", helper)
            more = f", mean gain {text(*gain, signed)} points"
            card(helper, "Most clients better off than alone", text(*share, percent), "%", more)
        kind = self._top("worst_client")
        if kind and len(self.entries) > 1:
            card(
                kind,
                "Best for the worst-off client",
                text(*told("worst_client", kind), percent),
                "%",
                "",
            )
        federated = [e for e in self.entries if (told("bytes_up_per_round", e)[0] or 0) > 0]
        cheap = self._top("bytes_up_per_round", True, federated) if federated else None
        if cheap:
            value, _ = told("bytes_up_per_round", cheap)
            same = [e for e in federated if told("bytes_up_per_round", e)[0] == value]
            more = (
                f" and {len(same) - 1} more, all clients together"
                if len(same) > 1
                else ", all clients together"
            )
            column = next(c for c in COLUMNS if c.key == "bytes_up_per_round")
            card(
                cheap,
                "Least sent by a federated method" if len(federated) > 1 else "Sent",
                column.show(value or 0),
                "MB up per round",
                more,
            )
        return f"<div class=cards>{''.join(cards)}</div>{self._evidence(lead)}"

    def _evidence(self, lead: Entry | None) -> str:
        """What the differences are worth."""
        if len([e for e in self.entries if e.shown]) < 2:
            return ""
        if len({tuple(sorted(map(str, e.seeds))) for e in self.entries if e.shown}) > 1:
            return (
                "<p class=say>The methods have not been run with the same seeds, so their means are not over the same "
                "data: nothing is marked as best.</p>"
            )
        tests = [
            t for t in self.board.get("tests") or [] if isinstance(t, Mapping) and t.get("sentence")
        ]
        about = [t for t in tests if lead and lead.method in (t.get("a"), t.get("b"))]
        if about:
            first = "".join(f"<li>{esc(t['sentence'])}</li>" for t in about)
            rest = "".join(f"<li>{esc(t['sentence'])}</li>" for t in tests if t not in about)
            rest = (
                f"<details><summary>All other pairs</summary><ul>{rest}</ul></details>"
                if rest
                else ""
            )
            return f"<div class=say><b>Is {esc(lead.name if lead else '')} really ahead?</b><ul>{first}</ul></div>{rest}"
        if min(len(e.seeds) for e in self.entries if e.shown) < 2:
            return (
                "<p class=say>One seed only, which proves nothing: another may turn small differences round. Nothing "
                "is marked as best.</p>"
            )
        return "<p class=say>No significance test came with these runs: compare differences with the ± beside them.</p>"

    # -- the leaderboard ------------------------------------------------------------------------------------------
    def _leaderboard(self) -> str:
        values = {c: self.values(c.key) for c in COLUMNS}
        # Columns that no method fills say nothing, and over fewer than two domains there is nothing to average.
        known = [c for c in COLUMNS if any(v is not None for v, _ in values[c].values())]
        few = len(panels.domain_names(self.entries)) < 2
        shown = [
            c for c in known if not (few and c.key.startswith(("domain", "sigma_type")))
        ] or list(COLUMNS[:1])
        groups, edges = "", set()
        for name in dict.fromkeys(c.group for c in shown):
            own = [c for c in shown if c.group == name]
            edges.add(own[0])
            groups += f"<th class=edge colspan={len(own)}>{esc(name)}</th>"
        head = "<th scope=col><button data-column=0 data-down=0>Method</button></th>"
        for i, c in enumerate(shown, 1):
            kinds = " ".join(["minor"] * c.minor + ["edge"] * (c in edges))
            head += (
                f'<th scope=col class="{kinds}"><button data-column={i} data-down={int(c.higher is not False)}>'
                f"{esc(c.label)}<small>{esc(c.unit)}</small></button></th>"
            )
        marks = {c: self.marks(c) for c in shown}
        order = sorted(
            self.entries,
            key=lambda e: -(-1.0 if (v := values[COLUMNS[0]][e.number][0]) is None else v),
        )
        body = []
        for e in order:
            row = [
                f'<th scope=row data-v="{esc(e.name)}">{_key(e)}{esc(e.name)}<small>{self._about(e)}</small></th>'
            ]
            for c in shown:
                value, std = values[c][e.number]
                kinds = " ".join(
                    ["minor"] * c.minor
                    + ["edge"] * (c in edges)
                    + [k for k in [marks[c].get(e.number)] if k]
                )
                said = ABSENT if value is None else c.show(value)
                spread = "" if not std else f"<span class=pm>± {c.show(std).lstrip('+')}</span>"
                row.append(
                    f'<td class="{kinds}" data-v="{"" if value is None else value}">{esc(said)}{spread}</td>'
                )
            body.append(f"<tr>{''.join(row)}</tr>")
        labels = {c.label for c in shown} | {"±", "before / after local training"}
        labels |= {n for n in NOTES if set(n.split(", ")) & labels}
        notes = "".join(
            f"<div><dt>{esc(n)}</dt><dd>{esc(t)}</dd></div>"
            for n, t in NOTES.items()
            if n in labels
        )
        marked = any(marks.values())
        legend = "<b class=best>Marked</b> is the best mean of a column. " if marked else ""
        if "tie" in {m for c in shown for m in marks[c].values()}:
            legend += "<b class=tie>Framed</b> is not significantly different from it. "
        return (
            "<div class='scroll frame'><table id=board><thead>"
            f"<tr class=groups><th></th>{groups}</tr><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
            "</div>"
            f"<p class=note>A click on a heading sorts. {legend}</p><dl>{notes}</dl>"
        )

    def marks(self, column: Column) -> dict[int, str]:
        """Which methods are marked as `best`, or as a `tie` with it. A single seed may have been lucky, and means over
        different seeds cannot be compared: then nobody is."""
        known = {i: v for i, (v, _) in self.values(column.key).items() if v is not None}
        seeds = {tuple(sorted(map(str, e.seeds))) for e in self.entries if e.shown}
        if column.higher is None or len(known) < 2 or len(seeds) != 1 or len(next(iter(seeds))) < 2:
            return {}
        if column.group == "Cost":  # who sends nothing does not compete
            known = {i: v for i, v in known.items() if v > 0} or known
        top = column.show((max if column.higher else min)(known.values()))
        best = [i for i, v in known.items() if column.show(v) == top]
        # Methods that look equal at the printed precision share the mark; where all do, nobody is best.
        if len(best) == len(known):
            return {}
        marks = dict.fromkeys(best, "best")
        names = {e.method: e.number for e in self.entries}
        for test in (self.board.get("tests") or []) if column.key == "personal" else []:
            pair = {names.get(test.get("a")), names.get(test.get("b"))}
            chance = test.get("p_holm", test.get("p"))
            if (
                isinstance(chance, int | float)
                and chance >= SIGNIFICANT
                and pair & set(best)
                and None not in pair
            ):
                marks |= {i: "tie" for i in pair if i is not None and i not in marks}
        return marks

    def _about(self, entry: Entry) -> str:
        notes = []
        if entry.shown:
            count = len(entry.seeds)
            stages = " and ".join(dict.fromkeys(r.stage for r in entry.shown))
            notes.append(f"{count} seed{'s' * (count != 1)}, {stages} local training")
        elif not entry.failed and not entry.row:
            notes.append(EMPTY)
        if entry.row.get("note"):
            notes.append(str(entry.row["note"]))
        going = [r for r in entry.runs if not r.finished]
        if going and not any(r.finished for r in entry.runs):
            notes.append(
                "unfinished, " + ", ".join(f"round {r.round} of {r.planned or '?'}" for r in going)
            )
        elif going:
            notes.append(f"{len(going)} more under way")
        failed = "".join(f" <span class=bad>failed: {esc(f)}</span>" for f in entry.failed)
        return esc("; ".join(notes)) + failed

    # -- sections of figures --------------------------------------------------------------------------------------
    def _curves(self) -> str:
        first, others = panels.curves(self.entries)
        if not first and not others:
            return ""
        keys = "".join(
            f"<label><input type=checkbox checked data-m={e.number}>{_key(e)}<span>{esc(e.name)}</span></label>"
            for e in self.entries
            if e.shown
        )
        legend = (
            f"<div class=legend aria-label='methods shown in the figures'>{keys}</div>"
            if len(self.entries) > 1
            else ""
        )
        return f"{legend}<div class='grid two'>{self._tabbed(first)}{self._tabbed(others)}</div>"

    def _fairness(self) -> str:
        found = [
            self._tabbed(panels.fairness(self.entries)),
            *map(self._figure, panels.profile(self.entries)),
        ]
        return f"<div class='grid two'>{''.join(found)}</div>" if any(found) else ""

    def _clients(self) -> str:
        accuracy, gained = panels.clients(self.entries)
        parts = [self._grid(panels.gain(self.entries))]
        small = (
            max((len(r.clients) for r in self.runs), default=0) <= 8
        )  # then two maps fit side by side
        maps = [m for m in (self._tabbed(accuracy), self._tabbed(gained)) if m]
        if maps:
            parts.append(f'<div class="grid{" two" * small}">{"".join(maps)}</div>')
        return "".join(parts)

    def _data(self) -> str:
        body = self._tabbed(panels.partition(self.entries))
        seen: dict[str, RunData] = {}
        for run in self.runs:
            if run.picture:  # other seeds of the same data look alike
                seen.setdefault(
                    f"{run.federation.get('data')}, {run.federation.get('partition')}", run
                )
        for what, run in seen.items():
            which = f" ({what}, seed {run.seed})"
            image = base64.b64encode(run.picture or b"").decode()
            body += (
                f"<details><summary>What the samples look like, and label histograms{esc(which)}</summary>"
                f'<img class=picture alt="samples and label histograms" src="data:image/png;base64,{image}"></details>'
            )
        return body

    def _views(self) -> str:
        return "".join(
            f"<h3>{esc(heading)}</h3>{self._grid(found, 'two' if len(found) > 1 else '')}"
            for heading, found in self.views.items()
        )

    def _privacy(self) -> str:
        """What each run promises to each client, if any run promises anything."""
        rows, notes = "", ""
        for entry in self.entries:
            for run in entry.runs:
                told = run.summary.get("privacy")
                if not isinstance(told, Mapping):
                    continue
                spent = told["epsilon"]
                rows += (
                    f"<tr><th scope=row>{_key(entry)}{esc(entry.name)}</th><td>{esc(run.seed)}</td>"
                    f"<td>{told['noise_multiplier']:.4g}</td><td>{told['delta']:g}</td><td>{min(spent):.4g}</td>"
                    f"<td>{max(spent):.4g}</td></tr>"
                )
                each = "\n".join(
                    f"client {k}: {n} prototypes sent, epsilon {e:.4g}"
                    for k, (n, e) in enumerate(zip(told["releases"], spent, strict=True))
                )
                which = f"Each client of {entry.name}, seed {run.seed}"
                notes += f"<details><summary>{esc(which)}</summary>{_code(each)}</details>"
        if not rows:
            return ""
        heads = (
            "Method",
            "seed",
            "noise / sensitivity",
            "delta",
            "least epsilon",
            "greatest epsilon",
        )
        head = "".join(f"<th>{h}</th>" for h in heads)
        return (
            f"<div class='scroll frame'><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
            "<p class=note>(epsilon, delta) of all prototypes that a client sent in the run, for an exchange of all "
            "its inputs; which classes it has, and how many samples of each, is not hidden. An epsilon far above 10 "
            f"promises next to nothing.</p>{notes}"
        )

    # -- runs and settings ----------------------------------------------------------------------------------------
    def _runs(self) -> str:
        """Where each run stands; of a finished comparison there is nothing to say."""
        if (
            not self.live
            and all(r.finished for r in self.runs)
            and not any(e.failed for e in self.entries)
        ):
            return ""
        rows = []
        for entry in self.entries:
            for run in entry.runs:
                planned = run.planned or run.round or 1
                state = "finished" if run.finished else f"round {run.round} of {planned}"
                now = run.figure("accuracy_mean")
                rows.append(
                    f"<tr><th scope=row>{_key(entry)}{esc(entry.name)}</th><td>{esc(run.seed)}</td>"
                    f"<td><progress max={planned} value={planned if run.finished else run.round}></progress></td>"
                    f"<td>{esc(state)}</td><td>{ABSENT if now is None else percent(now)}</td></tr>"
                )
            rows += [
                f"<tr><th scope=row>{_key(entry)}{esc(entry.name)}</th>"
                f"<td colspan=4 class=bad>failed: {esc(f)}</td></tr>"
                for f in entry.failed
            ]
        head = "".join(
            f"<th><button>{h}</button></th>"
            for h in ("Method", "seed", "progress", "state", "personal, %")
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        return f"<div class='scroll frame'>{table}</div>"

    def _settings(self) -> str:
        out = [
            "<p class=note>Each text is complete: saved as a file, <code>fedloom run FILE.toml</code> repeats the run. "
            "Seeds of a method differ in <code>seed</code> only.</p>"
        ]
        for entry in self.entries:
            for run in entry.runs[:1] if entry.method != TUNED else []:
                given = run.config.get("toml")
                body = given if isinstance(given, str) else config_text(run.config)
                out.append(
                    f"<details><summary>{_key(entry)}{esc(entry.name)}</summary>{_code(body)}</details>"
                )
        versions: dict[str, list[str]] = {}
        for run in self.runs:
            told = run.summary.get("versions")
            known = (
                "\n".join(f"{k} {v}" for k, v in told.items())
                if isinstance(told, Mapping) and told
                else ""
            )
            if known:
                versions.setdefault(known, []).append(f"{run.method} seed {run.seed}")
        for known, whose in versions.items():
            which = f": {', '.join(whose)}" if len(versions) > 1 else ""
            out.append(f"<details><summary>Versions{esc(which)}</summary>{_code(known)}</details>")
        return "".join(out)


def _key(entry: Entry) -> str:
    return f'<i class=key style="--c:var(--{colour(entry.number)})"></i>'


def _code(body: str) -> str:
    return f"<div class=code><button class=small>copy</button><pre>{esc(body)}</pre></div>"


def _inline(script: str) -> str:
    """A script that cannot end its own element."""
    return re.sub(r"</(script)", r"<\\/\1", script, flags=re.IGNORECASE)


def _style() -> str:
    light, dark = (
        ";".join(f"--{name}:{pair[i]}" for name, pair in COLOURS.items()) for i in (0, 1)
    )
    return (
        f":root{{{light}}}@media screen{{:root[data-theme=dark]{{{dark}}}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        + files("fedloom.report").joinpath("page.css").read_text()
    )


# -- configurations as TOML -------------------------------------------------------------------------------------------
def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{ "
            + ", ".join(f"{_name(k)} = {_toml(v)}" for k, v in value.items() if v is not None)
            + " }"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    return json.dumps(str(value), ensure_ascii=False)


def _name(key: object) -> str:
    return (
        str(key)
        if re.fullmatch(r"[A-Za-z0-9_-]+", str(key))
        else json.dumps(str(key), ensure_ascii=False)
    )


def config_text(config: Mapping[str, Any], path: str = "") -> str:
    """Write a nested dictionary as TOML; nulls, which TOML does not have, become comments."""
    out = [f"[{path}]"] if path else []
    plain = {k: v for k, v in config.items() if not isinstance(v, dict)}
    out += [
        f"# {_name(k)} is unset" if v is None else f"{_name(k)} = {_toml(v)}"
        for k, v in plain.items()
    ]
    stem = f"{path}." if path else ""
    tables = [config_text(v, stem + _name(k)) for k, v in config.items() if isinstance(v, dict)]
    return "\n\n".join(["\n".join(out), *tables]).strip()
