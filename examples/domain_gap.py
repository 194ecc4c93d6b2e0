"""How far apart are the domains of digits4? Train on one, test on each of them."""

import sys

import numpy as np
import torch

from fedloom import Federation
from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.lookup import make
from fedloom.data.catalogue import load
from fedloom.data.federation import Client
from fedloom.models import Task, build

data = load("digits4")
seeds = [int(s) for s in sys.argv[1:]] or [0, 1, 2]
torch.set_num_threads(1)


def rows(domain: int, test: bool) -> np.ndarray:
    return torch.nonzero((data.domain == domain) & (data.test == test)).flatten().numpy()


clients = tuple(
    Client(rows(d, False), np.arange(0), rows(d, True), name) for d, name in enumerate(data.domains)
)
federation = Federation(data, clients)
table = np.zeros((len(clients), len(clients)))
for seed in seeds:
    torch.manual_seed(seed)
    worker = ClientWorker(
        make("local"), federation, build("cnn", Task((3, 32, 32), 10)), Training(epochs=15), seed
    )
    for k in range(len(clients)):
        worker.load()
        ClientContext(worker, k, round=1).fit()
        for d in range(len(clients)):
            x, y = federation.samples(d, "test")
            table[k, d] += (
                float((worker.outputs(x).logits.argmax(1) == y).float().mean()) * 100 / len(seeds)
            )

print("| trained on \\ tested on |", " | ".join(data.domains), "|")
print("|---|" + "---:|" * len(clients))
for k, name in enumerate(data.domains):
    print(f"| {name} |", " | ".join(f"{v:.1f}" for v in table[k]), "|")
