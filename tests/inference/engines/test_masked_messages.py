"""What masks refuse, what is known of single messages, and numbers that are none."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine_cases import named, spoiled_messages
from support.federations import blobs
from support.methods import network_for
from support.mixed import table
from support.sites import Sites

from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError
from hierfl.inference import fit
from hierfl.inference.engines.base import ClientStatus
from hierfl.inference.engines.fixed import added, encoded, marked, unmarked
from hierfl.inference.engines.remote.wire import Unreadable
from hierfl.inference.messages.fixed_point import FixedPoint
from hierfl.inference.messages.form import Field
from hierfl.inference.messages.opened import clamped
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import FedAvg, FedPAC, FedPop, MixedEffects
from hierfl.models.mixed_effects.model.arithmetic import IMPOSSIBLE


def test_what_is_not_known_of_single_messages_is_not_invented(tmp_path: Path) -> None:
    """One message of four is rejected, at its site: the server knows how many, and says so; the fit goes on."""
    federation = named(blobs([9, 7, 5, 14]))
    method = FedAvg(network_for(FedAvg, federation))
    how = {"rounds": 2, "masked": True, "chunk": 1, "dtype": torch.float64}
    sites = Sites(method, federation, tmp_path, **how)
    with spoiled_messages():
        run = sites.fit(folder=tmp_path / "server")
    first, second = run.participation.to_numpy()
    assert first.tolist() == [ClientStatus.REPORTED] * 4
    assert second.tolist() == [ClientStatus.UNKNOWN] * 4
    assert run.evaluations[-1]["rejected"] == 1
    assert run.evaluations[-1]["skipped"] == 0
    with spoiled_messages():
        assert fit(method, federation, progress=False, **how).evaluations[-1]["rejected"] == 1
    more = dataclasses.replace(sites.options, rounds=3)
    sites.options = more
    for name in sites.own:
        sites.restart(name)
    again = sites.fit(folder=tmp_path / "server", resume=True)
    assert again.evaluations[-1]["rejected"] >= 1  # of a round that a checkpoint remembers


@pytest.mark.parametrize(
    ("method", "settings", "options", "line"),
    [
        (FedPAC, {}, {}, "messages of .* are looked at one by one, and masks open sums"),
        (FedPop, {"compress": "quantise:4"}, {}, "are compressed, and such bytes do not add up: compress='none'"),
        (FedAvg, {}, {"robust": "median"}, "compares messages, and masks show the server their sum alone: mask_groups"),
        (FedAvg, {}, {"mask_groups": 2}, "leaves a group of 2 of 4 clients, and 3 are needed: at most 1"),
        (FedAvg, {}, {"mask_groups": 1, "participation": 0.5}, "mask_groups needs participation=1"),
    ],
)  # fmt: skip
def test_what_masks_cannot_have_is_refused_in_one_line(
    method: Any, settings: dict, options: dict, line: str, tmp_path: Path
) -> None:
    federation = blobs([9, 7, 5, 14])
    made = method(network_for(method, federation), **settings)
    with pytest.raises(UserError, match=line):
        fit(made, federation, rounds=1, masked=True, **options)
    with pytest.raises(UserError, match=f"{line}|replies|single clients|sites hear one"):
        Sites(made, federation, tmp_path, rounds=1, masked=True, **options)


def test_two_clients_and_cross_products_have_no_masks() -> None:
    two = blobs([9, 7])
    with pytest.raises(UserError, match="masks need at least 3 clients, not 2"):
        fit(FedAvg(network_for(FedAvg, two)), two, rounds=1, masked=True)
    federation, design = from_formula(table(5), "y ~ x + (1 | site)")
    with pytest.raises(UserError, match="one_round=False"):
        fit(MixedEffects(design, one_round=True), federation, rounds=3, masked=True)


def test_a_round_has_three_messages_or_none() -> None:
    """Of a sum over fewer each knows too much: three are drawn at least, and a plan with fewer is refused at a site."""
    federation = blobs([9, 7, 5, 14, 8])
    ready = Fit(
        FedAvg(network_for(FedAvg, federation)), federation, Options(rounds=12, participation=0.4, masked=True)
    )  # fmt: skip
    with torch.no_grad():
        for _ in range(12):
            ready.step()
    assert min((status == ClientStatus.REPORTED).sum() for status in ready.journal.status) >= 3


def test_impossible_heights_stay_impossible() -> None:
    """One client's height is none: the sum says so, and heights beside it keep their digits."""
    field, sites = Field((3,), torch.float64, impossible=-IMPOSSIBLE), 10
    fixed = FixedPoint.for_dtype(torch.float64)
    rng = torch.Generator().manual_seed(0)
    heights = -1e4 * torch.rand((sites, 3), generator=rng, dtype=torch.float64)
    heights[3, 1], heights[5, 2] = IMPOSSIBLE, -1e60
    sums = fixed.decode(fixed.encode(clamped(heights, field, sites), sites).sum(1), sites)
    torch.testing.assert_close(sums[0], heights[:, 0].sum(), rtol=1e-12, atol=0)
    assert (sums[1:] <= IMPOSSIBLE).all()
    assert sums.isfinite().all()
    assert clamped(torch.tensor([torch.nan, torch.inf, 1.0]), field, sites).isfinite().tolist() == [False, False, True]


def test_a_metric_that_is_no_number_is_none_in_the_sum() -> None:
    first = {"0|nll": torch.tensor(3.0, dtype=torch.float64), "0|crps": torch.tensor([torch.nan], dtype=torch.float64)}
    other = {"0|nll": torch.tensor(torch.inf, dtype=torch.float64), "0|crps": torch.ones(1, dtype=torch.float64)}
    parts = [marked(part, 3) for part in (first, other)]
    total = unmarked({name: parts[0][name] + parts[1][name] for name in parts[0]})
    assert total["0|nll"] == torch.inf
    assert total["0|crps"].isnan().all()


def test_metrics_of_many_clients_add_up_as_those_of_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """In groups of any size, with numbers that are none, too large, or in one client's part alone."""
    nothing = {"0|nll": torch.zeros((), dtype=torch.float64), "0|bins": torch.zeros((3, 2), dtype=torch.float64)}
    numbers = torch.Generator().manual_seed(0)
    parts = [{k: torch.randn(v.shape, generator=numbers, dtype=v.dtype) for k, v in nothing.items()} for _ in range(7)]
    parts[2]["0|nll"].fill_(torch.nan)
    parts[3]["0|bins"][1, 1] = torch.inf
    parts[6]["0|bins"][0, 0] = 1e30
    encodings = [encoded(marked(part, 7), 7) for part in parts]
    for group in (1, 3, 256):
        monkeypatch.setattr("hierfl.inference.engines.fixed.AT_ONCE", group)
        total = added(parts, nothing, 7)
        assert set(total) == set(encodings[0])
        for name, value in total.items():
            assert torch.equal(value, torch.stack([digits[name] for digits in encodings]).sum(0)), (group, name)


def test_what_one_or_two_have_is_neither_scored_nor_calibrated(tmp_path: Path) -> None:
    federation = blobs([40, 6, 5, 50], validation=0.3)
    few = dataclasses.replace(
        federation, validation=[v if j in (0, 3) else v[:0] for j, v in enumerate(federation.validation)]
    )
    method, how = FedAvg(network_for(FedAvg, few)), {"rounds": 1, "masked": True, "dtype": torch.float64, "chunk": 1}
    for run in (fit(method, few, progress=False, **how), Sites(method, few, tmp_path / "sites", **how).fit()):
        (row,) = [row for row in run.evaluations if row["split"] == "validation"]
        assert row["pm_nll"] is None
        assert row["gm_nll"] is None
    line = "2 of 4 clients have validation examples, and masks need 3"
    with pytest.raises(UserError, match=line):
        fit(method, few, progress=False, calibrate="temperature", **how)
    with pytest.raises(UserError, match=line):
        Sites(method, few, tmp_path / "more", calibrate="temperature", **how).fit()


def test_a_server_does_not_choose_who_reports(tmp_path: Path) -> None:
    """Sums over four and over three of them would differ by one site's message."""
    federation = named(blobs([9, 7, 5, 14, 6, 8]))
    method = FedAvg(network_for(FedAvg, federation))
    for participation, others in ((1.0, slice(0, 4)), (0.6, slice(0, 6))):
        folder = tmp_path / str(participation)
        sites = Sites(method, federation, folder, masked=True, participation=participation, rounds=3)
        part = next(iter(sites.sites.values())).part
        assert part is not None
        planned = sorted(part._planned(2))
        assert (len(planned) == 6) == (participation == 1)
        part.adds({"kind": "round", "round": 2, "adding": planned})
        for names in (sorted(federation.ids)[others], sorted(federation.ids)[:3]):
            with pytest.raises(Unreadable, match="others are to report"):
                part.adds({"kind": "round", "round": 2, "adding": names})
