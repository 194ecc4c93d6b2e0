"""Compressed uploads: clients send short forms of their updates, and remember what was left out.

`+topk`: Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018. `+quantise`:
Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and encoding", NIPS
2017, with the error feedback of Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019.

Travels: down as the method; up `packed` in place of the model's weights, beside BatchNorm's
statistics as they are. Kept by the client: `left_out`, as long as all weights together.
Symbols: k / d -> `top_share`, bits of a level -> `level_bits`, memory m_t -> `left_out`.
The update, with what was left out before, is one long vector. `+topk` sends its largest numbers
with their places (4 bytes each), `+quantise` levels of `level_bits` bits, with random rounding and
one scale for 512 numbers. With `top_share=1`, `+topk` is the method itself to 1e-6.
Deviations: memories are of whole rounds, not of steps. QSGD's scale is a Euclidean length; ours is
the largest number of a bucket, as in that paper's experiments. Codes are not compressed further.
The plug-in comes last in a name: what the other plug-ins see is unpacked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ...core.claims import PACKED, Claim, Claims
from ...core.local import Local
from ...core.lookup import base, plugin
from ...core.method import Traits, Update, Uploads
from ...core.payload import Payload
from ...core.settings import Ratio, setting
from ...core.tree import Tree
from ...parts.compression import from_largest, from_levels, largest, levels
from ...parts.updates import update, weights, with_update
from .._bases import OnModels


@base
class Compressing(OnModels):
    """Uploads in a short form, with error feedback."""

    purpose = "short"
    private = True
    feedback: bool = setting(True, "Whether clients remember what was left out and add it later.")

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        done = super().client(down, state, local)
        moved = update(type(self), down, done.upload)
        vector = torch.cat([moved[name].flatten() for name in sorted(moved)])
        if "left_out" in state:
            vector = vector + state.tensor("left_out")
        form = self.pack(vector, local.rng("compress"))
        kept = done.state
        if self.feedback:
            kept = kept.replace(left_out=vector - self.unpack(form, len(vector)))
        others = {name: value for name, value in done.upload.items() if name not in moved}
        return replace(done, upload=Payload(others, packed=Payload(form)), state=kept)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        shapes = weights(type(self), Payload(model=server.tree("model")))
        names = sorted(shapes)
        lengths = [shapes[name].numel() for name in names]

        def unpacked() -> Uploads:
            for k, up in uploads:
                vector = self.unpack(dict(up.tree("packed")), sum(lengths))
                moved = Tree(zip(names, vector.split(lengths), strict=True))
                moved = Tree((name, part.view_as(shapes[name])) for name, part in moved.items())
                others = Payload({n: v for n, v in up.items() if not n.startswith("packed/")})
                yield k, with_update(type(self), server, others, moved)

        return super().aggregate(server, unpacked())

    def pack(self, vector: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        """The short form of a vector."""
        raise NotImplementedError

    def unpack(self, form: dict[str, Tensor], length: int) -> Tensor:
        """The vector of this length that the short form stands for."""
        raise NotImplementedError


@plugin("topk")
class TopK(Compressing):
    """The largest numbers of an update."""

    traits = Traits(neutral=({"top_share": 1.0}, "METHOD"), sums=False)
    claims = Claims(
        {
            "packed/values": PACKED,
            "packed/places": Claim("places in a model", 0, 2**31, whole=True, distinct=True),
        }
    )
    top_share: Ratio = setting(0.01, "Share of the numbers that are sent.", symbol="k / d")

    def pack(self, vector: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        return largest(vector, self.top_share)

    def unpack(self, form: dict[str, Tensor], length: int) -> Tensor:
        return from_largest(form, length)


@plugin("quantise")
class Quantise(Compressing):
    """Numbers of few bits."""

    traits = Traits(alone=None, sums=False)  # a single client's update is rounded too
    claims = Claims(
        {
            "packed/levels": Claim("levels, several to a byte", 0, 255, whole=True),
            "packed/scales": PACKED,
        }
    )
    level_bits: Literal[2, 4, 8] = setting(8, "Number of bits of each number that is sent.")

    def pack(self, vector: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        return levels(vector, self.level_bits, rng)

    def unpack(self, form: dict[str, Tensor], length: int) -> Tensor:
        return from_levels(form, length, self.level_bits)
