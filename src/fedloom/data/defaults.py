"""What a data set is taken to be where nobody says: classes, domains, the test part."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import FedloomError
from .readers.naming import class_names, numbered, plain_names
from .readers.splits import every_fifth, every_fifth_group

COLUMNS = {"domain": torch.int64, "owner": torch.int64, "group": torch.int64}
MARKS = ("test", "validation")


def completed(data: Any) -> dict[str, Any]:
    """The fields of a data set that were given in another form, or not at all."""
    fields: dict[str, Any] = {}
    if isinstance(data.x, str):
        raise FedloomError(f"Dataset(x, y) wants samples first, not {data.x!r}; say name=...")
    if not hasattr(data.x, "dtype") or isinstance(data.x, np.ndarray):
        fields["x"] = _samples(data.x)
    y, classes = _labels(data)
    if y is not data.y:
        fields["y"] = y
    if classes != data.classes:
        fields["classes"] = classes
    for name, dtype in COLUMNS.items():
        column = getattr(data, name)
        if column is not None and not isinstance(column, Tensor):
            fields[name] = torch.as_tensor(np.asarray(column), dtype=dtype)
    for name in MARKS:
        column = getattr(data, name)
        if column is not None and not isinstance(column, Tensor):
            fields[name] = torch.as_tensor(np.asarray(column), dtype=torch.bool)
    if data.domain is None:
        fields["domain"] = torch.zeros(len(y), dtype=torch.int64)
    domain = fields.get("domain", data.domain)
    if not data.domains:
        fields["domains"] = _domain_names(data.name, domain)
    if data.test is None:
        fields["test"] = _test_part(y, domain, fields.get("group", data.group))
    return fields


def _samples(x: Any) -> Tensor:
    """Arrays and lists as a tensor; numbers of double precision, NumPy's default, become floats."""
    samples = torch.as_tensor(np.asarray(x))
    if samples.dtype == torch.float64:
        return samples.float()
    return samples


def _labels(data: Any) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as numbers, and the names of the classes."""
    if isinstance(data.y, Tensor):
        y = data.y
    else:
        values = np.asarray(data.y)
        if values.dtype.kind in "US":
            texts = values.astype(str).tolist()
            names = tuple(data.classes) or class_names(texts)
            lost = set(texts) - set(names)
            if lost:
                raise FedloomError(f"{data.name}: the label {min(lost)!r} is none of the classes.")
            return numbered(texts, names), names
        if values.dtype.kind not in "iu" and len(values):
            raise FedloomError(
                f"{data.name}: labels must be whole numbers or texts, not {values.dtype}."
            )
        y = torch.as_tensor(values, dtype=torch.int64)
    classes = tuple(data.classes)
    if not classes and y.numel():
        classes = plain_names(int(y.max()) + 1)
    return y, classes


def _domain_names(name: str, domain: Tensor) -> tuple[str, ...]:
    """The only domain is called after the data set; several have numbers."""
    count = int(domain.max()) + 1 if len(domain) else 1
    if count == 1:
        return (name,)
    return plain_names(count)


def _test_part(y: Tensor, domain: Tensor, group: Tensor | None) -> Tensor:
    """Every fifth sample of each domain, or every fifth group."""
    if group is None:
        return every_fifth(domain)
    labels = y if y.ndim == 1 else torch.zeros(len(y), dtype=torch.int64)
    return every_fifth_group(domain, labels, group)
