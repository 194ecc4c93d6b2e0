"""Settings: complete, strict, the same in a file, as flags and as keywords."""

import inspect
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom import models
from fedloom.client.training import Training
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import METHODS, find, make, method, names
from fedloom.core.method import Method, Traits
from fedloom.data import partitions
from fedloom.engine.config import (
    SECTIONS,
    Config,
    Execution,
    _place,
    affecting,
    build,
    parse_set,
    read,
)
from fedloom.engine.schedule import Schedule


@pytest.fixture
def slow() -> Iterator[type[Method]]:
    """A method whose paper trains differently, with settings of several kinds."""

    @method("slow")
    class Slow(Method):
        traits = Traits(training={"optimizer": "adam", "lr": 0.001, "batch": 10})
        rate: float = 0.5
        widths: tuple[int, ...] = (3, 4)
        limit: float | None = None
        exact: bool = True

    yield Slow
    del METHODS._entries["slow"]


def again(config: Config) -> Config:
    """The config after it was written and read."""
    return build(tomllib.loads(config.toml()))


# -- build ----------------------------------------------------------------------------------------
def test_defaults_are_complete() -> None:
    config = build({})
    assert (config.method, config.data, config.partition, config.model) == (
        "fedavg",
        "digits4",
        "domains",
        "cnn",
    )
    assert (config.seed, config.clients, config.validation) == (0, None, 0.1)
    assert (config.schedule, config.training, config.execution) == (
        Schedule(),
        Training(),
        Execution(),
    )
    assert config.hyper == {}
    assert set(config.model_dump()) == set(Config.model_fields)
    assert set(SECTIONS) <= set(Config.model_fields)


@pytest.mark.parametrize("name", names())
def test_all_settings_of_a_method_are_written_out(name: str) -> None:
    assert build({"method": name}).hyper == make(name).params()


def test_what_is_given_is_used() -> None:
    given = {
        "method": "fedprox",
        "partition": "dirichlet",
        "model": "mlp",
        "clients": 7,
        "seed": 3,
        "schedule": {"rounds": 4},
        "training": {"lr": 0.5},
        "hyper": {"mu": 2},
        "partitioning": {"beta": 0.3},
        "network": {"hidden": [8, 4]},
        "execution": {"workers": 3},
    }
    config = build(given)
    assert (config.method, config.clients, config.seed) == ("fedprox", 7, 3)
    assert config.schedule == Schedule(rounds=4)
    assert config.training == Training(lr=0.5)
    assert config.hyper == {"mu": 2.0}
    assert config.partitioning["beta"] == 0.3
    assert config.network["hidden"] == [8, 4]
    assert config.execution == Execution(workers=3)


def test_a_flat_key_finds_its_section() -> None:
    changes = {
        "mu": 0.3,
        "lr": 0.2,
        "rounds": 5,
        "beta": 0.7,
        "width": 8,
        "workers": 4,
        "seed": 9,
        "validation": 0.2,
    }
    config = build({"method": "fedprox", "partition": "dirichlet"}, changes)
    assert config.hyper["mu"] == 0.3
    assert config.training.lr == 0.2
    assert config.schedule.rounds == 5
    assert config.partitioning["beta"] == 0.7
    assert config.network["width"] == 8
    assert config.execution.workers == 4
    assert (config.seed, config.validation) == (9, 0.2)


def test_lists_of_names_may_be_one_text_with_commas() -> None:
    changes = {"augment": "crop, flip", "points": "a,b", "only_domains": ["x", "y"]}
    config = build({"method": "fedavg+dfdc"}, changes)
    assert config.training.augment == ("crop", "flip")
    assert config.hyper["points"] == ("a", "b") and config.source.only_domains == ("x", "y")
    with pytest.raises(FedloomError, match="augment = 3: input should be a list"):
        build({"method": "fedavg"}, {"augment": 3})


def test_a_section_may_be_named() -> None:
    config = build(
        {"method": "fedprox"}, {"training.lr": 0.2, "hyper.mu": 0.5, "schedule.rounds": 2}
    )
    assert (config.training.lr, config.hyper["mu"], config.schedule.rounds) == (0.2, 0.5, 2)


def test_changes_win_over_what_is_given_and_leave_it_alone() -> None:
    given, changes = {"training": {"lr": 0.5, "batch": 8}}, {"lr": 0.1, "epochs": 2}
    config = build(given, changes)
    assert (config.training.lr, config.training.batch, config.training.epochs) == (0.1, 8, 2)
    assert (given, changes) == ({"training": {"lr": 0.5, "batch": 8}}, {"lr": 0.1, "epochs": 2})
    assert build({}).training.lr == 0.05


def test_a_change_of_method_brings_its_settings() -> None:
    assert build({}, {"method": "fedprox"}) == build({"method": "fedprox"})
    assert build({}, {"method": "fedprox", "mu": 0.5}) == build(
        {"method": "fedprox", "hyper": {"mu": 0.5}}
    )


@pytest.mark.parametrize(
    ("key", "wrong", "near"), [("method", "fedpro", "fedprox"), ("model", "cn", "cnn")]
)
def test_a_change_to_something_unknown_is_refused(key: str, wrong: str, near: str) -> None:
    with pytest.raises(FedloomError, match=f"unknown {key} '{wrong}'; did you mean '{near}'"):
        build({}, {key: wrong})


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        build({}).seed = 3  # type: ignore[misc]


# -- a method's own training ----------------------------------------------------------------------
def test_a_methods_training_is_its_default(slow: type[Method]) -> None:
    training = build({"method": "slow"}).training
    assert training == Training(optimizer="adam", lr=0.001, batch=10)


def test_the_users_training_wins(slow: type[Method]) -> None:
    config = build({"method": "slow", "training": {"lr": 0.3}}, {"batch": 5, "training.epochs": 2})
    assert config.training == Training(optimizer="adam", lr=0.3, batch=5, epochs=2)
    # Also where the user asks for what is the default of all other methods.
    assert build({"method": "slow"}, {"optimizer": "sgd", "lr": 0.05}).training == Training(
        batch=10
    )


def test_a_method_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from fedloom.core.lookup import method\n"
        "from fedloom.methods.fedavg import FedAvg\n"
        '@method("mine")\n'
        "class Mine(FedAvg):\n"
        "    traits = FedAvg.traits.but(training={'lr': 0.7})\n"
        "    strength: float = 1.5\n"
    )
    config = build({"method": str(path)}, {"strength": 2})
    assert config.hyper == {"strength": 2.0}
    assert config.training.lr == 0.7
    assert again(config) == config
    assert "mine" not in names()
    with pytest.raises(FedloomError, match="did you mean 'strength'"):
        build({"method": str(path)}, {"strenght": 2})


# -- errors ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "changes", "said"),
    [
        ({"trainin": {}}, {}, "unknown key 'trainin'; did you mean 'training'?"),
        ({"sed": 1}, {}, "unknown key 'sed'; did you mean 'seed'?"),
        (
            {"training": {"epoch": 1}},
            {},
            "unknown key in [training] 'epoch'; did you mean 'epochs'?",
        ),
        (
            {"schedule": {"round": 1}},
            {},
            "unknown key in [schedule] 'round'; did you mean 'rounds'?",
        ),
        (
            {"execution": {"worker": 1}},
            {},
            "unknown key in [execution] 'worker'; did you mean 'workers'?",
        ),
        ({"network": {"widht": 1}}, {}, "unknown key in [network] 'widht'; did you mean 'width'?"),
        (
            {"partition": "dirichlet", "partitioning": {"betta": 1}},
            {},
            "unknown key in [partitioning] 'betta'; did you mean 'beta'?",
        ),
        (
            {"method": "fedprox", "hyper": {"mue": 1}},
            {},
            "unknown key in [hyper] 'mue'; did you mean 'mu'?",
        ),
        ({}, {"momentun": 0.9}, "unknown key 'momentun'; did you mean 'momentum'?"),
        (
            {},
            {"training.momentun": 0.9},
            "unknown key in [training] 'momentun'; did you mean 'momentum'?",
        ),
        ({}, {"trainig.lr": 0.9}, "unknown section 'trainig'; did you mean 'training'?"),
        ({"method": "fedpro"}, {}, "unknown method 'fedpro'; did you mean 'fedprox'?"),
        (
            {"partition": "dirichlett"},
            {},
            "unknown partition 'dirichlett'; did you mean 'dirichlet'?",
        ),
        ({"model": "resnet1"}, {}, "unknown model 'resnet1'; did you mean 'resnet1"),
    ],
)
def test_what_is_unknown_is_named_with_the_nearest(
    given: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(FedloomError, match=re.escape(said)):
        build(given, changes)


def test_where_nothing_is_near_all_are_listed() -> None:
    with pytest.raises(FedloomError, match=r"unknown method 'zzzz'; known: .*fedavg.*scaffold"):
        build({"method": "zzzz"})
    with pytest.raises(FedloomError, match=r"unknown key in \[hyper\] 'mu'; known: none"):
        build({"method": "fedavg", "hyper": {"mu": 1}})  # FedAvg has no settings


def test_another_methods_setting_is_unknown() -> None:
    with pytest.raises(FedloomError, match=r"belongs to .*the method fedprox"):
        build({"method": "fedavg"}, {"mu": 0.1})


@pytest.mark.parametrize(
    ("given", "changes", "words"),
    [
        ({"method": "fedprox"}, {"mu": "abc"}, ["fedprox", "mu = 'abc'", "number"]),
        (
            {"method": "fedprox", "hyper": {"mu": -1}},
            {},
            ["fedprox", "mu = -1", "greater than or equal to 0"],
        ),
        ({"method": "scaffold"}, {"server_lr": 0}, ["scaffold", "server_lr = 0", "greater than 0"]),
        ({}, {"lr": "fast"}, ["training.lr = 'fast'", "number"]),
        ({}, {"lr": 0}, ["training.lr = 0", "greater than 0"]),
        ({}, {"momentum": 1}, ["training.momentum = 1", "less than 1"]),
        ({}, {"optimizer": "sdg"}, ["training.optimizer = 'sdg'", "'sgd'"]),
        ({}, {"epochs": 1.5}, ["training.epochs = 1.5", "integer"]),
        ({"clients": 0}, {}, ["clients = 0"]),
        ({"seed": "x"}, {}, ["seed = 'x'", "integer"]),
        ({}, {"dropouts": "often"}, ["schedule.dropouts", "'often'"]),
        ({}, {"dropouts": 1.5}, ["config: schedule.dropouts = 1.5: input should be less than 1."]),
        ({}, {"ratio": 0.5, "ratio_max": 0.2}, ["ratio_max = 0.2 must not be below ratio = 0.5"]),
    ],
)
def test_a_wrong_value_is_named(
    given: dict[str, Any], changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(FedloomError) as caught:
        build(given, changes)
    said = str(caught.value)
    assert [word for word in words if word not in said] == []
    assert "\n" not in said
    assert said.endswith(".")


def test_two_wrong_values_are_both_named() -> None:
    with pytest.raises(FedloomError, match=r"training\.lr = -1.*training\.batch = 0"):
        build({}, {"lr": -1, "batch": 0})


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("value", [3, [1], "text"])
def test_a_section_must_be_a_table(section: str, value: Any) -> None:
    with pytest.raises(FedloomError, match=section):
        build({section: value})


def test_an_ambiguous_key_names_both_homes() -> None:
    known = {"": {"seed"}, "training": {"lr", "beta"}, "partitioning": {"beta"}}
    with pytest.raises(
        FedloomError, match=r"'beta' could be any of training\.beta, partitioning\.beta"
    ):
        _place("beta", known)
    assert _place("training.beta", known) == ("training", "beta")
    assert _place("partitioning.beta", known) == ("partitioning", "beta")
    assert _place("lr", known) == ("training", "lr")
    assert _place("seed", known) == ("", "seed")


def test_a_method_may_make_a_key_ambiguous() -> None:
    @method("twofold")
    class Twofold(Method):
        lr: float = 0.5

    try:
        with pytest.raises(
            FedloomError, match=r"'lr' could be any of training\.lr, hyper\.lr: say which"
        ):
            build({"method": "twofold"}, {"lr": 0.1})
        config = build({"method": "twofold"}, {"hyper.lr": 0.1, "training.lr": 0.2})
        assert (config.hyper, config.training.lr) == ({"lr": 0.1}, 0.2)
    finally:
        del METHODS._entries["twofold"]


# -- flags ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("item", "key", "value"),
    [
        ("mu=0.1", "mu", 0.1),
        ("lr=1e-3", "lr", 0.001),
        ("rounds=20", "rounds", 20),
        ("seed=-4", "seed", -4),
        ("norm=true", "norm", True),
        ("norm=false", "norm", False),
        ("hidden=[64, 32]", "hidden", [64, 32]),
        ("hidden=[]", "hidden", []),
        ('dropouts={3 = [0, 1], "5" = [2]}', "dropouts", {"3": [0, 1], "5": [2]}),
        ('data="digits4"', "data", "digits4"),
        ("data='a b'", "data", "a b"),
        ("optimizer=adam", "optimizer", "adam"),
        ("data=my data", "data", "my data"),
        ("path=a/b=c.py", "path", "a/b=c.py"),
        ("training.lr=0.5", "training.lr", 0.5),
        (" mu =0.5", "mu", 0.5),
        ("mu = 0.5", "mu", 0.5),
        ("text=", "text", ""),
    ],
)
def test_parse_set(item: str, key: str, value: Any) -> None:
    found = parse_set([item])
    assert found == {key: value}
    assert type(found[key]) is type(value)


def test_parse_set_of_several() -> None:
    assert parse_set([]) == {}
    assert parse_set(["mu=0.1", "lr=1", "mu=0.2"]) == {
        "mu": 0.2,
        "lr": 1,
    }  # the last of a kind counts


@pytest.mark.parametrize("item", ["mu", "", "=3", "  =3", "--mu"])
def test_parse_set_wants_key_and_value(item: str) -> None:
    with pytest.raises(FedloomError, match=re.escape(f"--set wants key=value, got {item!r}.")):
        parse_set([item])


def test_flags_become_a_config() -> None:
    changes = parse_set(
        ["mu=1", "dropouts={3 = [0, 1]}", "optimizer=adam", "drop_last=true", "hidden=[8]"]
    )
    config = build({"method": "fedprox", "model": "mlp"}, changes)
    assert config.hyper == {"mu": 1.0}
    assert config.schedule.dropouts == {3: [0, 1]}
    assert config.training == Training(optimizer="adam", drop_last=True)
    assert config.network["hidden"] == [8]


def test_keywords_are_flags() -> None:
    """No module stands in the way of a public name; `fedloom.report`, a package, can be called."""
    import fedloom

    assert len(fedloom.__all__) > 10
    for name in fedloom.__all__:
        value = getattr(fedloom, name)
        assert callable(value) or not inspect.ismodule(value), name


# -- files ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "dropouts": {3: [0, 1]},
            "stragglers": {1: [2], 7: []},
            "patience": 3,
            "ratio": 0.2,
            "ratio_max": 0.7,
        },
        {
            "clip": 1.5,
            "steps": 7,
            "eps": 1e-12,
            "lr": 1e-5,
            "nesterov": True,
            "momentum": 0.9,
            "optimizer": "adamw",
        },
        {"clients": 12, "seed": -(2**70), "validation": 0, "workers": 3, "executor": "pool"},
    ],
    ids=["plain", "schedule", "training", "top"],
)
def test_a_config_comes_back_from_its_file(name: str, changes: dict[str, Any]) -> None:
    config = build({"method": name}, changes)
    assert again(config) == config
    assert again(config).hash() == config.hash()
    assert again(config).toml() == config.toml()


def test_dropouts_come_back_from_a_file() -> None:
    config = build({}, {"dropouts": {3: [0, 1]}})
    assert again(config).schedule.dropouts == {3: [0, 1]}


@pytest.mark.parametrize("name", partitions.PARTITIONS.names())
def test_options_of_partitions_come_back(name: str) -> None:
    config = build({"partition": name, "partitioning": partitions.options(name)})
    assert again(config).partitioning == config.partitioning
    assert again(config).hash() == config.hash()


@pytest.mark.parametrize("name", models.MODELS.names())
def test_options_of_models_come_back(name: str) -> None:
    config = build({"model": name, "network": models.options(name)})
    assert again(config) == config
    assert again(config).hash() == config.hash()


def test_settings_of_every_kind_come_back(slow: type[Method]) -> None:
    for hyper in (
        {},
        {"rate": 1, "widths": [5], "limit": 0.25, "exact": False},
        {"widths": (), "limit": None},
    ):
        config = build({"method": "slow", "hyper": hyper})
        assert again(config) == config
    assert build({"method": "slow", "hyper": {"widths": [5]}}).hyper["widths"] == (5,)


@pytest.mark.parametrize(
    "text",
    ["with space", 'a "quoted" word', "back\\slash", "tab\tand\nline", "naïve", "数字", "😀"],
)
def test_names_of_every_kind_come_back(text: str) -> None:
    config = build({"data": text})
    assert again(config).data == text


@pytest.mark.parametrize("key", ["lr", "clip", "weight_decay", "eps"])
def test_infinity_is_refused_or_comes_back(key: str) -> None:
    try:
        config = build({}, {key: math.inf})
    except FedloomError:
        return
    assert again(config) == config


@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(
    lr=st.floats(min_value=1e-300, max_value=1e300),
    mu=st.floats(min_value=0, max_value=1e300),
    seed=st.integers(),
    dropouts=st.floats(0, 0.999)
    | st.dictionaries(st.integers(1, 99), st.lists(st.integers(0, 99), max_size=3)),
)
def test_any_numbers_come_back(lr: float, mu: float, seed: int, dropouts: Any) -> None:
    config = build({"method": "fedprox", "seed": seed}, {"lr": lr, "mu": mu, "dropouts": dropouts})
    assert again(config) == config


def test_read(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    config = build({"method": "fedprox", "seed": 4}, {"mu": 0.25})
    path.write_text(config.toml())
    assert build(read(path)) == config


def test_read_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match=r"there is no file .*missing\.toml"):
        read(tmp_path / "missing.toml")
    path = tmp_path / "bad.toml"
    path.write_text("seed = = 3")
    with pytest.raises(FedloomError, match=r"bad\.toml is not valid TOML"):
        read(path)


# -- hash -----------------------------------------------------------------------------------------
BASE: dict[str, Any] = {"method": "fedprox", "partition": "dirichlet"}


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"clients": 5},
        {"validation": 0.2},
        {"data": "other"},
        {"rounds": 11},
        {"ratio": 0.5},
        {"ratio": 0.5, "ratio_max": 0.6},
        {"dropouts": 0.1},
        {"dropouts": {3: [0, 1]}},
        {"stragglers": 0.1},
        {"straggler_work": 0.4},
        {"patience": 3},
        {"eval_every": 2},
        {"lr": 0.06},
        {"lr_decay": 0.99},
        {"batch": 31},
        {"epochs": 2},
        {"steps": 3},
        {"drop_last": True},
        {"momentum": 0.9},
        {"weight_decay": 1e-9},
        {"clip": 10.0},
        {"optimizer": "adam"},
        {"optimizer": "adamw"},
        {"mu": 0.02},
        {"beta": 0.2},
        {"least": 3},
        {"width": 33},
        {"norm": True},
    ],
    ids=str,
)
def test_the_hash_changes_with_what_matters(change: dict[str, Any]) -> None:
    assert build(BASE, change).hash() != build(BASE).hash()


@pytest.mark.parametrize("other", [{"method": "fedavg"}, {"partition": "iid"}, {"model": "mlp"}])
def test_the_hash_changes_with_method_partition_and_model(other: dict[str, Any]) -> None:
    assert build(BASE | other).hash() != build(BASE).hash()


def test_different_changes_give_different_hashes() -> None:
    changes = [
        {"lr": 0.1},
        {"lr": 0.01},
        {"eps": 0.01},
        {"dropouts": {3: [0]}},
        {"dropouts": {3: [1]}},
    ]
    changes += [{"dropouts": {4: [0]}}, {"stragglers": {3: [0]}}]
    assert len({build(BASE, change).hash() for change in changes}) == len(changes)


@pytest.mark.parametrize("change", [{"executor": "pool"}, {"workers": 7}])
def test_the_hash_does_not_change_with_execution(change: dict[str, Any]) -> None:
    assert build(BASE, change).hash() == build(BASE).hash()
    assert build(BASE, change) != build(BASE)


@pytest.mark.parametrize(
    "change",
    [
        {"mu": 0.01},
        {"lr": 0.05},
        {"ratio": 1},
        {"rounds": 10},
        {"momentum": 0},
        {"beta": 0.1},
        {"tries": 200},
        {"width": 32},
        {"norm": False},
    ],
    ids=str,
)
def test_saying_a_default_does_not_change_the_hash(change: dict[str, Any]) -> None:
    """Runs whose results must be equal have equal hashes, so a default may be spelt out."""
    assert build(BASE, change).hash() == build(BASE).hash()


def test_the_hash_is_short_and_stable() -> None:
    digest = build(BASE, {"dropouts": {3: [0, 1], 1: [2]}}).hash()
    assert re.fullmatch("[0-9a-f]{16}", digest)
    assert digest == build(BASE, {"dropouts": {"1": [2], "3": [0, 1]}}).hash()


def test_every_method_can_be_found() -> None:
    assert len(names()) >= 6
    for name in names():
        assert find(name).name == name


def test_the_hash_and_the_federation_follow_from_what_settings_affect() -> None:
    assert affecting("nothing") == {"format", "execution", "schedule.checkpoint_every"}
    plain = build({"method": "fedavg"})
    assert plain.hash() == build({}, {"workers": 5, "checkpoint_every": 3}).hash()
    assert plain.data_key() == build({}, {"lr": 1.0, "rounds": 3, "width": 8}).data_key()
    for change in ({"seed": 1}, {"limit_train": 5}, {"clients": 3}, {"partition": "iid"}):
        assert plain.data_key() != build({}, change).data_key()
        assert plain.hash() != build({}, change).hash()


def test_hashes_stay_as_they_are() -> None:
    """Folders are named after them."""
    assert build({"method": "fedprox"}, {"mu": 0.3}).hash() == "fc573444d358ec95"
    assert build({"seed": 3}, {"executor": "pool", "eval_every": 3}).hash() == "628e9f8c8be6d09b"
    assert build({}, {"metric": "nll"}).hash() != build({}).hash()


def test_a_refusal_ends_with_one_mark() -> None:
    with pytest.raises(FedloomError, match=r"did you mean 'balanced_accuracy'\?$"):
        build({"method": "fedavg"}, {"metric": "balanced_acuracy"})
