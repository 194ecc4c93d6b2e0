"""Quick linear classifiers that say how different and how learnable clients' samples are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.decomposition import PCA
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

from ...core.rng import key, numpy_rng
from ...data.dataset import Dataset
from ...data.federation import Federation
from ...report.verdict import client_names

MOST_ROWS = 3000  # samples that are looked at, of all clients together
MOST_GROUPS = 12  # domains or clients that are told apart
MOST_CLIENTS = 10  # clients whose own samples are tried
SIDE = 16  # images are shrunk to this many pixels a side
WIDTH = 50  # numbers that are left of a sample
BUCKETS = 512  # for words
LEAST = 6  # samples of a group or a client, below which nothing is tried
FOLDS = 3


@dataclass(frozen=True)
class Probe:
    """Some of all clients' training samples as short vectors, with label and owner."""

    x: np.ndarray
    y: np.ndarray
    owner: np.ndarray
    of_what: str
    seed: int

    @staticmethod
    def of(federation: Federation, seed: int) -> Probe:
        """The same number of samples of every client, if it has as many."""
        each = max(LEAST, MOST_ROWS // len(federation))
        rows, owner = [], []
        for k, client in enumerate(federation.clients):
            index = np.concatenate([client.train, client.validation])
            index = numpy_rng(seed, "advise", "probe", k).permutation(index)[:each]
            rows.append(np.sort(index))
            owner += [k] * len(index)
        index = np.concatenate(rows)
        raw = _vectors(federation.data, index)
        x = StandardScaler().fit_transform(raw)
        width = min(WIDTH, *x.shape)
        x = PCA(width, svd_solver="full").fit_transform(x)
        labels = federation.data.labels.numpy()[index]
        what = "raw samples"
        if federation.data.encoder:
            what = f"features of {federation.data.encoder}"
        elif federation.data.kind == "image":
            what = "pixels"
        return Probe(x, labels, np.array(owner), what, seed)


def _vectors(data: Dataset, index: np.ndarray) -> np.ndarray:
    """Samples as flat vectors: images shrunk, texts as counts of words."""
    stored = data.take(torch.from_numpy(index))
    if data.kind == "text":
        counts = torch.zeros(len(stored), BUCKETS)
        words = stored % BUCKETS
        counts.scatter_add_(1, words, (stored > 0).float())
        return counts.sqrt().numpy()
    x = data.prepare(stored).float()
    if data.kind == "image" and max(x.shape[2:]) > SIDE:
        x = F.adaptive_avg_pool2d(x, SIDE)
    return x.flatten(1).numpy()


@dataclass(frozen=True)
class Groups:
    """Who is to be told apart: domains if clients have them, else clients."""

    what: str
    names: list[str]
    of_row: np.ndarray  # each sample's group, -1 for none

    @staticmethod
    def of(probe: Probe, federation: Federation) -> Groups:
        """The groups with enough samples; of many, some that are evenly spread."""
        domains = [client.domain for client in federation.clients]
        named = sorted({domain for domain in domains if domain is not None})
        what, names, of_client = "clients", client_names(domains), list(range(len(domains)))
        if len(named) > 1:
            what, names = "domains", named
            of_client = [named.index(domain) if domain else -1 for domain in domains]
        of_row = np.array(of_client)[probe.owner]
        sizes = np.bincount(of_row[of_row >= 0], minlength=len(names))
        kept = np.flatnonzero(sizes >= LEAST)
        if len(kept) > MOST_GROUPS:
            kept = kept[np.linspace(0, len(kept) - 1, MOST_GROUPS).round().astype(int)]
        places = np.full(len(names) + 1, -1)  # the last is for those without a group
        places[kept] = np.arange(len(kept))
        return Groups(what, [names[k] for k in kept], places[of_row])


@dataclass(frozen=True)
class Told:
    """How well groups are told apart; `chance` is what knowing the label alone gives."""

    accuracy: float
    chance: float
    confusion: np.ndarray  # rows: the true group; columns: what it is taken for; rows sum to 1

    @property
    def apart(self) -> float:
        """How far from chance (0) towards certainty (1)."""
        if self.chance >= 1:
            return 0.0
        return (self.accuracy - self.chance) / (1 - self.chance)


def told_apart(probe: Probe, groups: Groups) -> Told | None:
    """Have a classifier guess the group of each sample; None if there are not two groups."""
    if len(groups.names) < 2:
        return None
    rows = np.flatnonzero(groups.of_row >= 0)
    group, y = groups.of_row[rows], probe.y[rows]
    guessed = _cross_validated(probe.x[rows], group, probe.seed)
    number = len(groups.names)
    table = np.zeros((number, number))
    np.add.at(table, (group, guessed), 1)
    by_label = np.zeros((y.max() + 1, number))
    np.add.at(by_label, (y, group), 1)
    confusion = table / table.sum(1, keepdims=True)
    return Told(float((guessed == group).mean()), float(by_label.max(1).sum() / len(y)), confusion)


def class_distances(probe: Probe, groups: Groups) -> tuple[float | None, float | None]:
    """The distance between means of one class in two groups, and of two classes in one group.

    Both are root mean squares, without the part that comes of means over few samples.
    """
    means, noise = {}, {}
    for g in range(len(groups.names)):
        for c in np.unique(probe.y):
            x = probe.x[(groups.of_row == g) & (probe.y == c)]
            if len(x) > 1:
                means[g, c] = x.mean(0)
                noise[g, c] = x.var(0, ddof=1).sum() / len(x)
    same, other = [], []
    for a in means:
        for b in means:
            if a >= b or (a[0] != b[0] and a[1] != b[1]):
                continue
            square = np.square(means[a] - means[b]).sum() - noise[a] - noise[b]
            if a[1] == b[1]:
                same.append(square)
            else:
                other.append(square)
    return _root_mean(same), _root_mean(other)


def _root_mean(squares: Sequence[float]) -> float | None:
    if not squares:
        return None
    return round(math.sqrt(max(0.0, float(np.mean(squares)))), 4)


def trained_on(probe: Probe) -> dict[str, float] | None:
    """Mean accuracies of classifiers of a client's own samples, of all others', and of both."""
    own, others, both, majority = [], [], [], []
    owners, sizes = np.unique(probe.owner, return_counts=True)
    able = owners[sizes >= LEAST]
    if len(able) > MOST_CLIENTS:
        able = able[np.linspace(0, len(able) - 1, MOST_CLIENTS).round().astype(int)]
    for k in able:
        mine = probe.owner == k
        x, y = probe.x[mine], probe.y[mine]
        ox, oy = probe.x[~mine], probe.y[~mine]
        if not len(oy):
            return None
        own.append((_cross_validated(x, y, probe.seed) == y).mean())
        others.append((_predicted(ox, oy, x) == y).mean())
        both.append((_cross_validated(x, y, probe.seed, ox, oy) == y).mean())
        majority.append(np.bincount(y).max() / len(y))
    if not own:
        return None
    means = {"majority": majority, "own": own, "others": others, "both": both}
    return {name: float(np.mean(values)) for name, values in means.items()}


def _cross_validated(
    x: np.ndarray,
    y: np.ndarray,
    seed: int,
    more_x: np.ndarray | None = None,
    more_y: np.ndarray | None = None,
) -> np.ndarray:
    """What a classifier says of each sample that it was not trained on; `more` is always there."""
    guessed = np.zeros_like(y)
    folds = KFold(FOLDS, shuffle=True, random_state=key(seed, "advise", "folds") % 2**32)
    for train, test in folds.split(x):
        tx, ty = x[train], y[train]
        if more_x is not None and more_y is not None:
            tx, ty = np.concatenate([tx, more_x]), np.concatenate([ty, more_y])
        guessed[test] = _predicted(tx, ty, x[test])
    return guessed


def _predicted(x: np.ndarray, y: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """What a ridge classifier trained on x and y says of other samples."""
    if len(np.unique(y)) == 1:
        return np.full(len(asked), y[0])
    return np.asarray(RidgeClassifier().fit(x, y).predict(asked))
