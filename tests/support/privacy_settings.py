"""Settings of the fits of docs/privacy-networks.md, and the candidates among which they were chosen."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pandas as pd
from support.paths import ROOT


class Setting(NamedTuple):
    """How one method is fitted.

    Attributes:
        settings: the method's.
        rounds: of the fit.
    """

    settings: dict[str, Any]
    rounds: int

    @property
    def text(self) -> str:
        """As a table names it."""
        return json.dumps({**self.settings, "rounds": self.rounds})


#: method, where noise is added, clients
Case = tuple[str, str, int]

#: all rows in each step
ALL = 100_000
#: largest norms, of a row's gradient and of a client's change
CLIP = {"site": 0.5, "client": 1.0}


def _full(rounds: int, **settings: Any) -> Setting:
    """Steps of all rows, without momentum: few, so that each has a good part of the budget."""
    once = {"epochs": 1, "batch": ALL} if "lr" in settings else {"head_epochs": 1, "base_epochs": 1, "base_batch": ALL}
    return Setting({**settings, **once, "momentum": 0.0}, rounds)


def _vem(rounds: int, base_lr: float, head_lr: float = 0.01, **more: Any) -> Setting:
    return Setting({"head_lr": head_lr, "base_lr": base_lr, "sigma_0": 1.0, **more}, rounds)


_AVG = {"batch": 10, "epochs": 2}
#: by case; with unit "none" those of plain fits
SETTINGS: dict[Case, Setting] = {
    ("fedavg", "none", 20): Setting({"lr": 0.1, **_AVG}, 30),
    ("fedavg", "none", 200): Setting({"lr": 0.1, **_AVG}, 30),
    ("fedavg", "site", 20): _full(60, lr=3.0),
    ("fedavg", "site", 200): _full(30, lr=1.0),
    ("fedavg", "client", 20): Setting({"lr": 0.2, **_AVG}, 10),
    ("fedavg", "client", 200): Setting({"lr": 0.2, **_AVG}, 40),
    ("pfedvem", "none", 20): _vem(30, 0.005),
    ("pfedvem", "site", 20): _full(30, head_lr=0.05, base_lr=0.2, sigma_0=1.0),
    ("pfedvem", "client", 20): _vem(10, 0.02),
}

_SHORT = {"head_epochs": 5, "base_epochs": 1, "base_batch": 20}
_SMALL = {"batch": 20, "epochs": 1}
#: of digits with two hundred clients and Fashion-MNIST with a thousand: what was tried, see :func:`chosen`
CANDIDATES: dict[Case, list[Setting]] = {
    ("pfedvem", "none", 200): [_vem(30, lr) for lr in (0.005, 0.02)],
    ("pfedvem", "client", 200): [_vem(30, lr) for lr in (0.005, 0.02, 0.1)],
    ("pfedvem", "site", 200): [
        _full(30, head_lr=head, base_lr=base, sigma_0=1.0)
        for head, base in ((0.05, 0.05), (0.05, 0.2), (0.05, 0.5), (0.01, 0.05), (0.01, 0.2))
    ],
    ("fedavg", "none", 1000): [Setting({"lr": lr, **_SMALL}, 20) for lr in (0.1, 0.3)],
    ("fedavg", "client", 1000): [Setting({"lr": lr, **_SMALL}, n) for lr, n in ((0.1, 20), (0.3, 20), (0.3, 10))],
    ("fedavg", "site", 1000): [_full(20, lr=lr) for lr in (1.0, 3.0)],
    ("pfedvem", "none", 1000): [_vem(20, lr, **_SHORT) for lr in (0.02, 0.1, 0.005)],
    ("pfedvem", "client", 1000): [_vem(20, lr, **_SHORT) for lr in (0.02, 0.1, 0.005)],
    ("pfedvem", "site", 1000): [
        _full(20, head_lr=head, base_lr=base, sigma_0=1.0) for head, base in ((0.05, 0.2), (0.05, 1.0), (0.2, 0.2))
    ],
}  # fmt: skip
#: of each candidate, how good it was on a part of the training images
TRIED = ROOT / "experiments" / "results" / "privacy" / "networks-settings.csv"


def chosen(case: Case) -> Setting:
    """The settings of a case: of candidates that of the most accurate personal models, the first of several.

    Raises:
        ValueError: where candidates were not all tried.
    """
    if case in SETTINGS:
        return SETTINGS[case]
    method, unit, clients = case
    tried = pd.read_csv(TRIED)
    rows = tried[(tried.method == method) & (tried.unit == unit) & (tried.clients == clients)]
    if list(rows.setting) != [setting.text for setting in CANDIDATES[case]]:
        raise ValueError(f"the candidates of {case} were not all tried: make {TRIED.name} first")
    return CANDIDATES[case][int(rows.pm_accuracy.to_numpy().argmax())]
