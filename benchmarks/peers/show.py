"""The results of a race as tables for the terminal, as Markdown and as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from fedloom.report.figures import Axis, Chart, Mark
from fedloom.report.static import save

UNIT = "auto"  # the contender that others are measured in


def goal(ratio: Mapping[str, Any]) -> str:
    """What was wanted of a ratio."""
    if ratio["bound"] is None:
        return "–"
    return f"at {'least' if ratio['at_least'] else 'most'} {ratio['bound']:g}"


def verdict(ratio: Mapping[str, Any]) -> str:
    """Whether it was reached."""
    if ratio["ratio"] is None:
        return "not measured"
    return {True: "met", False: "MISSED", None: ""}[ratio["met"]]


def ratios(found: Mapping[str, Any]) -> Table:
    """What the benchmark is for: ratios of seconds per round, each beside its goal."""
    table = Table(
        "job",
        "seconds a round",
        box=box.SIMPLE_HEAD,
        title="Ratios",
        title_justify="left",
        pad_edge=False,
    )
    for heading in ("ratio", "goal"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for r in found["ratios"]:
        if r["bound"] is None and r["ratio"] is None:
            continue
        value = "–" if r["ratio"] is None else f"{r['ratio']:.2f}"
        said = verdict(r)
        table.add_row(
            f"({r['job']})",
            r["what"],
            value,
            goal(r),
            f"[bold red]{said}[/]" if said == "MISSED" else said,
        )
    return table


def measured(found: Mapping[str, Any]) -> Table:
    """Everybody's figures."""
    table = Table(
        "job", "", box=box.SIMPLE_HEAD, title="Measured", title_justify="left", pad_edge=False
    )
    for heading in ("round, s", "cold, s", "MB", "accuracy", "apart"):
        table.add_column(heading, justify="right", no_wrap=True)
    for r in found["rows"]:
        if "error" in r:
            table.add_row(f"({r['job']})", r["contender"], "[bold red]FAILED[/]", "", "", "", "")
            continue
        memory = "–" if r["mb"] is None else f"{r['mb']:.0f}"
        apart = "–" if r["apart"] is None else f"{r['apart']:.0e}"
        table.add_row(
            f"({r['job']})", r["contender"], f"{r['round']:.3f}", f"{r['cold']:.1f}", memory,
            f"{100 * r['accuracy']:.1f}", apart,
        )  # fmt: skip
    return table


def failures(found: Mapping[str, Any]) -> list[str]:
    """A sentence for each contender that has no figures."""
    return [f"({r['job']}) {r['contender']}: {r['error']}" for r in found["rows"] if "error" in r]


LEGEND = (
    "round: median of all rounds but the first, evaluation of the common model included. "
    "cold: from the start of the process to the end of the first round, less one round. "
    "MB: peak of all its processes together. "
    "accuracy: of the common model after the last round, in percent. "
    "apart: largest difference of a weight from the bare loop's (with "
    "bf16 and in PFLlib, which draws its own batches, it is no error)."
)


def markdown(found: Mapping[str, Any]) -> str:
    """The same as a page."""
    lines = ["| job | seconds a round | ratio | goal | |", "|---|---|---:|---:|---|"]
    for r in found["ratios"]:
        value = "–" if r["ratio"] is None else f"{r['ratio']:.2f}"
        lines.append(f"| ({r['job']}) | {r['what']} | {value} | {goal(r)} | {verdict(r)} |")
    lines += [
        "",
        "| job | | round, s | cold, s | MB | accuracy, % | apart |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for r in found["rows"]:
        if "error" in r:
            lines.append(f"| ({r['job']}) | {r['contender']} | failed | | | | |")
            continue
        memory = "–" if r["mb"] is None else f"{r['mb']:.0f}"
        apart = "–" if r["apart"] is None else f"{r['apart']:.0e}"
        lines.append(
            f"| ({r['job']}) | {r['contender']} | {r['round']:.3f} | {r['cold']:.1f} | {memory} "
            f"| {100 * r['accuracy']:.1f} | {apart} |"
        )
    told = [
        f"({j['name']}) {j['title']}: {j['clients']} clients of {j['train']} training "
        f"and {j['test']} test samples, "
        f"batches of {j['batch']}, {j['rounds']} rounds."
        for j in found["jobs"]
    ]
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    cores = f"{found['cores']} cores, load {found['load']:.1f} at the start; {versions}."
    failed = [f"Failed: {text}" for text in failures(found)]
    return "\n".join([*lines, "", LEGEND, "", *(f"{text}\n" for text in [*told, *failed, cores])])


def picture(found: Mapping[str, Any]) -> str:
    """Draw seconds of a round in units of ours (`auto`) as SVG.

    Each contender has a row and each job a colour.
    """
    rows = [r for r in found["rows"] if "error" not in r]
    names = list(dict.fromkeys(r["contender"] for r in found["rows"]))
    unit = {r["job"]: r["round"] for r in rows if r["contender"] == UNIT}
    marks, reached = [], [1.0]
    for series, job in enumerate(found["jobs"]):
        points = [r for r in rows if r["job"] == job["name"] and r["job"] in unit]
        shares = [r["round"] / unit[r["job"]] for r in points]
        reached += shares
        if points:
            heights = [float(len(names) - 1 - names.index(r["contender"])) for r in points]
            tips = [
                f"{r['contender']}: {share:.2f}" for r, share in zip(points, shares, strict=True)
            ]
            label = f"({job['name']}) {job['title']}"
            marks.append(
                Mark(
                    "dots",
                    [math.log10(s) for s in shares],
                    heights,
                    series,
                    label,
                    size=4,
                    tips=tips,
                )
            )
    steps = [s * 10.0**e for e in range(-2, 4) for s in (1, 2, 5)]
    inside = [s for s in steps if min(reached) / 2.5 <= s <= max(reached) * 2.5]
    x = Axis(
        "seconds of a round, in units of ours (auto)",
        [(math.log10(s), f"{s:g}") for s in inside],
        (math.log10(inside[0]), math.log10(inside[-1])),
    )
    y = Axis(
        "",
        [(float(len(names) - 1 - i), name) for i, name in enumerate(names)],
        (-0.5, len(names) - 0.5),
    )
    chart = Chart(
        "Speed beside other libraries",
        marks,
        x,
        y,
        width=620,
        height=60 + 26 * len(names),
        rule=0.0,
    )
    return save(chart, "svg", legend=True).decode()
