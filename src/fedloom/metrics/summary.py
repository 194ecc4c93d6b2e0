"""A run's figures at three rounds: the last, the one chosen on validation data, and the best on test data."""

from __future__ import annotations

from typing import Any

Chosen = dict[str, float | None]
SPREADS = ("domain_avg", "domain_std", "sigma_type", "sigma_client", "worst_client")


def summarise_run(metrics: list[dict[str, Any]], timing: list[dict[str, Any]]) -> dict[str, Any]:
    """The part of `summary.json` that is computed from the metrics.

    `best` is picked with test data and therefore optimistic; `best_by_validation` is null without validation data.
    """
    total = metrics[-1]["bytes_total"] if metrics else {"up": 0, "down": 0}
    rounds = metrics[-1]["round"] if metrics else 0
    cost = {
        "bytes": {
            way: {"total": n, "per_round": n / rounds if rounds else 0} for way, n in total.items()
        },
        "floats": metrics[-1].get("floats")
        if metrics
        else None,  # up and down, per client in the last round
        "seconds": round(sum(t["seconds"] for t in timing), 3),
        "spent": {
            who: round(sum(t["spent"].get(who, 0.0) for t in timing if "spent" in t), 3)
            for who in ("clients", "server", "evaluation")
        },
        "seconds_per_round": round(sum(t["seconds"] for t in timing) / rounds, 4)
        if rounds
        else None,
        "peak_rss_mb": round(max((t["peak_rss_mb"] for t in timing), default=0.0), 1),
    }
    if not metrics or not metrics[-1]["personal"]:
        return {"chosen_rounds": {}, "personal": {}, "common": None, "domains": {}, **cost}
    chosen = {
        "last": metrics[-1],
        "best": max(metrics, key=lambda m: m["personal"]["accuracy_mean"]),
        "best_by_validation": None,
    }
    held = [m for m in metrics if m["validation"]["personal"] is not None]
    if held:
        chosen["best_by_validation"] = max(held, key=lambda m: m["validation"]["personal"])

    def pick(who: str, figure: str, *inner: str) -> Chosen:
        found: Chosen = {}
        for name, record in chosen.items():
            value = record[who][figure] if record else None
            for key in inner:
                value = value[key] if value else None
            found[name] = value
        return found

    def figures(who: str) -> dict[str, Any]:
        names = metrics[-1][who]["domains"]
        return {"domains": {d: pick(who, "domains", d) for d in names}} | {
            s: pick(who, s) for s in SPREADS
        }

    clustered = {}
    if any("clustering" in m for m in metrics):
        clustered = {
            "clustering": {
                n: record.get("clustering") if record else None for n, record in chosen.items()
            }
        }
    common = None
    if metrics[-1]["common"]:
        common = {"accuracy": pick("common", "accuracy_mean"), **figures("common")}
    return {
        "chosen_rounds": {
            name: record["round"] if record else None for name, record in chosen.items()
        },
        "personal": {
            a: pick("personal", a) for a in ("accuracy_mean", "accuracy_weighted", "accuracy_std")
        },
        "before": {"accuracy_mean": pick("before", "accuracy_mean")},
        "after": {"accuracy_mean": pick("after", "accuracy_mean")},
        "common": common,
        "figures": _own(metrics),
        **figures("personal"),
        **clustered,
        **cost,
    }


def _own(metrics: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The method's own figures: after the last round, and the least and the most of all rounds."""
    names = dict.fromkeys(name for m in metrics for name in m.get("figures", ()))
    seen = {
        name: [m["figures"][name] for m in metrics if name in m.get("figures", ())]
        for name in names
    }
    return {name: {"last": v[-1], "least": min(v), "most": max(v)} for name, v in seen.items()}
