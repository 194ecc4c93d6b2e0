"""Rows that take a method apart, at full scale: each has what the paper's row says, and no more.

What the papers' rows are is written down here, as read in the papers; everything else about a run
is in `test_papers_numbers.py`.
"""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

import pytest

from fedloom.core.lookup import make
from fedloom.experiments.needs import told
from fedloom.experiments.recipe import recipe
from fedloom.experiments.table import NOTHING
from tests.experiments.test_papers_numbers import full_configs

Row = tuple[str, dict[str, Any]]  # the method, and which of its settings are not the paper's usual

# FedDTR, Table 7: without the intra-domain prior, then without the frozen text encoder too; without
# texts, then without the frozen head too; and each client alone, with texts and without.
FEDDTR_7: dict[str, Row] = {
    "FedDTR": ("feddtr", {}),
    "w.o. IP": ("feddtr", {"prior": "none"}),
    "w.o. Freeze & IP": ("feddtr", {"prior": "none", "frozen_text": False}),
    "w.o. Text": ("feddtr", {"text": "none"}),
    "w.o. Text & Freeze": ("feddtr", {"text": "none", "frozen_head": "none"}),
    "local with text": ("feddtr", {"federated": False}),
    "local": ("local", {}),
}
# Table 6 is about what names say and Table 9 about what reads them, so both read names: through
# one layer, unless the row says otherwise.
FEDDTR_6: dict[str, Row] = dict.fromkeys(
    ("origin", "digits", "alphanumeric"), ("feddtr", {"text": "hash", "text_depth": 1})
)
FEDDTR_9: dict[str, Row] = {
    "CLIP": ("feddtr", {"text": "{clip}", "text_layers": "tower"}),
    "Transformer-tiny": ("feddtr", {"text": "hash", "text_layers": "transformer-tiny"}),
    "10-layer MLP": ("feddtr", {"text": "hash", "text_depth": 10}),
    "5-layer MLP": ("feddtr", {"text": "hash", "text_depth": 5}),
    "1-layer MLP": ("feddtr", {"text": "hash", "text_depth": 1}),
}
# F2DC, Table 3: its modules round four methods; Table 6: its two losses and its weights; Table 7:
# which feature the classifier sees, f not being in the paper.
F2DC_3: dict[str, Row] = {
    name + end: (method + plugin, {})
    for name, method in (
        ("FedAvg", "fedavg"),
        ("FPL", "fpl"),
        ("FedHEAL", "fedheal"),
        ("FDSE", "fdse"),
    )
    for end, plugin in (("", ""), (" + DFD, DFC", "+dfdc"))
}
F2DC_6: dict[str, Row] = {
    "FedAvg": ("fedavg", {}),
    "DaA": ("fedavg+daa", {}),
    "DFD, DaA": ("f2dc", {"lam2": 0.0}),
    "DFC, DaA": ("f2dc", {"lam1": 0.0}),
    "DFD, DFC": ("fedavg+dfdc", {}),
    "DFD, DFC, DaA": ("f2dc", {}),
}
F2DC_7: dict[str, Row] = {
    "f+": ("f2dc", {"use": "robust"}),
    "f-": ("f2dc", {"use": "related"}),
    "f*": ("f2dc", {"use": "corrected"}),
    "f~": ("f2dc", {}),
    "f": ("f2dc", {"use": "plain"}),
}
# FedPCL, Table 5: local losses; Table 6: which prototypes.
FEDPCL_5: dict[str, Row] = {
    "Cross entropy": ("fedpcl", {"loss": "ce"}),
    "Cross entropy + ProtoDist": ("fedpcl", {"loss": "ce+distance"}),
    "Supervised contrastive": ("fedpcl", {"loss": "supcon"}),
    "FedPCL": ("fedpcl", {}),
}
FEDPCL_6: dict[str, Row] = {
    "Global only": ("fedpcl", {"loss": "global"}),
    "Local only": ("fedpcl", {"loss": "local"}),
    "Global and local": ("fedpcl", {"loss": "both"}),
}
# FedGCR, Table 5: plain averaging, its weights by group, its prompts by group, both.
FEDGCR_5: dict[str, Row] = {
    "neither": ("fedavg", {}),
    "FedGR": ("fedavg+fedgr", {}),
    "FedGC": ("fedgc", {}),
    "both": ("fedgcr", {}),
}
# FedPACT, Figure 2: without the text head that the server trains.
FEDPACT_2: dict[str, Row] = {
    "FedPACT-P": ("fedpact", {}),
    "FedPACT-w/o-H": ("fedpact", {"server_epochs": 0}),
}
TABLES = {
    "feddtr-6": FEDDTR_6,
    "feddtr-7": FEDDTR_7,
    "feddtr-9": FEDDTR_9,
    "f2dc-3": F2DC_3,
    "f2dc-6": F2DC_6,
    "f2dc-7": F2DC_7,
    "fedpcl-5": FEDPCL_5,
    "fedpcl-6": FEDPCL_6,
    "fedgcr-5": FEDGCR_5,
    "fedpact-figure2": FEDPACT_2,
}


@pytest.mark.parametrize("name", TABLES)
def test_a_row_leaves_out_what_the_papers_row_does(name: str) -> None:
    papers, seen = TABLES[name], set()
    for table, setting, row, config in full_configs(name):
        if table.name != name:
            continue
        method, changed = papers[row]
        seen.add(row)
        usual = json.loads(json.dumps(make(method, {}).params()))
        for_set = setting.of.get(method, {}).get("hyper", {})  # as DPE's alpha for each data set
        hyper = {key: config[f"hyper.{key}"] for key in usual}
        assert (config["method"], hyper) == (method, usual | for_set | changed), (row, setting.name)
    assert seen == set(papers) == set(recipe(name).rows)


def test_feddtr_reads_texts_as_the_paper_does_or_says_so() -> None:
    """The paper's text encoder is one layer; where a row has free vectors instead, it is said."""
    free = set()
    for table, setting, row, config in full_configs("feddtr-"):
        if config["method"] != "feddtr":
            continue
        usual = {"prior": "trained", "frozen_text": True, "frozen_head": "average"}
        if table.name != "feddtr-7":  # the ablation above
            assert {key: config[f"hyper.{key}"] for key in usual} == usual, (table.name, row)
        said = " ".join(told(table, setting, "full", None, NOTHING))
        if config["hyper.text"] == "embedding":
            free.add(table.name)
            assert "a free vector per class in its place" in said, table.name
        elif config["hyper.text"] == "hash":
            assert "fixed pseudo-random ones of the words" in said, table.name
    assert free >= {"feddtr-1", "feddtr-2", "feddtr-3", "feddtr-7", "feddtr-8"}


def test_feddtr_table_6_has_nonsense_of_the_papers_kind() -> None:
    """Strings of 3 to 5 digits ("8420"), and codes of letters and digits ("h2t56").

    What both look like is tested with the data.
    """
    kinds = {}
    for table, _, row, config in full_configs("feddtr-6"):
        assert table.name == "feddtr-6"
        kinds[row] = config["source.nonsense"]
    assert kinds == {"origin": None, "digits": "digits", "alphanumeric": "alphanumeric"}


def test_f2dc_figures_go_over_grids_round_the_papers_choice() -> None:
    """The text names tau 0.06 and its range, alpha 1 and beta 0.4, lambda 1 0.8 and lambda 2 1."""
    taus = [row["hyper"]["cos_tau"] for row in recipe("f2dc-figure6").rows.values()]
    assert taus == sorted(taus) and {0.05, 0.06, 0.07} <= set(taus)
    for name, keys, chosen in (
        ("f2dc-figure7", ("by_size", "by_gap"), (1.0, 0.4)),
        ("f2dc-figure8", ("lam1", "lam2"), (0.8, 1.0)),
    ):
        table = recipe(name)
        points = [tuple(row["hyper"][key] for key in keys) for row in table.rows.values()]
        axes = [sorted({point[i] for point in points}) for i in (0, 1)]
        assert points == list(product(*axes)) and len(axes[0]) == len(axes[1]) == 3
        assert chosen == (axes[0][1], axes[1][1])  # in the middle
        for label, point in zip(table.rows, points, strict=True):
            assert [float(number) for number in re.findall(r"\d+\.\d+", label)] == list(point)
        (setting,) = table.settings
        assert any("are drawn" in line for line in told(table, setting, "full", None, NOTHING))


def test_f2dc_says_what_comes_from_its_code() -> None:
    """The paper names neither image sizes nor augmentation."""
    for table, setting, *_ in full_configs("f2dc-"):
        said = " ".join(told(table, setting, "full", None, NOTHING))
        size = setting.paper.given["source"]["size"]
        assert f"neither image size nor augmentation: {size} pixels" in said, table.name


@pytest.mark.parametrize("name", ["fedpcl-5", "fedpcl-6"])
def test_fedpcl_ablations_have_three_backbones_and_five_clients(name: str) -> None:
    for table, _, _, config in full_configs(name):
        assert config["encoder"] == "{quickdraw},{aircraft},{birds}" and config["clients"] == 5
        assert table.seeds["full"] == [0, 1, 2]
