"""Your own network: anything whose last layer is a Linear can be split into body and head.

If you give a function that builds the network, its first weights depend on the run's seed; a
network that exists already is used as it is. Logits are `head(body(x))`: a network that has a body
and a head of its own need not be split, but anything else its `forward` does is left out.
"""

from torch import nn

import fedloom
from fedloom.models import split


def network() -> nn.Module:
    """Two convolutions and a head."""
    return split(
        nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 8 * 8, 10),
        )
    )


for method in ("fedavg", "fedbn"):
    run = fedloom.run(method, "digits4", model=network, clients=8, rounds=3)
    print(f"{method}: {100 * run.summary['personal']['accuracy_mean']['last']:.1f} %")
