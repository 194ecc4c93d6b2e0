"""Methods on a frozen vision-language model, in the world of `inputs.py`.

The features are the inputs themselves, as if an encoder had made them; a method's setting `text` is
"hash", and the hashed rows are then replaced by tensor(seed + 2, 4, 6), scaled to length one.
"""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import nn

from fedloom.models import Split
from tests.parity.golden import Golden
from tests.parity.inputs import CLASSES, INPUTS, tensor, world
from tests.parity.ours import Ours, start


def start_on_features(golden: Golden, stretch: float = 1.0) -> Ours:
    """Our method before the first round; features are `stretch` times the inputs."""
    given = world(golden.seed)
    data = replace(given.data, x=stretch * given.data.x, encoder="stand-in")
    federation = replace(given, data=data)
    model = Split(nn.Identity(), nn.Linear(INPUTS, CLASSES), INPUTS)
    ours = start(golden, model, federation)
    text = F.normalize(tensor(golden.seed + 2, CLASSES, INPUTS), dim=1)
    ours.server = ours.server.replace(text=text)
    return ours
