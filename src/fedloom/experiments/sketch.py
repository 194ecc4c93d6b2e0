"""Federations without samples: who would have how many, from the counts of published sets.

What a table costs can so be told before its data are read, and even before they are fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from ..data.catalogue import locate, selected
from ..data.dataset import Dataset
from ..data.federation import Federation
from ..data.published import Published, published
from ..data.store import facts_of, is_kept
from ..engine.config import Config
from ..engine.setup import deal, deal_out

USUAL_SIDE = 32  # of images whose size neither the settings nor the catalogue name
BAG = 5000  # words that a bag counts
VOCABULARY = 98_635  # AG News' words


@dataclass(frozen=True)
class Sketch:
    """A federation's sizes, and what a sample looks like."""

    train: list[int]  # for each client
    test: list[int]
    shape: tuple[int, ...]
    classes: int
    vocabulary: int | None = None

    @property
    def samples(self) -> int:
        """All samples that clients have; those that several have count each time."""
        return sum(self.train) + sum(self.test)


def sketch(config: Config) -> Sketch:
    """What the config would deal out; a set that is not in the catalogue is read."""
    entry = published().get(config.data)
    if entry is None:
        federation = deal(config)
        data = federation.data
        vocabulary = data.vocabulary
        shape = tuple(data.x.shape[1:])
        return _sized(federation, shape, vocabulary)
    federation = _dealt(config, _hollow(config, entry))
    return _sized(federation, _shape(config, entry), _words(config, entry))


def _sized(federation: Federation, shape: tuple[int, ...], vocabulary: int | None) -> Sketch:
    train = [len(client.train) for client in federation.clients]
    test = [len(client.test) for client in federation.clients]
    return Sketch(train, test, shape, len(federation.data.classes), vocabulary)


def _dealt(config: Config, data: Dataset) -> Federation:
    return deal_out(selected(data, config.source), config)


def _hollow(config: Config, entry: Published) -> Dataset:
    """Labels, domains and parts as the catalogue counts them, without samples."""
    counts = _counts(config, entry)
    classes = entry.classes or tuple(f"class {number}" for number in range(entry.class_count))
    domain: list[int] = []
    test: list[bool] = []
    labels: list[int] = []
    for number, parts in enumerate(counts.values()):
        for part, count in parts.items():
            domain += [number] * count
            test += _tested(part, count)
            labels += [i % len(classes) for i in range(count)]
    return Dataset(
        name=entry.name,
        x=torch.zeros(len(labels), 1),
        y=torch.tensor(labels) * (entry.kind != "segmentation"),
        domain=torch.tensor(domain),
        test=torch.tensor(test),
        classes=classes,
        domains=tuple(counts),
    )


def _tested(part: str, count: int) -> list[bool]:
    """Which samples of a part are for testing: of a set without parts, two of ten."""
    if part in ("all", ""):
        return [i % 10 > 7 for i in range(count)]
    return [part == "test"] * count


def _counts(config: Config, entry: Published) -> dict[str, dict[str, int]]:
    """The samples of each domain and part: of the imported set, or of the catalogue.

    What the catalogue does not know of some classes of a set is taken from the whole set; where it
    does not know a domain's, the other domains' mean is taken.
    """
    place = locate(entry.name, config.execution.data_root)
    if place is not None and is_kept(place) and "counts" in facts_of(place):
        return dict(facts_of(place)["counts"])
    known = {domain: dict(parts) for domain, parts in entry.counts.items() if parts}
    if entry.part_of:
        whole = published()[entry.part_of]
        share = entry.class_count / whole.class_count
        return {
            domain: dict(_scaled(parts, share)) | known.get(domain, {})
            for domain, parts in whole.counts.items()
        }
    typical = {}
    for part in next(iter(known.values())):
        typical[part] = sum(parts[part] for parts in known.values()) // len(known)
    return {domain: known.get(domain, typical) for domain in entry.counts}


def _scaled(parts: Mapping[str, int], share: float) -> Iterator[tuple[str, int]]:
    for part, count in parts.items():
        yield part, int(count * share)


def _shape(config: Config, entry: Published) -> tuple[int, ...]:
    """The shape of a sample."""
    if entry.kind == "text":
        return (config.source.length,)
    if entry.kind == "sparse":
        return (BAG,)
    side = config.source.size or entry.pixels or USUAL_SIDE
    return (3, side, side)


def _words(config: Config, entry: Published) -> int | None:
    if entry.kind != "text":
        return None
    return config.source.words or VOCABULARY
