"""Zero-shot: a vision-language model's own classifier, nothing trained.

Radford et al., "Learning transferable visual models from natural language supervision", ICML 2021.

Travels: the text rows down, once; nothing up. Kept by the client: the text rows.
Symbols: t_c -> rows of `text`, s -> `scale`; logits are s v . t_c. `prompts` chooses the templates
that are averaged.
Deviations: none.
"""

from __future__ import annotations

from ..core.local import Local, Predictor, Worker
from ..core.lookup import method
from ..core.method import Update
from ..core.payload import Payload
from ..parts.heads import TextHead
from ._textual import Textual, read


@method("zeroshot")
class ZeroShot(Textual):
    """The text rows as they are."""

    traits = Textual.traits.but(personalised=False, trains=False)

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        return Update(Payload(), read(down, state))

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load()
        kept = read(down, state)
        return local.predictor(head=TextHead(kept.tensor("text"), kept.number("scale")))

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        worker.load()
        return worker.predictor(head=TextHead(server.tensor("text"), server.number("scale")))
