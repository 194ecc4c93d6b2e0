"""Your own tensors as a federation: here two factories whose sensors have different gains."""

import torch

from fedloom import Dataset, federate, run

generator = torch.Generator().manual_seed(0)
n = 800
domain = torch.arange(n) % 2
y = torch.randint(0, 3, (n,), generator=generator)
x = torch.eye(3)[y].repeat(1, 4) + 0.6 * torch.randn(n, 12, generator=generator)
x = x * (1 + 4 * domain[:, None])  # the second factory's sensors read five times as high

data = Dataset(
    name="factories",
    x=x,  # any tensor, one row per sample; images are uint8, N x channels x height x width
    y=y,
    domain=domain,
    test=torch.arange(n) // 2 % 4 == 0,
    classes=("good", "scratched", "bent"),
    domains=("north", "south"),
)
federation = federate(data, "domains", clients=4, seed=0)
print(federation.description)
for method in ("local", "fedavg", "fedper"):
    done = run(method, federation, model="mlp", hidden=[32], rounds=10)
    print(method, {d: round(v["last"], 3) for d, v in done.summary["domains"].items()})
