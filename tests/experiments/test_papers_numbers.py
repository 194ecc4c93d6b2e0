"""At full scale every recipe has the paper's settings: each number here was read in a paper.

Where a paper is silent, the comment says so and names where the number comes from.
"""

from __future__ import annotations

from typing import Any

import pytest

from fedloom.engine.config import Config
from fedloom.experiments.recipe import recipe, tables
from fedloom.experiments.table import Recipe, Setting

# F2DC, section 5: SGD, rate 0.01, momentum 0.9, decay 1e-5, batches of 64, 10 epochs, 100 rounds,
# ResNet-10. The paper is silent on augmentation and image sizes; they are those of its code.
F2DC = {
    "schedule.rounds": 100,
    "schedule.ratio": 1.0,
    "training.optimizer": "sgd",
    "training.lr": 0.01,
    "training.momentum": 0.9,
    "training.weight_decay": 1e-5,
    "training.batch": 64,
    "training.epochs": 10,
    "training.steps": None,
    "partition": "f2dc",
    "model": "resnet10",
    "network.width": 64,  # so that the embedding has 512 numbers
    "validation": 0.0,
    "encoder": None,
}
F2DC_SETS = {
    # 20 clients, of which each draws 1 % of its domain.
    "digits": {
        "clients": 20,
        "partitioning.share": 0.01,
        "source.size": 32,
        "source.only_domains": ["mnist", "usps", "svhn", "syn"],
        "training.augment": [],
    },
    # 10 clients with 20 %, and 10 with 30 %: the partition's own numbers, tested with it.
    "office_caltech": {"source.size": 32, "training.augment": ["crop", "flip"]},
    "pacs": {"source.size": 128, "training.augment": ["crop", "flip"]},
}
# sigma 0.1, tau 0.06, lambda_1 0.8, lambda_2 1.0, alpha 1.0, beta 0.4.
F2DC_HYPER = {
    "sigma": 0.1,
    "cos_tau": 0.06,
    "lam1": 0.8,
    "lam2": 1.0,
    "by_size": 1.0,
    "by_gap": 0.4,
}
# Table 5's sigmas; in the figures the values of tau, alpha, beta and the lambdas are drawn only.
F2DC_SIGMAS = [0.01, 0.05, 0.1, 0.3, 0.5, 1.0, 5.0]

# FedDTR, section 5.1: 2000 rounds, 20 clients, all in each round, 75 % for training, batches of 10,
# one epoch, rate 0.005 (CNN, MLP) and 0.1 (ResNet-18, fastText). Silent on the optimiser: SGD, and
# incomplete batches are dropped, as in its code.
FEDDTR = {
    "schedule.rounds": 2000,
    "training.optimizer": "sgd",
    "training.momentum": 0.0,
    "training.weight_decay": 0.0,
    "training.batch": 10,
    "training.epochs": 1,
    "training.drop_last": True,
    "split": "merged",
    "merged_share": 0.75,
}
FEDDTR_RATES = {"cnn": 0.005, "mlp": 0.005, "unet": 0.005, "resnet18": 0.1, "fasttext": 0.1}
# By setting: 2 of 10 and 10 of 100 classes per client, or Dirichlet's beta.
FEDDTR_SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("feddtr-1", "Pathological, MNIST"): {"partitioning.classes_per_client": 2},
    ("feddtr-1", "Pathological, CIFAR-10"): {"partitioning.classes_per_client": 2},
    ("feddtr-1", "Pathological, CIFAR-100"): {"partitioning.classes_per_client": 10},
    ("feddtr-1", "Practical, Tiny-ImageNet, CNN"): {"model": "cnn", "partitioning.beta": 0.1},
    ("feddtr-1", "Practical, Tiny-ImageNet, ResNet-18"): {"model": "resnet18"},
    ("feddtr-1", "Practical, AG News"): {"model": "fasttext", "partitioning.beta": 0.1},
    ("feddtr-2", "Tiny-ImageNet, beta 0.01"): {"partitioning.beta": 0.01, "clients": 20},
    ("feddtr-2", "Tiny-ImageNet, beta 0.5"): {"partitioning.beta": 0.5},
    ("feddtr-2", "AG News, beta 1"): {"partitioning.beta": 1.0},
    ("feddtr-2", "CIFAR-100, 10 clients"): {"clients": 10},
    ("feddtr-2", "CIFAR-100, 30 clients"): {"clients": 30},
    ("feddtr-2", "CIFAR-100, 100 clients"): {"clients": 100},
    ("feddtr-3", "J = 1"): {"clients": 50, "schedule.ratio_max": None},
    ("feddtr-3", "J in [0.5, 1]"): {
        "clients": 50,
        "schedule.ratio": 0.5,
        "schedule.ratio_max": 1.0,
    },
    ("feddtr-3", "J in [0.1, 1]"): {
        "clients": 50,
        "schedule.ratio": 0.1,
        "schedule.ratio_max": 1.0,
    },
    ("feddtr-4", "Amazon Review"): {"model": "mlp", "clients": 20},  # silent on the partition
    ("feddtr-5", "Tiny-ImageNet, ResNet-18"): {"model": "resnet18", "partitioning.beta": 0.1},
    ("feddtr-7", "CIFAR-10"): {"clients": 20, "partitioning.beta": 0.1},
    # A domain per client; silent on everything else.
    ("feddtr-7", "PACS"): {"partition": "domains", "clients": 4, "source.size": 227},
    ("feddtr-7", "Digits"): {"partition": "domains", "clients": 4, "source.size": 32},
    # N = 20, beta = 0.1; silent on networks and image sizes.
    ("feddtr-8", "CUB-200-2011"): {"clients": 20, "partitioning.beta": 0.1, "source.size": 64},
    ("feddtr-8", "ISIC"): {"model": "unet", "partitioning.beta": 0.1, "source.size": 256},
    ("feddtr-9", "CIFAR-10"): {"clients": 20, "partitioning.beta": 0.1},
}

# FedGCR: 50 rounds, one epoch, AdamW, rate 1e-3, ViT-B/16 with ImageNet weights. Silent on batch,
# 64 in the authors' logs, and decay, PyTorch's 0.01. Flips and rotations are their code's.
FEDGCR = {
    "schedule.rounds": 50,
    "training.optimizer": "adamw",
    "training.lr": 0.001,
    "training.weight_decay": 0.01,
    "training.batch": 64,
    "training.epochs": 1,
    "partition": "dif",
    "model": "vpt",
    "network.vit": "{vit}",
    "encoder": None,
    "partitioning.percent": 0.5,
    "partitioning.train_share": 0.6,
}
FEDGCR_SETS = {
    "digit_five": {"training.augment": [], "source.limit_train": None},
    "pacs": {"training.augment": ["flip", "rotate"], "source.size": 224},
    "domainnet10": {"training.augment": ["flip", "rotate"], "source.size": 224},
}
# The domains from the most clients to the fewest, as in the tables of clients; in the appendix the
# first changes places with the second, and the last with the one before it, of PACS and Digit-Five.
FEDGCR_ORDERS = {
    "digit_five": ["mnist", "usps", "syn", "mnist_m", "svhn"],
    "pacs": ["photo", "art_painting", "cartoon", "sketch"],
    "domainnet10": ["clipart", "real", "painting", "sketch", "quickdraw", "infograph"],
}
FEDGCR_SWAPPED = {
    "digit_five": ["usps", "mnist", "syn", "svhn", "mnist_m"],
    "pacs": ["art_painting", "photo", "sketch", "cartoon"],
    "domainnet10": ["real", "clipart", "painting", "sketch", "infograph", "quickdraw"],
}
# lambda_1 0.5, lambda_2 0.1, tau 0.5, gamma 0.5, q 1; T' is the number of domains.
FEDGCR_HYPER = {"lam_gc": 0.5, "lam_ra": 0.1, "tau": 0.5, "group_gamma": 0.5, "group_q": 1.0}

# FedPCL, section 5.1: Adam, rate 0.001, decay 1e-4, batches of 32, one epoch, 5, 4 and 6 clients.
# Silent on rounds but for Table 1 (50); the others are those of its scripts, and so are batches of
# 16 for Office, image sizes, and SGD for ViTs.
FEDPCL = {
    "training.weight_decay": 1e-4,
    "training.epochs": 1,
    "validation": 0.0,
}
FEDPCL_ADAM = {"training.optimizer": "adam", "training.lr": 0.001}
FEDPCL_VIT = {"training.optimizer": "sgd", "training.lr": 0.03, "training.momentum": 0.5}
FEDPCL_SETS = {
    "digit_five": {"training.batch": 32, "source.size": 64},
    "office_caltech": {
        "training.batch": 16,
        "source.size": 64,
        "clients": 4,
        "schedule.rounds": 60,
    },
    "domainnet10": {
        "training.batch": 32,
        "source.size": 256,
        "clients": 5,
        "schedule.rounds": 100,
        "partitioning.per_class": 40,
        "partitioning.train_share": 0.25,
    },
}
# Feature shift, label shift with alpha 1, or both; 5 clients, or one for each domain.
FEDPCL_SHIFTS = {
    "fedpcl-1": "feature_shift",
    "fedpcl-2": "feature_shift",
    "fedpcl-2official": "feature_shift",
    ("fedpcl-3", "Office-10"): "feature_label_shift",
    ("fedpcl-3", "DomainNet"): "label_shift",
    "fedpcl-4": "feature_label_shift",
    "fedpcl-5": "feature_label_shift",
    ("fedpcl-6", "feature shift"): "feature_shift",
    ("fedpcl-6", "label shift"): "label_shift",
    ("fedpcl-6", "feature and label shift"): "feature_label_shift",
    "fedpcl-figure2": "label_shift",
    "fedpcl-figure3": "feature_shift",
    "fedpcl-theory": "feature_shift",  # the paper measures nothing of its bound
}
FEDPCL_ROUNDS = {("fedpcl-2", "one backbone"): 100, ("fedpcl-2official", "one backbone"): 100}

# FedPACT, section 5.1: 10 clients, 10 rounds, 20 local and 100 server epochs, AdamW, batches of 16,
# 8 shots. Rates, alpha and beta by data set are those of DPE, which the paper refers to.
FEDPACT = {
    "schedule.rounds": 10,
    "partition": "fewshot",
    "encoder": "{clip}",
    "model": "linear",
    "source.limit_train": None,
}
DPE = {  # alpha, beta, rate
    "flowers102": (2.5, 5.0, 0.0001),
    "dtd": (6.0, 3.0, 0.0006),
    "oxford_pets": (4.0, 7.0, 0.00005),
    "stanford_cars": (3.0, 7.0, 0.0001),
    "ucf101": (9.0, 8.0, 0.0004),
    "caltech101": (15.0, 5.0, 0.0006),
    "food101": (3.0, 1.0, 0.0002),
    "sun397": (6.0, 3.0, 0.0002),
    "fgvc_aircraft": (6.0, 2.0, 0.0006),
    "eurosat": (3.0, 8.0, 0.00005),
}


def flat(config: Config) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in config.what().items():
        inner = value if isinstance(value, dict) else {}
        values |= {f"{name}.{key}": one for key, one in inner.items()}
        if not inner:
            values[name] = value
    return values


def full_configs(prefix: str) -> list[tuple[Recipe, Setting, str, dict[str, Any]]]:
    """Every row of every setting that a paper has, with its config at full scale."""
    found = []
    for name in tables():
        table = recipe(name)
        if not name.startswith(prefix):
            continue
        for setting in table.settings:
            if "full" not in setting.missing:
                for row in setting.rows:
                    config = flat(table.config(setting, "full", row, 0, {}))
                    found.append((table, setting, row, config))
    assert found
    return found


def compare(where: object, config: dict[str, Any], paper: dict[str, Any]) -> None:
    theirs = {key: config.get(key) for key in paper}
    assert theirs == paper, where


def own(table: Recipe, row: str) -> set[str]:
    """What a row sets itself, because the table is about it."""
    return set(table.rows[row].get("hyper", {}))


def test_f2dc() -> None:
    for table, setting, row, config in full_configs("f2dc-"):
        compare((table.name, row), config, F2DC | F2DC_SETS[setting.data])
        assert table.seeds["full"] == [0, 1, 2] or "figure" in table.name  # three runs
        for key, value in F2DC_HYPER.items():
            if config["method"] == "f2dc" and key not in own(table, row):
                assert config[f"hyper.{key}"] == value
    rows = recipe("f2dc-5").rows.values()
    assert [row.get("hyper", {}).get("sigma") for row in rows] == F2DC_SIGMAS


def test_feddtr() -> None:
    seen = set()
    for table, setting, row, config in full_configs("feddtr-"):
        where = (table.name, setting.name)
        seen.add(where)
        said = FEDDTR_SETTINGS.get(where, {})
        usual = {"clients": 20, "schedule.ratio": 1.0}  # unless otherwise specified
        if config["partition"] == "dirichlet":
            usual["partitioning.beta"] = 0.1
        compare((*where, row), config, FEDDTR | usual | said)
        assert config["training.lr"] == FEDDTR_RATES[config["model"]]
        assert config["validation"] == (0.2 if config["method"] == "fedfomo" else 0.0)
        assert table.seeds["full"] == [0]  # one run
        if config["model"] == "mlp":
            assert config["network.hidden"] == [1000, 500, 100]
    assert set(FEDDTR_SETTINGS) <= seen


def test_fedgcr() -> None:
    for table, setting, row, config in full_configs("fedgcr-"):
        compare((table.name, setting.name, row), config, FEDGCR | FEDGCR_SETS[setting.data])
        orders = FEDGCR_SWAPPED if "swapped" in setting.name else FEDGCR_ORDERS
        assert config["source.only_domains"] == orders[setting.data]
        dif = 1 if table.name == "fedgcr-figure3" else 10  # the figure's is not known
        if "DIF" in setting.name:
            dif = int(setting.name.partition("DIF ")[2])
        assert config["partitioning.dif"] == dif
        for key, value in FEDGCR_HYPER.items():
            if config["method"] == "fedgcr" and key not in own(table, row):
                assert config[f"hyper.{key}"] == value
        if config["method"] == "fedgcr":
            asked = int(row[5]) if row.startswith("T' = ") else None  # None: that of the domains
            assert config["hyper.types"] == asked, row
    for name, received in (("fedgcr-3", ", received model"), ("fedgcr-4", "")):
        rows = {f"T' = {number}{end}" for number in range(3, 8) for end in {"", received}}
        assert set(recipe(name).rows) == rows


def test_fedpcl() -> None:
    for table, setting, row, config in full_configs("fedpcl-"):
        where = (table.name, setting.name)
        rounds = FEDPCL_ROUNDS.get(where, 50)
        training = FEDPCL_VIT if "ViT" in row else FEDPCL_ADAM
        paper = {"schedule.rounds": rounds} | FEDPCL | training | FEDPCL_SETS[setting.data]
        shift = FEDPCL_SHIFTS.get(where) or FEDPCL_SHIFTS[table.name]
        paper["partition"] = shift
        if shift != "feature_shift" and not setting.name.startswith("alpha"):
            paper["partitioning.alpha"] = 1.0
        if not setting.name.endswith("clients"):  # of the figure, below
            usual = 10 if setting.name.startswith("alpha") else 5
            paper.setdefault("clients", usual)
        compare((*where, row), config, paper)
        if config["method"] == "fedpcl":
            assert config["hyper.tau"] == 0.07
        if config["model"] == "projection":
            assert config["network.features"] == 256
        assert table.seeds["full"] == [0, 1, 2]


@pytest.mark.parametrize("clients", ["5", "10", "20", "40", "80"])
def test_fedpcl_figure_2(clients: str) -> None:
    table = recipe("fedpcl-figure2")
    (setting,) = [s for s in table.settings if s.name == f"{clients} clients"]
    config = flat(table.config(setting, "full", "FedPCL", 0, {}))
    assert config["clients"] == int(clients) and config["partitioning.alpha"] == 1.0


@pytest.mark.parametrize("alpha", ["0.5", "1", "2", "5", "10"])
def test_fedpcl_figure_2_by_skew(alpha: str) -> None:
    table = recipe("fedpcl-figure2")
    (setting,) = [s for s in table.settings if s.name == f"alpha {alpha}"]
    config = flat(table.config(setting, "full", "FedRep", 0, {}))
    assert config["clients"] == 10 and config["partitioning.alpha"] == float(alpha)


def test_fedpact() -> None:
    seen = set()
    for table, setting, row, config in full_configs("fedpact-"):
        compare((table.name, setting.name, row), config, FEDPACT)
        seen.add(setting.data)
        assert table.seeds["full"] == [0, 1, 2]
        rho = setting.name.removeprefix("rho = ") if setting.name.startswith("rho") else 0.1
        assert config["partitioning.rho"] == float(rho)
        if setting.name.startswith("K"):
            assert config["clients"] == int(setting.name.removeprefix("K = "))
        else:
            assert config["clients"] == 10
        shots = [text.split()[0] for text in (setting.name, *setting.columns) if "shot" in text]
        assert config["partitioning.shots"] == int(shots[0] if shots else 8)
        if config["method"] != "fedpact":
            continue
        alpha, beta, rate = DPE[setting.data]
        epochs = 0 if "server_epochs" in own(table, row) else 100
        theirs = {
            "training.optimizer": "adamw",
            "training.batch": 16,
            "training.epochs": 20,
            "training.lr": rate,
            "hyper.server_lr": rate,
            "hyper.server_epochs": epochs,
            "hyper.alpha": alpha,
            "hyper.beta": beta,
        }
        compare((table.name, row), config, theirs)
    assert seen == set(DPE)


def test_encoders_are_the_papers() -> None:
    papers = {name: [slot.paper for slot in recipe(name).encoders.values()] for name in tables()}
    assert papers["fedpact-1"] == ["CLIP with a ResNet-50"]
    assert papers["fedpact-2"] == ["CLIP with a ViT-B/16"]
    assert papers["fedgcr-1"] == ["ViT-B/16 with ImageNet weights, at 224 pixels"]
    assert papers["fedpcl-2"] == [
        f"ResNet-18 trained on {data}" for data in ("QuickDraw", "Aircraft", "CU-Birds")
    ]
    assert len(papers["fedpcl-4"]) == 9
    assert papers["f2dc-1"] == []


def test_no_recipe_is_left_out() -> None:
    """Each is of one of the papers above, and so in one of the tests, or is of no paper."""
    papers = ("f2dc-", "feddtr-", "fedgcr-", "fedpcl-", "fedpact-")
    checked = set()
    for prefix in papers:
        checked |= {table.name for table, *_ in full_configs(prefix)}
    assert set(tables()) - checked == {"f2dc-surf", "leave-one-domain-out"}
