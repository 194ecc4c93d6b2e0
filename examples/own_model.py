"""Your own network: anything whose last layer is a Linear can be split into body and head."""

from torch import nn

import fedloom
from fedloom.models import split

network = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Conv2d(8, 16, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(16 * 8 * 8, 10),
)
run = fedloom.run("fedper", "digits4", model=split(network), clients=8, rounds=3)
print(f"{100 * run.summary['personal']['accuracy_mean']['last']:.1f} % with a shared body and private heads")
