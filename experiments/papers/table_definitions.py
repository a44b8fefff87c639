"""Which tables of papers there are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PaperTable:
    """What a table consists of.

    Attributes:
        about: in words.
        paper, number: where its numbers are in published.csv.
        data, clients, methods, seeds: its cells.
        given: how all of them are run, beside the data set's defaults.
        exceptions: (run options, settings) of a method that differ.
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
    note: str = ""


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
        "Local trains for 20 epochs (Appendix C). On CIFAR-100 the authors' public code scores personal models on some "
        "of their subclasses only, and the published PM may be such a score.",
    ),
}
