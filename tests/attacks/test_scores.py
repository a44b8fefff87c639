"""Scores of rows that are held out, at values of the coordinator's choice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from support.attacks.coordinator import Coordinator, initial, plain
from support.attacks.gated import Hospital
from support.attacks.hospitals import hospital, table_study

from hierfl.data.arrays import test_rows as held_out
from hierfl.inference.state import State

FORMULA = "y ~ age + sex + (1 | site)"


def study(folder: Path, test: float = 0.2) -> tuple[Path, np.ndarray]:
    """A gaussian study, and responses of north's test rows in order."""
    df = hospital(300, lone=False)
    df["y"] = np.random.default_rng(0).normal(100, 10, 300).round(2)
    path = table_study(folder, FORMULA, df, "gaussian", test=test)
    return path, np.sort(df.y.to_numpy()[held_out(np.full(300, "north"), test, 0)])


def excess(site: Coordinator, start: State, at: list[float]) -> float:
    """Twice the sum of what test responses are above a value: the CRPS of narrow predictions is a sum of distances.

    Args:
        site: who is asked.
        start: a broadcast.
        at: values of earlier questions, to which this one is added last.
    """
    beta = torch.zeros_like(start["effects.beta"])
    beta[0] = at[-1]
    narrow = {
        "effects.beta": beta,
        "effects.root": start["effects.root"] * 1e-12,
        "effects.log_noise": start["effects.log_noise"] * 0 - 20.0,
    }
    sent = {f"shared/{name}": value for name, value in {**start, **narrow}.items()}
    scores = site.ask("scores", sent, len(at), counted=1, split="test", draws=[0], final=False)
    assert scores is not None
    return float(scores["global|crps"])


def test_a_gaussian_studys_scores_read_the_largest_response(tmp_path: Path) -> None:
    """Of a site without a gate, from fewer answers than the budget of a study; and the next one likewise."""
    path, responses = study(tmp_path)
    site = plain(tmp_path / "site", path, "north", tmp_path / "north.csv")
    assert site.prepared()
    start, n, asked = initial(site.study, site.totals), len(responses), [1000.0]
    assert site.round(1, start) is not None
    offset = excess(site, start, asked) - n * 1000.0  # all responses are below
    low, high, points = 0.0, 80.0, []
    while len(points) < 2:
        for at in ((low + high) / 2, (low + high) / 2 + 1e-3):
            asked.append(at)
            points.append((at, (excess(site, start, asked) - n * at - offset) / 2))
        (at, sum_above), (_, next_above) = points[-2:]
        count = round((sum_above - next_above) / 1e-3)
        if count != 1:
            low, high = (at, high) if count else (low, at)
            points.clear()
    assert len(asked) <= 32
    centre = float(torch.divide(*site.totals[1]["centre"]))
    assert np.isclose(sum(points[0]) + centre, responses[-1], atol=1e-4)


def test_a_study_that_holds_rows_out_needs_the_sites_word(north: Hospital, tmp_path: Path) -> None:
    for test, failing in ((0.2, ["points"]), (0.0, [])):
        folder = tmp_path / str(test)
        folder.mkdir()
        path, _ = study(folder, test)
        assert north.proposal(north.study(path), folder / "north.csv", allow=()).failing == failing
        assert north.proposal(north.study(path), folder / "north.csv", allow=("points",)).failing == []
