"""How the samples of a data set are dealt out to clients: general ways, and those of papers."""

from .base import PARTITIONS, PartitionError, Pool, Share, doc, options, partition, register

__all__ = [
    "PARTITIONS",
    "PartitionError",
    "Pool",
    "Share",
    "doc",
    "options",
    "partition",
    "register",
]
