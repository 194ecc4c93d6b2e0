"""Images that somebody has drawn of every class: their features, before any client has sent one."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.errors import FedloomError
from ..core.local import Worker
from ..data.catalogue import Source, load
from ..encoders import dual
from .prompts import simplified


def drawn_keys(worker: Worker, folder: str) -> tuple[Tensor, Tensor]:
    """Unit features of the images in a folder with a subfolder for each class, class by class.

    The federation's own encoder reads them. Returns them with the number of each one's class. Where
    the folder holds such a folder for each data set, that of the federation's counts.
    """
    data = worker.data
    own = Path(folder) / Path(data.name).name
    if own.is_dir() and any(inside.is_dir() for inside in own.iterdir()):
        folder = str(own)
    if data.encoder is None:
        raise FedloomError(f"{worker.method_name} needs features of a dual encoder: say --encoder.")
    reader = dual(data.encoder).image
    pictures = load(folder, Source().cut_by(lambda: reader.preprocess.square))
    numbers = {simplified(name): c for c, name in enumerate(data.classes)}
    strange = [name for name in pictures.classes if simplified(name) not in numbers]
    if strange:
        raise FedloomError(f"{folder} has images of {strange[0]!r}, which is no class of the data.")
    of_class = torch.tensor([numbers[simplified(name)] for name in pictures.classes])
    owners = of_class[pictures.y]
    for c, name in enumerate(data.classes):
        if not (owners == c).any():
            raise FedloomError(f"{folder} has no image of class {name!r}.")
    features = reader.encode_dataset(pictures).x
    order = owners.argsort(stable=True)
    return F.normalize(features[order].float(), dim=1), owners[order]
