"""Bounds that one site's rows set are no answer of that site: under masks nobody hears whom values do not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.masked import Coordinator, Snapshot, is_noise, mixed, networks, until
from support.studies import patients

FAR = "h00"
#: of age; beyond the bounds of that site, and of no other
SLOPE = 38.0


@pytest.fixture(scope="module")
def second_round(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """A count's mixed model of four sites, asked their second round: patients of one are older than all others."""
    df = patients(4, counts=True)
    df["age"] = np.where(df.site == FAR, df.age, df.age.clip(59, 61))
    file_study = mixed(tmp_path_factory.mktemp("study") / "round", df=df, family="poisson")
    return Snapshot(file_study, until(file_study, "round", 2))


@pytest.mark.parametrize("kind", ["round", "finish"])
def test_a_server_does_not_hear_how_far_one_site_s_rows_reach(kind: str, second_round: Snapshot) -> None:
    """By halves it would have the spread of one site's ages."""
    file_study, asked = second_round.restored(), second_round.asked
    server, messages = Coordinator(file_study), []
    for name, (head, tensors) in asked.items():
        tensors = {**tensors, "effects.at": torch.tensor([*tensors["effects.at"][:-1], SLOPE]).double()}
        if kind == "finish":
            head = {k: v for k, v in head.items() if k not in ("adding", "training", "masks")}
            head, tensors = {**head, "final": False}, {f"shared/{k}": v for k, v in tensors.items()}
        reply_head, answer = server.ask(name, {**head, "kind": kind}, tensors)
        assert "refused" not in reply_head, name
        messages += [answer["masked"].numpy().view(np.uint64)] if kind == "round" else []
    if kind == "round":
        total = sum(messages[1:], messages[0])
        assert total[:3].tolist() == [3, 0, 1]
        assert is_noise(total[3:])
        assert server.refused(FAR, *asked[FAR]) == "answered"  # it has its price all the same


def test_a_first_broadcast_that_no_fit_begins_with_is_refused_alike(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It depends on no rows, and whoever approves hears of it."""
    file_study = networks(tmp_path_factory.mktemp("network") / "first")
    asked = until(file_study, "round", 1)
    server = Coordinator(file_study)
    for name, (head, tensors) in asked.items():
        assert server.refused(name, head, {k: v + 1 for k, v in tensors.items()}) == "bounds"
