"""What of an image can be read from the prototypes that FedPCL's clients send?

The attacker is granted more than a server has: the frozen encoder, the client's private projection,
and images of the same kind (the test part). From these it learns to paint: it fits a ridge
regression from projected features to pixels and applies it to what was sent. This needs the extra
`encoders`. Usage: python reconstruction.py [PICTURE.png]
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import fedloom
from fedloom import federate
from fedloom.core.rng import torch_rng
from fedloom.data.catalogue import Source, load
from fedloom.encoders import image
from fedloom.engine.checkpoint import Store
from fedloom.methods._bases import Perturbed

ENCODER, CLIENT = "vit-mini", 0
torch.set_num_threads(1)
data = load("digits4", Source(limit_train=20))
world = federate(data, "domains", clients=4, validation=0.0)
features = world.encode(image(ENCODER))
with tempfile.TemporaryDirectory() as folder:
    run = fedloom.run(
        "fedpcl",
        features,
        model="projection",
        rounds=20,
        eval_every=20,
        checkpoint_every=20,
        out=folder,
    )
    store = Store(Path(folder) / "checkpoint")
    store.load()
    state = store.get(CLIENT)
weight, prototypes = state.tree("model")["body.1.weight"], state.tensor("prototypes")


def parts(split: str) -> tuple[Tensor, Tensor, Tensor]:
    """The client's images (from 0 to 1), what its network makes of them, and their classes."""
    x, y = world.samples(CLIENT, split)
    return x / 255, F.normalize(F.relu(features.samples(CLIENT, split)[0] @ weight.T), dim=1), y


pixels, z, y = parts("train")
known, known_z, _ = parts("test")
a = F.pad(known_z, (0, 1), value=1.0)
painter = torch.linalg.solve(a.T @ a + 0.1 * torch.eye(a.shape[1]), a.T @ known.flatten(1))


def painted(sent: Tensor) -> Tensor:
    """Pictures from vectors in the space of prototypes."""
    return (F.pad(sent, (0, 1), value=1.0) @ painter).view(len(sent), *pixels.shape[1:]).clamp(0, 1)


def likeness(a: Tensor, b: Tensor) -> float:
    """The mean correlation of pictures, pixel by pixel."""
    a, b = (t.flatten(1) - t.flatten(1).mean(1, keepdim=True) for t in (a, b))
    return float(F.cosine_similarity(a, b).mean())


class Seeded:
    """As much of a client as noise needs."""

    def rng(self, purpose: str) -> torch.Generator:
        return torch_rng(0, purpose)


def noisy(**settings: object) -> Tensor:
    """The prototypes as they would be sent with these settings."""
    return Perturbed(**settings).perturbed(prototypes, Seeded())  # type: ignore[arg-type]


first = torch.stack([(y == c).nonzero()[0, 0] for c in range(10)])  # an image of every class
means = torch.stack([pixels[y == c].mean(0) for c in range(10)])
rows = {
    "an image of each class": pixels[first],
    "the mean of the client's images": means,
    "read from that image's own features": painted(z[first]),
    "read from the prototype": painted(prototypes),
    "read from the prototype, Gaussian noise 0.05": painted(noisy(perturb="gaussian")),
    "read from the prototype, Laplace noise 0.05": painted(noisy(perturb="laplace")),
    "read from the prototype, Gaussian mechanism, spread 1": painted(
        noisy(perturb="dp", spread=1.0)
    ),
}
print(
    f"client {CLIENT} ({world.clients[CLIENT].domain}), {len(y)} images, "
    f"accuracy {100 * run.clients[CLIENT]:.0f} %"
)
print("| picture | correlation with the image | with the mean of the images |\n|---|---:|---:|")
for name, row in rows.items():
    print(f"| {name} | {likeness(row, pixels[first]):.2f} | {likeness(row, means):.2f} |")
shown = torch.cat([torch.cat(list(row), dim=2) for row in rows.values()], dim=1)
picture = Image.fromarray((shown * 255).round().byte().permute(1, 2, 0).numpy())
picture = picture.resize((2 * picture.width, 2 * picture.height), Image.Resampling.NEAREST)
out = sys.argv[1] if len(sys.argv) > 1 else "reconstruction.png"
picture.save(out, optimize=True)
print(out)
