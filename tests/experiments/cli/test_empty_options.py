"""An empty option is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.commands import Call

from hierfl import UserError
from hierfl.experiments.configure import configure


@pytest.mark.parametrize(
    "options",
    [
        ("run", "fedavg", "--data", ""), ("run", "fedavg", "--data="), ("run", "fedavg", "--data-root", ""),
        ("run", "fedavg", "--ood", ""), ("run", "fedavg", "--network", ""), ("run", "fedavg", "--split="),
        ("run", "fedavg", "--out", ""), ("run", "fedavg", "-T", "1", "--device", ""), ("run", "--resume", ""),
        ("tune", "fedavg", "--data", ""), ("ablate", "pfedvem", "--data", ""), ("table", "pfedvem-1", "--data", ""),
        ("run", "mixed-effects", "--formula", ""), ("report", ""), ("run", ""),
    ],
)  # fmt: skip
def test_an_empty_option_is_refused_and_is_not_as_if_it_were_not_said(options: tuple[str, ...], hierfl: Call) -> None:
    code, _, err = hierfl(*options)
    assert code == 2
    assert re.fullmatch(r"error: .*is empty\n", err)
    assert not Path("runs").exists()


def test_an_option_that_is_none_is_named_with_those_that_are() -> None:
    with pytest.raises(UserError, match="unknown run option 'round'; known: .*rounds"):
        configure("fedavg", None, {"round": 3}, {})


def test_an_empty_option_is_refused_by_a_configuration_too() -> None:
    for data, options in (("", {}), (None, {"split": ""}), (None, {"network": ""}), (None, {"ood": ""})):
        with pytest.raises(UserError, match="is empty"):
            configure("fedavg", data, options, {})
