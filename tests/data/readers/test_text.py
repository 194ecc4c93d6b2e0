"""Words, word lists and token rows."""

from __future__ import annotations

import random

import pytest
import torch

from fedloom.core.errors import FedloomError
from fedloom.data.readers.text import HashVocabulary, Vocabulary, encode_texts, tokenise

TEXTS = ["The cat sat.", "the DOG sat; the end", "bird"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Oil rose 3.5% to $46!", ["oil", "rose", "3", "5", "to", "46"]),
        ("It didn't, 'twas snake_case\\nnet", ["it", "didn't", "twas", "snake", "case", "nnet"]),
        ("Ärger im CAFÉ, Москва 東京", ["ärger", "im", "café", "москва", "東京"]),
        ("cafe\u0301 don’t", ["café", "don't"]),
        ("", []),
        (" .,;#\t\n", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert tokenise(text) == words


def test_words_are_numbered_by_frequency_then_alphabet() -> None:
    made = Vocabulary.build(TEXTS)
    assert made.words == ("the", "sat", "bird", "cat", "dog", "end")
    assert len(made) == 8
    shuffled = TEXTS.copy()
    random.Random(1).shuffle(shuffled)
    assert Vocabulary.build(shuffled).words == made.words


def test_word_lists_can_be_cut() -> None:
    assert Vocabulary.build(TEXTS, most=3).words == ("the", "sat", "bird")
    assert Vocabulary.build(TEXTS, least=2).words == ("the", "sat")
    assert len(Vocabulary.build([])) == 2
    with pytest.raises(FedloomError, match="at least 1 word"):
        Vocabulary.build(TEXTS, most=0)
    with pytest.raises(FedloomError, match="twice"):
        Vocabulary(["a", "a"])


def test_rows_are_cut_and_padded_at_the_end() -> None:
    rows = Vocabulary.build(TEXTS).encode(["The zebra sat", "", "the end the end the"], length=4)
    assert rows.dtype == torch.int64
    assert rows.tolist() == [[2, 1, 3, 0], [0, 0, 0, 0], [2, 7, 2, 7]]
    assert Vocabulary.build(TEXTS).encode(["x"]).shape == (1, 200)
    assert Vocabulary.build(TEXTS).encode([]).shape == (0, 200)
    with pytest.raises(FedloomError, match="at least 1 token"):
        Vocabulary.build(TEXTS).encode(["x"], length=0)


def test_hashed_words_need_no_list() -> None:
    one, other = HashVocabulary(1000), HashVocabulary(1000)
    texts = [f"word{i}" for i in range(3000)]
    rows = one.encode(texts, length=2)
    assert torch.equal(rows, other.encode(texts, length=2))
    assert len(one) == 1000
    assert int(rows[:, 0].min()) >= 2 and int(rows[:, 0].max()) < 1000
    assert len(rows[:, 0].unique()) > 900  # well spread
    assert int(rows[:, 1].max()) == 0
    # Fixed for all time and every machine: clients rely on it.
    assert HashVocabulary(2**15).encode(["the cat"], length=3).tolist() == [[5354, 6323, 0]]
    with pytest.raises(FedloomError, match="at least 3, got 2"):
        HashVocabulary(2)


def test_only_training_texts_make_the_list() -> None:
    test = torch.tensor([False, True, False])
    rows, size, words = encode_texts(TEXTS, test, length=5, vocabulary=None, hashed=False)
    assert size == 6 and words == ("bird", "cat", "sat", "the")
    assert rows[1].tolist() == [5, 1, 4, 5, 1]
    assert encode_texts(TEXTS, test, length=5, vocabulary=4, hashed=False)[1] == 4
    assert encode_texts(TEXTS, test, length=5, vocabulary=None, hashed=True)[1] == 2**15
    assert encode_texts(TEXTS, test, length=5, vocabulary=64, hashed=True)[1] == 64
    with pytest.raises(FedloomError, match="at least 3"):
        encode_texts(TEXTS, test, length=5, vocabulary=2, hashed=False)
