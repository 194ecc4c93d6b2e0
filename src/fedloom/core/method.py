"""`Method`: the contract between an algorithm and everything that runs it.

A method is a pure function of what arrives, what the client remembers and what data it has. It
keeps nothing on itself: a client's memory is `state`, the server's memory is `server`, and both are
payloads (names -> tensors and scalars). Any hook may be called twice with the same arguments.

`core/lookup.py` registers methods and finds them by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from .claims import Claim, Claims
from .errors import FedloomError
from .local import Batch, Fit, Local, Predictor, Worker
from .payload import Payload
from .roles import Roles

Stage = Literal["before", "after"]
# What a federation may suffer from, and a method may be made for: labels that are unevenly dealt
# out, domains that look different, few samples each, clients that fall behind; or none of these,
# clients that are alike.
Trouble = Literal["labels", "domains", "few", "worst", "alike"]
# What a method cannot do without: layers of BatchNorm, a body with weights, images, validation
# samples, frozen features with the network `projection`, or the frozen ViT of the network `vpt`.
Need = Literal["batchnorm", "body", "images", "validation", "projection", "prompts"]
# What a plug-in is put round a method for: another local training, an optimiser on the server,
# other weights of clients, a mean that liars cannot move far, short uploads, privacy, or attacks
# to try the others.
Purpose = Literal["training", "server", "weights", "robust", "short", "privacy", "attack", "other"]
# What a plug-in can be put round: whatever shares weights, what averages, what averages models and
# not changes of them, what has one local training per round, by the cross-entropy.
Around = Literal["sharing", "averaging", "models", "plain"]
# (client, upload), in a fixed order; each pair can be looked at once.
Uploads = Iterable[tuple[int, Payload]]


@dataclass(frozen=True)
class Update:
    """What a client hands back after its local work."""

    # This goes to the server.
    upload: Payload
    # This stays with the client until its next round.
    state: Payload = field(default_factory=Payload)
    # This is what the client holds right after training, in the form of a download.
    trained: Payload = field(default_factory=Payload)


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What is true of a method whatever its settings; engine, checks and report read it.

    A method that inherits states what differs: `traits = FedAvg.traits.but(personalised=True)`.
    """

    # Which personal model the paper reports: the one before or the one after local training.
    stage: Stage = "before"
    # False: every client uses the common model.
    personalised: bool = True
    # Whether the server averages models with the weights that `weight` gives, so that a plug-in can
    # replace them.
    averages: bool = False
    # If it averages: whether it uses the models in their mean only, so that the mean of some of
    # them can stand in for each; not if it looks into single ones.
    sums: bool = True
    # What a client's upload counts by in an average: its sample count, or all clients count alike.
    weighting: Literal["size", "alike"] = "size"
    # Whether clients train at all; settings of local training are of no use to those that do not.
    trains: bool = True
    # Where the paper's local training differs from the defaults of `Training`.
    training: Mapping[str, Any] = field(default_factory=dict)
    # Named sets of settings, the method's own or of training: {"official": {"mu": 0.1}}. The
    # defaults are the preset `paper`.
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # ({"mu": 0}, "fedavg"): with mu=0 every client's (personal) model is FedAvg's. A plug-in names
    # "METHOD", the method that it is put round.
    neutral: tuple[Mapping[str, Any], str] | None = None
    # Settings that, with the neutral ones, turn a single client into plain training. None: there
    # are no such settings.
    alone: Mapping[str, Any] | None = field(default_factory=dict)
    # What samples must be: anything the model takes, or features of a dual encoder.
    world: Literal["any", "dual"] = "any"
    # Whose statistics standardise frozen features: all clients', or the client's own where nothing
    # travels. `raw` is for methods that want features as they are, because they compare them with
    # texts or send samples when they first appear.
    features: Literal["common", "own", "raw"] = "common"
    # Whether clients may have networks that differ: not where weights of the body travel (`same`);
    # where features or heads do, all networks need equally many features (`width`).
    networks: Literal["same", "width", "any"] = "same"
    # The server's tensors with an entry for each client; a client that joins after training gets an
    # entry of zeros. None: the server has nothing of use for a client that has sent nothing.
    by_client: tuple[str, ...] | None = ("sizes",)
    # What its paper offers it for; `fedloom advise` looks for methods by it. Empty: for nothing in
    # particular, so that nobody is sent there.
    helps: tuple[Trouble, ...] = ()
    # The adapter that a run gets which names none, for methods that work on what it adds.
    adapter: str | None = None
    # Without these it fails, or is no more than the method that it builds on.
    needs: tuple[Need, ...] = ()
    # Whether what is predicted for a sample depends on the other samples that are asked about with
    # it. Such a method cannot be exported; all others can.
    transductive: bool = False

    def but(self, **changes: Any) -> Traits:
        """The same traits with these changes."""
        return replace(self, **changes)


class Method:
    """One algorithm. A subclass registers with `@method(name)`; its fields are hyper-parameters.

    The hooks below are the whole contract; `methods/fedavg.py` fills them in. A method that has
    more to say also implements `FindsGroups`, `HasFigures` or `PromisesPrivacy`.
    """

    name: ClassVar[str] = ""
    traits: ClassVar[Traits] = Traits()
    # What clients upload means, and which values it can have; the claims of bases add up.
    claims: ClassVar[Mapping[str, Claim]] = Claims({})
    # The file that a user's own method came from.
    origin: ClassVar[str | None] = None
    # For METHOD+PLUGIN: the class of METHOD, and PLUGIN.
    plugged: ClassVar[tuple[type[Method], str] | None] = None

    def extend(self, model: Any, classes: Sequence[str]) -> nn.Module:
        """The network with what the method adds to it (a second head, a projection); here nothing.

        The network keeps its `body` and `head`. New modules become attributes of it, and their
        first weights depend on the seed.
        """
        extended: nn.Module = model
        return extended

    def roles(self, model: nn.Module) -> Roles:
        """What happens to each tensor of the model; by default all are shared."""
        return Roles(model)

    def init(self, worker: Worker) -> Payload:
        """The server before the first round."""
        raise NotImplementedError

    def hello(self, local: Local) -> Payload:
        """What a client sends when it first appears: by default its size."""
        return Payload(size=local.size)

    def join(self, server: Payload, hellos: Mapping[int, Payload]) -> Payload:
        """The server with newcomers: by default it notes their sizes in the vector `sizes`."""
        sizes = server.tensor("sizes").clone()
        for k, hello in hellos.items():
            sizes[k] = int(hello.number("size"))
        return server.replace(sizes=sizes)

    def download(self, server: Payload, k: int) -> Payload:
        """What the server sends to client `k`."""
        raise NotImplementedError

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        """The local work; the only place that sees data.

        It is pure: it changes nothing but the resident model and what it returns. An executor may
        therefore call it twice in a round, and may end the first call where `local.fit` would
        train.
        """
        raise NotImplementedError

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        """Local training, which `client` calls; by default it minimises the cross-entropy."""
        return local.fit()

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        """What the server learns from this round's uploads."""
        raise NotImplementedError

    def weight(self, server: Payload, k: int) -> float:
        """How much client k's upload counts in an average; by default the trait `weighting`
        decides.
        """
        if self.traits.weighting == "alike":
            return 1.0
        return float(server.tensor("sizes")[k])

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        """What a client predicts with, given a download (or `trained`) and its state.

        It may train first; nothing of that stays.
        """
        raise NotImplementedError

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        """The one model for everybody, if the method has one."""
        return None

    def params(self) -> dict[str, Any]:
        """The hyper-parameters as plain values."""
        values: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return values


@runtime_checkable
class FindsGroups(Protocol):
    """A method that sorts clients into groups."""

    def groups(self, server: Payload) -> Sequence[int]:
        """The group of each client (negative: none).

        Evaluation compares the groups with the clients' domains, which no method knows.
        """
        ...


@runtime_checkable
class HasFigures(Protocol):
    """A method that measures something of its own about the server after a round."""

    def figures(self, server: Payload, worker: Worker) -> Mapping[str, float]:
        """Numbers by name; they go into that round's line of metrics."""
        ...


@dataclass(frozen=True)
class Promise:
    """What a method promises to hide by Gaussian mechanisms, see docs/privacy.md.

    One mechanism hides the prototype of a class (`class`), what a whole client adds to a round
    (`round`), or what one sample adds to a step of a client's training (`step`).
    """

    multiplier: float  # the noise over the sensitivity
    delta: float
    each: Literal["class", "round", "step"] = "class"


@runtime_checkable
class PromisesPrivacy(Protocol):
    """A method whose uploads, or whose models, may be differentially private."""

    def promise(self) -> Promise | None:
        """What is promised; None: with these settings there is no such promise."""
        ...


class Plugin(Method):
    """Something that can be put round any method whose clients share weights: `fedavg+dfdc`.

    A plug-in is a mixin, registered with `@plugin(name)`: its hooks come before the method's own
    and reach them with `super()`. `extend` and `roles` change the network, `watched` and `terms`
    add to the loss, `client` and `download` add to what travels, `init`, `join` and `aggregate` add
    to what the server knows, and `weight` (see `Reweighting` in methods/_bases.py) changes how much
    a client counts. Its fields are settings of the whole, beside the method's. Its first sentence
    stands in lists, under its `purpose`.
    """

    purpose: ClassVar[Purpose] = "other"
    around: ClassVar[Around] = "sharing"  # told in lists; `refuses` decides

    @classmethod
    def refuses(cls, base: type[Method]) -> str | None:
        """Why the plug-in cannot be put round `base`; None: it can."""
        return None

    def init(self, worker: Worker) -> Payload:
        if not worker.roles.names("shared"):
            raise FedloomError(
                f"{self.name}: its clients share no weights, so there is nothing to plug in to."
            )
        return super().init(worker)

    def watched(self, model: Any) -> Sequence[nn.Module]:
        """Modules whose inputs and outputs `terms` needs; by default none."""
        return ()

    def terms(self, batch: Batch, model: Any) -> dict[str, Tensor]:
        """What is added to the loss of every `local.fit`, by name; `batch.seen` is of `watched`."""
        return {}

    @property
    def adds(self) -> bool:
        """Whether some plug-in adds terms, so that no loss is only what `local.fit` was given."""
        return type(self).terms is not Plugin.terms


def sizes(worker: Worker) -> Tensor:
    """The server's record of client sizes before any client has said hello."""
    return torch.zeros(worker.clients, dtype=torch.int64)
