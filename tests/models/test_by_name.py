"""Networks of other libraries and of a user's own file, by their names."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedloom
from fedloom import deploy
from fedloom.core.errors import FedloomError
from fedloom.core.user_files import allow
from fedloom.data.transforms import to_rgb
from fedloom.models import Split, Task, build, options, spelling
from fedloom.models.minilm import pieces_of
from tests.models import libraries

torch.set_num_threads(1)

IMAGES = Task((3, 20, 20), 4, mean=(0.5,) * 3, std=(0.25,) * 3)


def trained(model: nn.Module) -> list[str]:
    return [name for name, p in model.named_parameters() if p.requires_grad]


# -- timm -----------------------------------------------------------------------------------------


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries.inject(monkeypatch, libraries.timm())


@pytest.mark.usefixtures("timm")
def test_timm_body_and_head() -> None:
    model: Any = build("timm:tiny", IMAGES)
    net = model.body.network
    assert isinstance(model, Split) and isinstance(net.fc, nn.Identity)
    assert (model.head.in_features, model.head.out_features, model.width) == (8, 4, 8)
    assert (net.conv_stem.weight == 0.5).all(), "its weights"
    assert model(torch.randn(2, 3, 20, 20)).shape == (2, 4)
    assert net.sizes[-1] == (2, 3, 32, 32), "images have the size of its config"
    seen = model.body.preprocess
    assert (seen.mean, seen.std) == ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    assert (seen.resample, seen.edge) == ("bicubic", 40)
    assert len(trained(model)) == 6


@pytest.mark.usefixtures("timm")
def test_timm_sees_what_its_config_says() -> None:
    """Samples are normalised here; the network gets its own normalisation of the same pixels."""
    model: Any = build("timm:tiny", IMAGES, size=20).eval()
    pixels = torch.rand(2, 3, 20, 20)
    normal = [torch.tensor(v)[:, None, None] for v in ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))]
    with torch.no_grad():
        expected = model.body.network((pixels - normal[0]) / normal[1])
        features = model.body((pixels - 0.5) / 0.25)
    torch.testing.assert_close(features, expected)
    grey: Any = build("timm:tiny", Task((1, 20, 20), 4), size=20).eval()
    grey.body.network.load_state_dict(model.body.network.state_dict())
    one = torch.rand(2, 1, 20, 20)
    with torch.no_grad():
        expected = model.body.network((to_rgb(one) - normal[0]) / normal[1])
        torch.testing.assert_close(grey.body((one - 0.5) / 0.5), expected)


@pytest.mark.usefixtures("timm")
def test_timm_frozen_and_own_weights(tmp_path: Path) -> None:
    frozen = build("timm:tiny", IMAGES, frozen=True)
    assert trained(frozen) == ["head.weight", "head.bias"]
    net = libraries.TimmNet()
    torch.save(net.state_dict(), tmp_path / "tiny.pth")
    own: Any = build("timm:tiny", IMAGES, weights=str(tmp_path / "tiny.pth"))
    assert torch.equal(own.body.network.conv_stem.weight, net.conv_stem.weight)
    start: Any = build("timm:tiny", IMAGES, pretrained=False)
    assert not (start.body.network.conv_stem.weight == 0.5).any()
    with pytest.raises(FedloomError, match=r"timm makes no 'huge': Unknown model \(huge\)"):
        build("timm:huge", IMAGES)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_library_that_is_missing_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (library, f"{library}.models"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FedloomError, match=rf"{library}.* `pip install 'fedloom\[{library}\]'`"):
        build(f"{library}:any", IMAGES)


# -- torchvision ----------------------------------------------------------------------------------


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries.inject(monkeypatch, libraries.torchvision())


@pytest.mark.usefixtures("torchvision")
@pytest.mark.parametrize("name", ["resnet_like", "efficientnet_like", "vit_like"])
def test_torchvision_body_and_head(name: str) -> None:
    model: Any = build(f"torchvision:{name}", IMAGES)
    assert (model.head.in_features, model.head.out_features, model.width) == (8, 4, 8)
    assert not [m for m in model.body.modules() if isinstance(m, nn.Linear)]
    model.train()
    assert model(torch.randn(2, 3, 20, 20)).shape == (2, 4), "in training too"
    seen = model.body.preprocess
    assert (seen.size, seen.edge, seen.resample) == (32, 40, "bilinear")
    assert (next(model.body.parameters()) == 0.5).all(), "its weights"
    frozen = build(f"torchvision:{name}", IMAGES, frozen=True)
    assert trained(frozen) == ["head.weight", "head.bias"]


@pytest.mark.usefixtures("torchvision")
def test_torchvision_own_weights_and_what_does_not_fit(tmp_path: Path) -> None:
    net = libraries.ViTLike()
    torch.save(net.state_dict(), tmp_path / "vit.pth")
    own: Any = build("torchvision:vit_like", IMAGES, weights=str(tmp_path / "vit.pth"))
    assert torch.equal(own.body.network.conv_proj.weight, net.conv_proj.weight)
    with pytest.raises(FedloomError, match="takes images of 32x32 pixels only"):
        build("torchvision:vit_like", IMAGES, size=64)
    with pytest.raises(FedloomError, match="no linear head"):
        build("torchvision:squeezenet_like", IMAGES)
    with pytest.raises(FedloomError, match=r"'resnet_lik'.*resnet_like"):
        build("torchvision:resnet_lik", IMAGES)


# -- transformers ---------------------------------------------------------------------------------

PREPROCESSOR = {
    "size": {"height": 16, "width": 16},
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.2, 0.3, 0.4],
    "resample": 2,
}


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ViT of seven classes, as `save_pretrained` leaves it."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=16,
        patch_size=8,
        num_labels=7,
    )
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return folder


def test_transformers_image_classifier(vit: Path) -> None:
    import transformers

    model: Any = build(f"hf:{vit}", IMAGES).eval()
    whole = transformers.ViTForImageClassification.from_pretrained(vit).eval()
    pixels = torch.rand(2, 3, 16, 16)
    normal = [torch.tensor(v)[:, None, None] for v in ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))]
    with torch.no_grad():
        features = model.body((pixels - 0.5) / 0.25)
        logits = whole(pixel_values=(pixels - normal[0]) / normal[1]).logits
        torch.testing.assert_close(whole.classifier(features), logits)
    assert model(torch.randn(2, 3, 20, 20)).shape == (2, 4)
    assert model.head.in_features == model.width == 16
    assert trained(build(f"hf:{vit}", IMAGES, frozen=True)) == ["head.weight", "head.bias"]
    larger: Any = build(f"hf:{vit}", IMAGES, size=24)
    assert larger(torch.randn(2, 3, 20, 20)).shape == (2, 4), "position embeddings are stretched"


def test_transformers_bare_weights_and_convolutions(tmp_path: Path) -> None:
    """Weights without a classifier will do; a classifier of convolutions takes any size."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    )
    transformers.ResNetModel(config).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    model = build(f"hf:{tmp_path}", IMAGES, frozen=True, size=20)
    assert model(torch.randn(2, 3, 20, 20)).shape == (2, 4)
    assert trained(model) == ["head.weight", "head.bias"]


WORDS = ("alpha", "beta", "alphabet", "gamma")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "alpha", "##bet", "beta", "gam", "##ma"]
TEXTS = Task((6,), 3, vocabulary=6, words=WORDS)


@pytest.mark.parametrize("kind", ["Bert", "DistilBert"])
def test_transformers_text_classifiers(kind: str, tmp_path: Path) -> None:
    """The head is the last layer; what stands before it and is new is trained, also if frozen."""
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    tokenizer = transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt"))
    tokenizer.save_pretrained(tmp_path)
    sizes: dict[str, Any] = {"vocab_size": len(PIECES), "max_position_embeddings": 40}
    if kind == "DistilBert":
        sizes |= {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24}
    else:
        sizes |= {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        sizes |= {"intermediate_size": 24}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(tmp_path)
    model: Any = build(f"hf:{tmp_path}", TEXTS, frozen=True).eval()
    rows = torch.tensor([[4, 5, 2, 0, 0, 0], [1, 3, 0, 0, 0, 0]])  # alphabet gamma alpha; ? beta
    told = tokenizer(["alphabet gamma alpha", "unheard beta"], padding=True, return_tensors="pt")
    inner = model.body.model
    with torch.no_grad():
        wanted = inner(input_ids=told["input_ids"], attention_mask=told["attention_mask"]).logits
        torch.testing.assert_close(model.body(rows), wanted, atol=1e-6, rtol=1e-5)
    assert model(rows).shape == (2, 3)
    names = {"head.weight", "head.bias"}
    if kind == "DistilBert":
        names |= {f"body.model.pre_classifier.{part}" for part in ("weight", "bias")}
    assert set(trained(model)) == names
    again: Any = build("hf:gone", TEXTS, **model.again)
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(rows), model(rows))
    with pytest.raises(FedloomError, match="hashed=true leaves none"):
        build(f"hf:{tmp_path}", Task((6,), 3, vocabulary=6))


def test_words_are_cut_as_inside_a_text() -> None:
    """This kind of tokeniser has a piece of its own for the space in front of a word."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    pieces = ["<unk>", "<pad>", "a", "b", "\u0120", "ab", "\u0120ab"]
    merges = [("a", "b"), ("\u0120", "ab")]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(numbers, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    assert tokenizer("b ab aba")["input_ids"] == [3, 6, 6, 2]
    assert pieces_of(["ab", "aba"], tokenizer).tolist() == [[0, 0], [0, 0], [6, 0], [6, 2]]


def test_what_transformers_cannot_give_is_said(vit: Path, tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match=r"no tokeniser|gives no classifier of texts"):
        build(f"hf:{vit}", TEXTS)
    with pytest.raises(FedloomError, match="no such folder"):
        build(f"hf:{tmp_path}/nowhere", IMAGES)
    with pytest.raises(FedloomError, match="needs something after the colon"):
        build("hf:", IMAGES)
    with pytest.raises(FedloomError, match=r"unknown model 'hff:'.*'hf:'"):
        build("hff:x", IMAGES)


# -- a file of one's own --------------------------------------------------------------------------

NETS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Flatten(), nn.Linear(1200, 6), nn.ReLU())
        self.out = nn.Linear(6, classes)

    def forward(self, x):
        return self.out(self.stem(x))

def plain():
    return Net(9)

def told(task):
    return Net(task.classes)

def wrong():
    return 3
"""


@pytest.fixture
def nets(tmp_path: Path) -> str:
    path = tmp_path / "nets.py"
    path.write_text(NETS)
    allow({"model": f"{path}:plain"})
    return str(path)


def test_a_network_of_ones_own(nets: str) -> None:
    for function in ("plain", "told"):
        model: Any = build(f"{nets}:{function}", IMAGES)
        assert (model.head.in_features, model.head.out_features) == (6, 4)
        assert isinstance(model.body.out, nn.Identity)
        assert model(torch.randn(2, 3, 20, 20)).shape == (2, 4)
    frozen = build(f"{nets}:plain", IMAGES, frozen=True)
    assert trained(frozen) == ["head.weight", "head.bias"]
    with pytest.raises(FedloomError, match="unknown submodule of Net 'fc'"):
        build(f"{nets}:plain", IMAGES, head="fc")
    with pytest.raises(FedloomError, match="gives a int, not a network"):
        build(f"{nets}:wrong", IMAGES)
    with pytest.raises(FedloomError, match=r"unknown function.*'plane'"):
        build(f"{nets}:plane", IMAGES)


def test_names_and_options() -> None:
    assert spelling("HF:Some/Path") == "hf:Some/Path"
    assert spelling("Torchvision:vit_b_16") == "torchvision:vit_b_16"
    assert spelling("CNN") == "cnn"
    assert set(options("timm:any")) == {"pretrained", "weights", "frozen", "size", "projection"}
    assert set(options("net.py:make")) == {"head", "frozen"}


# -- whole runs -----------------------------------------------------------------------------------


def same_predictions(folder: Path, exported: Path, trust: bool = False) -> None:
    """A run and what is exported of it say the same of the samples that they are shown."""
    served = deploy.trained(folder, trust=trust)
    module, _ = deploy.load(deploy.export(served, exported), trust=trust)
    rows = torch.arange(24)
    with torch.no_grad():
        told = module(served.raw.take(rows))
        expected = served.predict(served.worker.samples(rows))
    torch.testing.assert_close(told, expected, atol=1e-5, rtol=1e-5)


SMALL: dict[str, Any] = {
    "data": "digits4",
    "rounds": 2,
    "batch": 8,
    "steps": 2,
    "limit_train": 20,
    "limit_test": 10,
    "report": False,
}


def test_a_run_with_a_frozen_vit(vit: Path, tmp_path: Path) -> None:
    """From a name: run, resume, export and predict; only the head travels."""
    for executor in ("inplace", "pool"):
        run = fedloom.run(
            "fedavg",
            **SMALL,
            model=f"hf:{vit}",
            frozen=True,
            executor=executor,
            workers=2,
            out=tmp_path / executor,
        )
        each = run.summary["bytes"]["up"]["per_round"] / len(run.federation["clients"])
        assert 4 * 17 * 10 <= each < 4 * 17 * 10 + 600
    servers = [(tmp_path / e / "checkpoint").rglob("*.safetensors") for e in ("inplace", "pool")]
    mine, theirs = ([f.read_bytes() for f in sorted(files)] for files in servers)
    assert mine == theirs and mine
    assert f'model = "hf:{vit}"' in (tmp_path / "pool" / "config.toml").read_text()
    more = fedloom.resume(tmp_path / "pool", rounds=3)
    assert more.metrics[-1]["round"] == 3
    same_predictions(tmp_path / "pool", tmp_path / "exported")


def test_an_exported_vit_needs_its_folder_no_more(vit: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in vit.iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    fedloom.run("fedavg", **SMALL, model=f"hf:{moved}", out=tmp_path / "run")
    served = deploy.trained(tmp_path / "run")
    deploy.export(served, tmp_path / "exported")
    for file in moved.iterdir():
        file.unlink()
    module, _ = deploy.load(tmp_path / "exported")
    with torch.no_grad():
        scores = module(served.raw.take(torch.arange(8)))
    torch.testing.assert_close(
        scores, served.predict(served.worker.samples(torch.arange(8))), atol=1e-5, rtol=1e-5
    )


def test_a_run_with_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own_nets.py"
    path.write_text(NETS.replace("1200", "3072"))
    fedloom.run("fedavg", **SMALL, model=f"{path}:plain", executor="pool", workers=2,
                out=tmp_path / "run")  # fmt: skip
    same_predictions(tmp_path / "run", tmp_path / "exported", trust=True)


def test_a_folder_that_names_a_file_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "strange.py"
    path.write_text("raise SystemExit('executed')")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(f'format = 1\nmodel = "{path}:make"\n')
    with pytest.raises(FedloomError, match=r"strange\.py, whose code would be executed"):
        fedloom.resume(tmp_path / "run")


def test_a_network_without_body_and_head_is_split() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3072, 8), nn.ReLU(), nn.Linear(8, 10))
    run = fedloom.run("fedper", **SMALL, model=net)
    assert run.metrics[-1]["round"] == 2 and run.summary["common"] is None  # heads stay at home


def test_a_file_with_a_network_of_another_input_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(
        "from torch import nn\n\n\ndef make():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    )
    with pytest.raises(FedloomError, match=r"cannot take 2 samples of shape \(3, 32, 32\)"):
        fedloom.run("fedavg", model=f"{tmp_path / 'small.py'}:make", clients=4, rounds=1)
