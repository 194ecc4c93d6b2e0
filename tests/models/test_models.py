import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedloom.core.errors import FedloomError
from fedloom.models import MODELS, Split, Task, build, options, register, resnet, split

torch.set_num_threads(1)

NAMES = (
    "cnn",
    "fasttext",
    "linear",
    "mlp",
    "projection",
    "resnet10",
    "resnet18",
)  # one feature vector per sample
MAPS = ("unet",)  # one per pixel; see test_unet
FROZEN = ("vpt",)  # with a frozen ViT; see test_vpt
LOADED = ("minilm", "pretrained")  # see test_minilm, test_pretrained
PREFIXES = ("hf:", "py:", "timm:", "torchvision:")  # others' networks, see test_by_name.py
IMAGE = Task((3, 32, 32), 10)
VECTOR = Task((5000,), 2)
TEXT = Task((20,), 4, vocabulary=50)
TASKS = dict(zip(NAMES, (IMAGE, TEXT, VECTOR, VECTOR, VECTOR, IMAGE, IMAGE), strict=True))


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def batch(task: Task, size: int = 4) -> Tensor:
    if task.vocabulary is not None:
        return torch.randint(0, task.vocabulary, (size, *task.shape))
    return torch.randn(size, *task.shape)


def test_registry() -> None:
    assert MODELS.names() == tuple(sorted((*NAMES, *MAPS, *FROZEN, *LOADED, *PREFIXES)))
    assert len(NAMES) == len(TASKS) == 7
    assert options("cnn") == {"width": 32, "features": 512, "norm": False}
    assert options("resnet10") == {"width": 64, "norm": "batch"}
    assert options("resnet18") == {"width": 64, "stem": "imagenet", "norm": "batch"}
    assert options("mlp") == {"hidden": (1000, 500, 100)}
    assert options("linear") == {}
    assert options("fasttext") == {"features": 32, "ignore_padding": False}


@pytest.mark.parametrize(
    ("name", "task", "parameters", "width"),
    [
        ("cnn", Task((1, 28, 28), 10), 582_026, 512),
        ("resnet10", Task((3, 128, 128), 7), 4_901_703, 512),
        ("resnet18", Task((3, 224, 224), 10), 11_176_512 + 5130, 512),
        ("mlp", VECTOR, 5001 * 1000 + 1001 * 500 + 501 * 100 + 101 * 2, 100),
        ("linear", VECTOR, 5001 * 2, 5000),
        ("fasttext", Task((200,), 4, 98_635), 98_635 * 32 + 32 * 32 + 32 + 32 * 4 + 4, 32),
    ],
)
def test_parameters_and_width(name: str, task: Task, parameters: int, width: int) -> None:
    model = build(name, task)
    assert count(model) == parameters
    assert model.width == width
    assert isinstance(model.head, nn.Linear)
    assert (model.head.in_features, model.head.out_features) == (width, task.classes)
    assert count(model.body) + count(model.head) == parameters


@pytest.mark.parametrize("name", NAMES)
def test_forward_and_backward(name: str) -> None:
    torch.manual_seed(0)
    task = TASKS[name]
    model, x = build(name, task), batch(task)
    assert model.body(x).shape == (4, model.width)
    logits = model(x)
    assert logits.shape == (4, task.classes)
    functional.cross_entropy(logits, torch.tensor([0, 1, 0, 1])).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().sum() > 0, key
    model.eval()
    assert torch.equal(model(x), model.head(model.body(x)))


@pytest.mark.parametrize(
    ("shape", "flat"),
    [
        ((1, 28, 28), 1024),
        ((3, 32, 32), 1600),
        ((3, 64, 64), 10816),
        ((3, 16, 16), 64),
        ((1, 17, 40), 448),
    ],
)
def test_cnn_flat_size(shape: tuple[int, ...], flat: int) -> None:
    model = build("cnn", Task(shape, 10))
    (hidden,) = [layer for layer in model.body.modules() if isinstance(layer, nn.Linear)]
    assert (hidden.in_features, hidden.out_features) == (flat, 512)
    assert model(torch.randn(2, *shape)).shape == (2, 10)


def test_cnn_options() -> None:
    model = build("cnn", Task((1, 28, 28), 10), width=8, features=20, norm=True)
    kinds = [type(layer).__name__ for layer in model.body.children()]
    stage = ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"]
    assert kinds == [*stage, *stage, "Flatten", "Linear", "ReLU"]
    assert count(model) == (25 * 8 + 8) + 16 + (25 * 8 * 16 + 16) + 32 + (256 * 20 + 20) + 210
    assert model.width == 20
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in build("cnn", IMAGE).modules())


@pytest.mark.parametrize(
    ("name", "chosen", "side", "shape"),
    [
        ("resnet10", {}, 128, (512, 16, 16)),
        ("resnet10", {"width": 16}, 128, (128, 16, 16)),
        ("resnet18", {}, 224, (512, 7, 7)),
        ("resnet18", {"stem": "small"}, 32, (512, 4, 4)),
        ("resnet18", {"stem": "small", "width": 16}, 32, (128, 4, 4)),
    ],
)
def test_resnet_feature_map(
    name: str, chosen: dict[str, object], side: int, shape: tuple[int, ...]
) -> None:
    model = build(name, Task((3, side, side), 7), **chosen).eval()
    x = torch.randn(1, 3, side, side)
    with torch.no_grad():
        features = model.body.features(x)
        assert features.shape == (1, *shape)
        vector = model.body.pool(features)
        assert torch.allclose(vector, features.mean((2, 3)), atol=1e-5)
        assert torch.equal(vector, model.body(x))
    assert model.width == shape[0]


def test_resnet18_body_and_norms() -> None:
    body = build("resnet18", IMAGE).body
    assert count(body) == 11_176_512
    norms = {
        name: layer for name, layer in body.named_modules() if isinstance(layer, nn.BatchNorm2d)
    }
    assert len(norms) == 20
    assert [name for name in norms if "shortcut" in name] == [
        f"features.stage{s}.0.shortcut.1" for s in (2, 3, 4)
    ]
    assert all((layer.weight == 1).all() and (layer.bias == 0).all() for layer in norms.values())


def test_resnet_convolutions_are_he_initialised() -> None:
    torch.manual_seed(0)
    body = build("resnet18", IMAGE).body
    convolutions = [layer for layer in body.modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == 20
    for layer in convolutions:
        expected = (2 / (layer.out_channels * layer.kernel_size[0] ** 2)) ** 0.5
        assert layer.weight.std().item() == pytest.approx(expected, rel=0.05)
        assert layer.bias is None


def test_resnet_other_channels() -> None:
    for name in ("resnet10", "resnet18"):
        assert build(name, Task((1, 32, 32), 5), width=4)(torch.randn(2, 1, 32, 32)).shape == (2, 5)


def test_mlp_layers() -> None:
    model = build("mlp", VECTOR)
    sizes = [
        (layer.in_features, layer.out_features)
        for layer in model.modules()
        if isinstance(layer, nn.Linear)
    ]
    assert sizes == [(5000, 1000), (1000, 500), (500, 100), (100, 2)]
    assert build("mlp", IMAGE, hidden=[7])(batch(IMAGE)).shape == (4, 10)  # images are flattened


def test_linear_is_one_affine_map() -> None:
    model, x = build("linear", IMAGE), batch(IMAGE)
    assert torch.allclose(
        model(x), functional.linear(x.flatten(1), model.head.weight, model.head.bias)
    )


def test_fasttext_padding() -> None:
    torch.manual_seed(0)
    rows = torch.tensor([[3, 5, 0, 0], [0, 0, 0, 0]])
    task = Task((4,), 4, 10)
    for ignore, real in ((False, 4), (True, 2)):
        body = build("fasttext", task, ignore_padding=ignore).body
        weight = body.embedding.weight
        assert (weight[0] == 0).all()
        mean = torch.stack([(weight[3] + weight[5]) / real, torch.zeros(32)])
        assert torch.allclose(body(rows), body.linear(mean), atol=1e-6)
        body(rows).sum().backward()
        assert weight.grad.isfinite().all() and (weight.grad[0] == 0).all()
    with torch.no_grad():  # the loop ended with ignore_padding: the padding's row no longer matters
        before = body(rows)
        body.embedding.weight[0] = 9.0
        assert torch.equal(body(rows), before)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.classifier = nn.Sequential(nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.conv(x).relu().flatten(1))


@pytest.mark.parametrize("head", [None, "classifier.2"])
def test_split_own_network(head: str | None) -> None:
    own, x = Own(), torch.randn(4, 1, 6, 6)
    expected = own(x)
    model = split(own, head)
    assert isinstance(model, Split)
    assert torch.equal(model(x), expected)
    assert model.width == 8 and model.body(x).shape == (4, 8)
    assert count(model) == count(own) and count(model.head) == 45
    assert torch.equal(own(x), expected)  # the original is left whole
    assert not {id(p) for p in own.parameters()} & {id(p) for p in model.parameters()}


def test_split_by_name_and_bare_linear() -> None:
    class Early(nn.Module):  # the head is assigned first, so only its name finds it
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 2)
            self.hidden = nn.Linear(3, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.hidden(x).relu())

    own, x = Early(), torch.randn(2, 3)
    model = split(own, "head")
    assert model.width == 6 and torch.equal(model(x), own(x))
    single = nn.Linear(3, 2)
    model = split(single)
    assert model.width == 3 and torch.equal(model(x), single(x)) and torch.equal(model.body(x), x)


@pytest.mark.parametrize(
    ("module", "head", "sentence"),
    [
        (nn.Conv2d(1, 1, 1), None, "Conv2d has no nn.Linear that could be its head"),
        (
            Own(),
            "clasifier.2",
            "unknown submodule of Own 'clasifier.2'; did you mean 'classifier.2'?",
        ),
        (nn.ReLU(), "fc", "unknown submodule of ReLU 'fc'; known: none."),
        (Own(), "conv", "the head must be an nn.Linear, but 'conv' is a Conv2d"),
        (
            nn.Sequential(nn.Linear(2, 2), nn.Softmax(1)),
            None,
            "the head '0' must come last, but a Softmax follows it",
        ),
    ],
)
def test_split_errors(module: nn.Module, head: str | None, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        split(module, head)
    assert str(error.value) == sentence


VECTOR_HAS = "but the task's samples are numbers of shape (5000,)"
TEXT_HAS = "but the task's samples are tokens out of 50 of shape (20,)"
IMAGES = "needs images (channels, height, width) of at least"


@pytest.mark.parametrize(
    ("name", "task", "chosen", "sentence"),
    [
        ("resnet81", IMAGE, {}, "unknown model 'resnet81'; did you mean 'resnet18'?"),
        (
            "cnn",
            IMAGE,
            {"widht": 3},
            "unknown option of model 'cnn' 'widht'; did you mean 'width'?",
        ),
        ("linear", VECTOR, {"width": 3}, "unknown option of model 'linear' 'width'; known: none."),
        (
            "resnet18",
            IMAGE,
            {"stem": "smal"},
            "unknown stem of model 'resnet18' 'smal'; did you mean 'small'?",
        ),
        ("cnn", VECTOR, {}, f"model 'cnn' {IMAGES} 16x16 pixels, {VECTOR_HAS}"),
        (
            "cnn",
            Task((3, 15, 32), 2),
            {},
            f"model 'cnn' {IMAGES} 16x16 pixels, but the task's samples are numbers of shape "
            "(3, 15, 32)",
        ),
        ("resnet10", VECTOR, {}, f"model 'resnet10' {IMAGES} 1x1 pixels, {VECTOR_HAS}"),
        ("resnet18", TEXT, {}, f"model 'resnet18' {IMAGES} 1x1 pixels, {TEXT_HAS}"),
        ("mlp", TEXT, {}, f"model 'mlp' needs numeric inputs, {TEXT_HAS}"),
        ("linear", TEXT, {}, f"model 'linear' needs numeric inputs, {TEXT_HAS}"),
        (
            "fasttext",
            VECTOR,
            {},
            f"model 'fasttext' needs token sequences (length,) and a vocabulary, {VECTOR_HAS}",
        ),
        (
            "cnn",
            IMAGE,
            {"width": 0},
            "option 'width' of model 'cnn' must be a positive integer, not 0",
        ),
        (
            "mlp",
            VECTOR,
            {"hidden": (5, "a")},
            "option 'hidden' of model 'mlp' must be a positive integer, not 'a'",
        ),
        (
            "mlp",
            VECTOR,
            {"hidden": ()},
            "option 'hidden' of model 'mlp' must be a list of sizes such as [200, 100], not ().",
        ),
        (
            "mlp",
            VECTOR,
            {"hidden": 5},
            "option 'hidden' of model 'mlp' must be a list of sizes such as [200, 100], not 5.",
        ),
    ],
)
def test_build_errors(name: str, task: Task, chosen: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        build(name, task, **chosen)
    assert str(error.value) == sentence


def test_options_of_unknown_model() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'cn'; did you mean 'cnn'\?"):
        options("cn")


@pytest.mark.parametrize(
    ("shape", "classes", "vocabulary", "sentence"),
    [
        ((), 2, None, r"a task's shape needs at least one positive size, not \(\)"),
        ((3, 0), 2, None, r"a task's shape needs at least one positive size, not \(3, 0\)"),
        ((3,), 0, None, "a task needs at least one class, not 0"),
        ((3,), 2, 0, "a task's vocabulary needs at least one token, not 0"),
    ],
)
def test_task_errors(
    shape: tuple[int, ...], classes: int, vocabulary: int | None, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        Task(shape, classes, vocabulary)


def test_register(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(task: Task, *, scale: int = 2) -> Split:
        return Split(nn.Flatten(), nn.Linear(task.shape[0], scale), task.shape[0])

    def bare(task: Task, scale: int = 2) -> Split:
        return own(task, scale=scale)

    assert MODELS.find("CNN") is MODELS.find("cnn")
    with pytest.raises(ValueError, match="a model named 'cnn' is registered already"):
        register("cnn")(own)
    with pytest.raises(
        ValueError, match="'scale' of 'bare' must be keyword-only, annotated, with a default"
    ):
        register("bare")(bare)
    assert MODELS.names() == tuple(sorted((*NAMES, *MAPS, *FROZEN, *LOADED, *PREFIXES)))
    monkeypatch.setitem(MODELS._entries, "own", own)
    assert build("own", VECTOR, scale=3).head.out_features == 3
    assert options("own") == {"scale": 2}


def test_the_published_head_of_a_projection_is_limited() -> None:
    torch.manual_seed(0)
    model = build("projection", Task((12,), 5), head="official")
    scores = model(torch.randn(50, 12))
    lengths = scores.norm(dim=1)  # 0 where no score is positive
    assert (
        scores.min() >= 0
        and lengths.max() > 0.99
        and ((lengths - 1).abs().minimum(lengths) < 1e-5).all()
    )
    assert scores.softmax(1).max() < 1 / (1 + 4 / math.e) + 1e-6
    assert sum(p.numel() for p in model.parameters()) == 256 * (12 + 5)
    with pytest.raises(
        FedloomError, match="unknown head of projection 'offical'; did you mean 'official'"
    ):
        build("projection", Task((12,), 5), head="offical")


def test_hooks_on_parameters_are_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    net[0].register_forward_hook(lambda *_: None)
    split(net)  # hooks on modules are copied with them
    net[0].weight.register_hook(lambda g: g * 0)
    with pytest.raises(FedloomError, match=r"parameter '0.weight' has a hook"):
        split(net)


@pytest.mark.parametrize(("inputs", "stride"), [(4, 2), (7, 2), (4, 1), (8, 2)])
def test_a_shortcut_is_a_convolution_whatever_its_width(inputs: int, stride: int) -> None:
    """Narrow ones go another way, round a kernel of torch that corrupts memory."""
    block = resnet.BasicBlock(inputs, 16, stride)
    x = torch.randn(3, inputs, 8, 8, generator=torch.Generator().manual_seed(0))
    narrow = block.shortcut[0]
    expected = functional.conv2d(x, narrow.weight, stride=stride)
    torch.testing.assert_close(narrow(x), expected)
    assert isinstance(narrow, resnet._Sampled) == (inputs < 8 and stride > 1)
