"""Prompts: templates, ensembles, files of class descriptions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.encoders import TextEncoder
from fedloom.encoders.hash import Hashed
from fedloom.encoders.texts import ENSEMBLE
from fedloom.parts.prompts import embedded, sentences, text_head
from fedloom.testing import small_world

READER = TextEncoder("words", 16, Hashed(16), "{}")
NAMES = ["hard-leaved_pocket_orchid", "rose"]


def rows(prompts: str | Sequence[str], data: str = "things") -> Tensor:
    return embedded(READER, sentences(NAMES, prompts, data, "{}"))


def test_each_data_set_has_its_template() -> None:
    assert sentences(["rose"], "auto", "flowers102", "{}") == [
        ["a photo of a rose, a type of flower."]
    ]
    assert sentences(["rose"], "auto", "/any/where/dtd", "{}") == [["rose texture."]]
    assert sentences(NAMES, "auto", "things", "{}") == [["hard-leaved pocket orchid"], ["rose"]]
    assert len(sentences(["rose"], "ensemble", "dtd", "{}")[0]) == 1 + len(ENSEMBLE) == 8


def test_templates_in_any_order_and_number_give_the_same_row() -> None:
    one, two = "a photo of a {}.", "a sketch of the {}."
    assert torch.allclose(rows([one, two]), rows([two, one]))
    assert torch.equal(rows([one, two, one]).norm(dim=1).round(decimals=5), torch.ones(2))
    assert torch.equal(rows([one, one]), rows(one))


def test_each_vector_is_scaled_before_and_after_the_mean() -> None:
    lengths = TextEncoder(
        "lengths", 2, lambda t: torch.tensor([[9.0, 0.0] if "long" in s else [0.0, 1.0] for s in t])
    )
    found = embedded(lengths, [["long rose", "rose"]])
    assert found[0].tolist() == pytest.approx([0.5**0.5, 0.5**0.5])


def test_descriptions_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "told.json"
    file.write_text(
        json.dumps(
            {"Rose": ["It has thorns.", "It smells."], "hard-leaved pocket orchid": ["Small."]}
        )
    )
    said = sentences(NAMES, str(file), "flowers102", "{}")
    assert said[1] == ["a photo of a rose, a type of flower.", "It has thorns.", "It smells."]
    file.write_text(json.dumps({"rose": ["It has thorns."]}))
    with pytest.raises(FedloomError, match="hard-leaved_pocket_orchid"):
        sentences(NAMES, str(file), "flowers102", "{}")
    file.write_text(json.dumps({"rose": [], "hard-leaved pocket orchid": ["Small."]}))
    with pytest.raises(FedloomError, match="at least one sentence"):
        sentences(NAMES, str(file), "flowers102", "{}")
    with pytest.raises(FedloomError, match="no file of class descriptions"):
        sentences(NAMES, str(tmp_path / "none.json"), "flowers102", "{}")


def test_nonsense_is_named() -> None:
    with pytest.raises(FedloomError, match="auto, ensemble"):
        sentences(NAMES, "a photo", "dtd", "{}")
    with pytest.raises(FedloomError, match="has no"):
        sentences(NAMES, ["a photo of a {}", "a photo"], "dtd", "{}")


def test_a_federation_without_an_encoder_is_told_what_to_do() -> None:
    zero = make("zeroshot")
    worker = ClientWorker(
        zero,
        small_world.federation(),
        small_world.network(),
        small_world.place(zero).training,
        seed=0,
    )
    with pytest.raises(FedloomError, match=r"zeroshot .* --encoder lite-clip"):
        zero.init(worker)


def test_a_text_encoder_of_another_width_is_refused_and_hashes_fit_any() -> None:
    worker = small_world.place(make("fedpact"))
    with pytest.raises(
        FedloomError, match="hash gives 512 numbers, the image features of checks have 64"
    ):
        text_head(worker, "hash:512", "auto")
    found, scale = text_head(worker, "hash", "auto")
    assert found.shape == (4, 64) and scale == 100.0


def test_an_encoder_without_a_text_side_is_named() -> None:
    worker = small_world.place(make("fedpact"))
    data = replace(worker.federation.data, encoder="vit-mini")
    worker.federation = replace(worker.federation, data=data)
    with pytest.raises(FedloomError, match="dual encoder 'vit-mini'"):
        text_head(worker, "encoder", "auto")


def test_a_folder_has_a_file_for_every_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"rose": ["It has thorns."], "hard-leaved pocket orchid": ["Small."]}
    folder = tmp_path / "gpt3"
    folder.mkdir()
    (folder / "CuPL_prompts_Flowers-102.json").write_text(json.dumps(told))
    (folder / "dtd.json").write_text("{}")
    by_class = sentences(NAMES, str(folder), "flowers102", "{}")
    assert [lines[1:] for lines in by_class] == [["Small."], ["It has thorns."]]
    assert [len(lines) for lines in by_class] == [2, 2]  # the template comes first
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))
    assert sentences(NAMES, "gpt3", "flowers102", "{}") == by_class
    with pytest.raises(
        FedloomError, match=r"no class descriptions of pets \(pets.json\); its files"
    ):
        sentences(NAMES, "gpt3", "pets", "{}")
    with pytest.raises(FedloomError, match=r"or a folder of such files .*, not 'gpt4'"):
        sentences(NAMES, "gpt4", "flowers102", "{}")
