"""Which tables of papers there are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .centroids.variants import NETWORK


@dataclass(frozen=True)
class PaperTable:
    """What a table consists of.

    Attributes:
        about: in words.
        paper, number, split: where its numbers are in published.csv.
        data, clients, methods, seeds: its cells; methods as the paper calls them.
        given: how all of them are run, beside the data set's defaults.
        settings: of all methods that have them.
        exceptions: (run options, settings) of a method that differ.
        on: settings of a method that differ on a data set, {(method, data): settings}.
        variants: methods that are settings of another one, and which.
        accuracy: what of a summary the paper's personal accuracy is.
        note: what a reader should know.
    """

    about: str
    paper: str
    number: str
    data: tuple[str, ...]
    clients: tuple[int, ...]
    methods: tuple[str, ...]
    seeds: int
    given: dict[str, Any] = field(default_factory=dict)
    exceptions: dict[str, tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=dict)
    on: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    note: str = ""
    split: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    variants: dict[str, str] = field(default_factory=dict)
    accuracy: str = "pm_accuracy"


TABLES = {
    "pfedvem-1": PaperTable(
        "Zhu, Ma and Blaschko (CVPR 2023), Table 1: accuracy of personal and global models, %",
        "pfedvem",
        "1",
        ("fashion-mnist", "cifar10", "cifar100", "sun397"),
        (50, 100, 200),
        (
            "local",
            "fedavg",
            "fedprox",
            "scaffold",
            "fedper",
            "fedrep",
            "ifca",
            "perfedavg",
            "pfedme",
            "pfedbayes",
            "pfedvem",
        ),
        5,
        {"validation_fraction": 0.0},
        {"local": ({"rounds": 20}, {"epochs": 1})},
        note="Local trains for 20 epochs (Appendix C). On CIFAR-100 the authors' public code scores personal models on "
        "some of their subclasses only, and the published PM may be such a score.",
    ),
    "pfedvmp-1": PaperTable(
        "Anonymous (pFedVMP), Table 1, Dir(0.3): accuracy of personal models on all clients' test data together, %",
        "pfedvmp",
        "1",
        ("fashion-mnist", "cifar10"),
        (50,),
        (
            "fedavg-ft",
            "fedper",
            "fedrep",
            "fedrod",
            "fedproto",
            "moon",
            "fedcp",
            "gpfl",
            "fedpac",
            "fedpa-ft",
            "fedep-ft",
            "qlsd-ft",
            "pfedgp",
            "pfedbred",
            "pfedvmp",
        ),
        3,
        {
            "validation_fraction": 0.0,
            "participation": 1.0,
            "rounds": 100,
            "evaluate_every": 20,
            "draws": 20,
            "split": "dirichlet:0.3,keep=0.25,redraw",
            "network": NETWORK,
        },
        {
            "fedper": ({}, {"server_lr": 1.0}),
            "fedrep": ({}, {"head_epochs": 1, "server_lr": 1.0}),
            "fedpa-ft": ({}, {"epochs": 2, "burn": 0, "ft_epochs": 10}),
            "fedep-ft": ({}, {"ft_epochs": 10, "sigma": 0.0}),
            "qlsd-ft": ({}, {"batch": 64, "burn": 50, "ft_epochs": 10, "ft_momentum": 0.0}),
            "pfedgp": ({}, {"lr": 0.05, "momentum": 0.9}),
            "gpfl": ({}, {"lam": 0.03}),
            "pfedbred": ({}, {"batch": 20, "lam": 30.0}),
        },
        {("moon", "cifar10"): {"mu": 5.0}, ("pfedgp", "cifar10"): {"steps": 3}},
        note="Published after 1,000 rounds. Steps are the paper's, one pass a round with batches of ten, 0.01 and no "
        "momentum, where a method has such steps (FedPA has two passes, for two samples); all else is as their own "
        "papers or their code have it, nothing was searched (GPFL's lambda is times the square root of the batch size: "
        'public code takes the norm of a whole batch). "-FT" is ten passes of each client on the head.',
        split="dirichlet:0.3",
        settings={"epochs": 1, "lr": 0.01, "batch": 10, "momentum": 0.0},
        variants={"fedpa-ft": "fedpa", "fedep-ft": "fedep", "qlsd-ft": "qlsd"},
        accuracy="pm_accuracy_pooled",
    ),
}
