"""What a federation suffers from, in numbers and sentences; test samples are never looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.method import Trouble
from ...core.rng import numpy_rng
from ...data.federation import Federation
from ...report.verdict import client_names
from .probes import Groups, Probe, class_distances, told_apart, trained_on

UNEVEN = 0.1  # labels are uneven if clients' mixes differ by this much more than chance explains
APART = 0.15  # domains differ if a classifier gets this far from chance towards certainty
FEW = 10  # samples of a class at a client
UNEQUAL = 10  # sizes are unequal if the largest client has so many times the smallest's samples
CHANCE_DRAWS = 20


@dataclass(frozen=True)
class Finding:
    """One thing found out about a federation: numbers for a picture, and a sentence about them."""

    name: str
    title: str
    sentence: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Diagnosis:
    """All findings, and what they come down to."""

    findings: tuple[Finding, ...]
    troubles: tuple[Trouble, ...]

    def finding(self, name: str) -> Finding:
        """The finding of that name."""
        return next(found for found in self.findings if found.name == name)

    def plain(self) -> dict[str, Any]:
        """The diagnosis as plain values."""
        findings = [vars(found) for found in self.findings]
        return {"troubles": list(self.troubles), "findings": findings}


def diagnose(federation: Federation, encoded: Federation, seed: int) -> Diagnosis:
    """Look at who has what; `encoded` has features in place of images if there is an encoder."""
    counts = label_counts(federation)
    names = client_names([client.domain for client in federation.clients])
    probe = Probe.of(encoded, seed)
    sizes = _sizes(counts, names)
    classes = _classes(counts, federation.data.classes)
    labels = _labels(counts, federation.data.classes, names, seed)
    domains = _domains(probe, federation)
    agreement = _agreement(probe)
    findings = (sizes, classes, labels, domains, agreement)
    return Diagnosis(findings, _troubles(findings))


def label_counts(federation: Federation) -> np.ndarray:
    """How many samples of each class each client has, training and validation together."""
    classes = len(federation.data.classes)
    rows = []
    for client in federation.clients:
        index = np.concatenate([client.train, client.validation])
        labels = federation.data.labels.numpy()[index]
        rows.append(np.bincount(labels, minlength=classes))
    return np.array(rows)


def _troubles(findings: Sequence[Finding]) -> tuple[Trouble, ...]:
    numbers = {found.name: found.numbers for found in findings}
    troubles: list[Trouble] = []
    if numbers["labels"]["skew"] - numbers["labels"]["by_chance"] >= UNEVEN:
        troubles.append("labels")
    if (numbers["domains"].get("apart") or 0.0) >= APART:
        troubles.append("domains")
    if not troubles:
        troubles.append("alike")
    if numbers["classes"]["shots"] < FEW:
        troubles.append("few")
    if numbers["sizes"]["ratio"] >= UNEQUAL:
        troubles.append("worst")
    return tuple(troubles)


def _sizes(counts: np.ndarray, names: Sequence[str]) -> Finding:
    sizes = counts.sum(1)
    ratio = float(sizes.max() / max(1, sizes.min()))
    each = f"from {sizes.min()} to {sizes.max()} training samples (median {np.median(sizes):g})"
    if sizes.min() == sizes.max():
        each = f"{sizes.min()} training samples each"
    sentence = f"{len(sizes)} clients have {each}, {sizes.sum()} in all."
    if ratio >= UNEQUAL:
        sentence += " Small clients count for little in a mean by size."
    numbers = {"names": list(names), "sizes": sizes.tolist(), "ratio": round(ratio, 4)}
    return Finding("sizes", "Sizes", sentence, numbers)


def _classes(counts: np.ndarray, names: Sequence[str]) -> Finding:
    per_class = counts.sum(0)
    there = per_class[per_class > 0]
    imbalance = float(there.max() / there.min())
    rate = float(np.mean(counts.max(1) / counts.sum(1)))
    shots = float(np.median(counts[counts > 0]))
    alike = "all of about one size"
    if imbalance >= 1.05:
        alike = f"the largest has {imbalance:.1f} times as many samples as the smallest"
    sentence = (
        f"{len(there)} classes; {alike}. Always naming a client's most frequent class is right for "
        f"{100 * rate:.1f} % of its samples: that is the rate to beat. Of a class that it has, a "
        f"client has {shots:g} samples (median)"
    )
    if shots < FEW:
        sentence += ", which is few"
    numbers = {
        "names": list(map(str, names)),
        "counts": per_class.tolist(),
        "imbalance": round(imbalance, 4),
        "majority": round(rate, 4),
        "shots": shots,
    }
    return Finding("classes", "Classes", f"{sentence}.", numbers)


def _labels(counts: np.ndarray, classes: Sequence[str], names: Sequence[str], seed: int) -> Finding:
    """How far each client's mix of classes is from everybody's, as a share of its samples."""
    everybody = counts.sum(0) / counts.sum()
    skew = _distance(counts, everybody)
    lacking = np.where(counts == 0, everybody, 0.0).sum(1)
    missing = 0.0
    if skew.mean() > 0:
        missing = float(lacking.mean() / skew.mean())
    by_chance = _chance_of_skew(counts.sum(1), everybody, seed)
    absent = float(((counts == 0) & (everybody > 0)).sum(1).mean())
    verb = "evenly"
    if skew.mean() - by_chance >= UNEVEN:
        verb = "unevenly"
    lacks = "No client lacks a class"
    if absent:
        lacks = (
            f"{100 * missing:.0f} % of that is classes that a client lacks altogether, on average "
            f"{absent:.1f} of {int((everybody > 0).sum())}"
        )
    sentence = (
        f"Labels are {verb} dealt out: {100 * skew.mean():.0f} % of a client's samples would need "
        f"another class to have everybody's mix ({100 * by_chance:.0f} % by chance alone). {lacks}."
    )
    shares = counts / counts.sum(1, keepdims=True)
    numbers = {
        "skew": round(float(skew.mean()), 4),
        "by_chance": round(by_chance, 4),
        "missing": round(missing, 4),
        "absent": round(absent, 4),
        "classes": list(map(str, classes)),
        "names": list(names),
        "shares": np.round(shares, 4).tolist(),
    }
    return Finding("labels", "Labels", sentence, numbers)


def _distance(counts: np.ndarray, everybody: np.ndarray) -> np.ndarray:
    """Each client's total variation from everybody's mix."""
    return np.asarray(np.abs(counts / counts.sum(1, keepdims=True) - everybody).sum(1) / 2)


def _chance_of_skew(sizes: np.ndarray, everybody: np.ndarray, seed: int) -> float:
    """The skew that clients of these sizes have if everybody draws from the same mix."""
    rng = numpy_rng(seed, "advise", "skew")
    draws = []
    for _ in range(CHANCE_DRAWS):
        counts = np.array([rng.multinomial(size, everybody) for size in sizes])
        draws.append(_distance(counts, everybody).mean())
    return float(np.mean(draws))


def _domains(probe: Probe, federation: Federation) -> Finding:
    groups = Groups.of(probe, federation)
    title = "Domains"
    told = told_apart(probe, groups)
    if told is None:
        sentence = f"There are no two {groups.what} with enough samples to be told apart."
        return Finding("domains", title, sentence, {})
    near, far = class_distances(probe, groups)
    verdict = f"{groups.what} look alike"
    if told.apart >= APART:
        verdict = f"{groups.what} look different"
    sentence = (
        f"A linear classifier of {probe.of_what} tells {len(groups.names)} {groups.what} apart in "
        f"{100 * told.accuracy:.0f} % of the samples (cross-validated), where knowing the label "
        f"alone gives {100 * told.chance:.0f} %: {verdict}."
    )
    if near is not None and far:
        sentence += (
            f" The means of one class in two of them lie {near / far:.2f} times as far apart as "
            "those of two classes in one."
        )
    numbers = {
        "what": groups.what,
        "names": groups.names,
        "accuracy": round(told.accuracy, 4),
        "chance": round(told.chance, 4),
        "apart": round(told.apart, 4),
        "confusion": np.round(told.confusion, 4).tolist(),
        "same_class": near,
        "other_class": far,
    }
    return Finding("domains", title, sentence, numbers)


def _agreement(probe: Probe) -> Finding:
    """Whether what one client learns holds for the others: classifiers of own and others' data."""
    found = trained_on(probe)
    title = "Agreement"
    if found is None:
        return Finding("agreement", title, "There are too few samples to try classifiers on.", {})
    sentence = (
        f"A linear classifier of {probe.of_what} trained on a client's own samples is right for "
        f"{100 * found['own']:.0f} % (cross-validated), on all other clients' for "
        f"{100 * found['others']:.0f} %, on both for {100 * found['both']:.0f} %."
    )
    if found["both"] > found["own"] + 0.01:
        sentence += " What others have seems to help."
    elif found["both"] < found["own"] - 0.01:
        sentence += " What others have seems to confuse."
    else:
        sentence += " What others have makes no difference to it."
    numbers = {name: round(value, 4) for name, value in found.items()}
    return Finding("agreement", title, sentence, numbers)
