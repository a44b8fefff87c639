"""Sums in fixed point, as masks open them: the same bits on a plate, by ranks and at sites, and no other estimates."""

from __future__ import annotations

import doctest
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from support.calibrated import HOW as CALIBRATED
from support.calibrated import made
from support.engine_cases import CASES, SPOILED, how_of, keep, kept, named, plate, spoiled_messages
from support.federations import blobs
from support.masked_fits import MaskedFits
from support.methods import network_for
from support.once import Once
from support.paths import ROOT
from support.ranks import processes
from support.representatives import of_all
from support.sites import Sites

from hierfl.inference import Run, fit
from hierfl.inference.engines.base import ClientStatus
from hierfl.inference.engines.remote.wire import header
from hierfl.inference.options import Options
from hierfl.inference.server.exchange import Exchange
from hierfl.inference.state import State
from hierfl.models import FedAvg, FedRep, PFedVEM

#: what masks cannot have
CODED = ("qlsd", "fedpop-quantise:4", "fedpop-sparsify:0.5")
MASKABLE = [name for name in CASES if name not in CODED]


#: of these, messages of each kind: means and counts, of classes and clusters, increments, heights
QUICK = ["fedproto", "fola", "ifca", "scaffold", "regression-clients"]


def masked_plate(name: str) -> Run:
    """A case's fit on a plate, with masks, messages that are rejected and rounds that are skipped."""
    method, federation = CASES[name]()
    with spoiled_messages():
        return fit(method, named(federation), masked=True, **how_of(method))


def same_values(first: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> None:
    """To the bit."""
    assert first.keys() == other.keys()
    for name, value in first.items():
        assert torch.equal(other[name], value), name


@pytest.mark.parametrize("name", of_all(MASKABLE, QUICK, str))
def test_sites_with_masks_have_the_bits_of_the_plate(name: str, once: Once, tmp_path: Path) -> None:
    """Partial participation, rejected messages and skipped rounds; without masks the estimates are the same."""
    run = masked_plate(name)
    method, federation = CASES[name]()
    how = {k: v for k, v in how_of(method).items() if k != "progress"}
    with spoiled_messages():
        sites = Sites(method, named(federation), tmp_path, new_clients=True, masked=True, **how)
        site_run = sites.fit()
    same_values(run.shared, site_run.shared)
    same_values(run.personal, sites.values("personal"))
    same_values(run.fitted.copies, sites.values("copies"))
    for row, twin in zip(run.evaluations, site_run.evaluations, strict=True):
        for key in row.keys() - {"seconds"}:
            if key.startswith("gm_"):  # the plate has the pooled examples
                assert (row[key] is None) == (twin[key] is None)
            else:
                assert row[key] == twin[key] or (np.isnan(row[key]) and np.isnan(twin[key])), key
    if how["participation"] == 1:  # with masks three are drawn at least
        values, _ = kept(once(f"plate-{name}", plate([name])) / name)
        for key, value in run.shared.items():
            torch.testing.assert_close(value, values[f"shared/{key}"], rtol=1e-9, atol=1e-9)


@pytest.mark.cpu(12, "two processes that import torch, and some aggregation rules")
@pytest.mark.slow
@pytest.mark.parametrize("names", [["fedproto", "fola"], ["mixed-gaussian", "regression-clients"]])
def test_two_ranks_have_the_bits_of_the_plate(names: list[str], tmp_path: Path) -> None:
    script = str(ROOT / "tests" / "support" / "rank_fits.py")
    started = processes(2, script, str(tmp_path), "masked", *names)
    errors = [process.communicate()[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0], errors[0][-2000:]
    for name in names:
        keep(masked_plate(name), tmp_path / "plate")
        (values, about), (other, said_of) = kept(tmp_path / "plate"), kept(tmp_path / name)
        same_values(values, other)
        assert about["status"] == said_of["status"]
        rows = [[{k: v for k, v in row.items() if k[:2] == "pm"} for row in of["rows"]] for of in (about, said_of)]
        assert json.dumps(rows[0]) == json.dumps(rows[1])


def test_groups_add_up_to_the_same(tmp_path: Path) -> None:
    """Six sites in two groups: sums of both are those of one plate in groups, whichever the engine."""
    federation = blobs([9, 7, 5, 14, 8, 6])
    method = PFedVEM(network_for(PFedVEM, federation))
    how = {"rounds": 2, "masked": True, "mask_groups": 2, "chunk": 1, "dtype": torch.float64, "draws": 2}
    run = fit(method, federation, progress=False, **how)
    sites = Sites(method, federation, tmp_path, **how)
    same_values(run.shared, sites.fit().shared)
    ungrouped = fit(method, federation, progress=False, **{**how, "mask_groups": 0})
    for name, value in ungrouped.shared.items():
        torch.testing.assert_close(run.shared[name], value, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("spoilt", "groups", "counts"), [((0, 1), 0, (1, 2)), ((0,), 2, (0, 3))])
def test_too_few_messages_change_nothing(spoilt: Any, groups: int, counts: tuple[int, int], tmp_path: Path) -> None:
    """Two of four messages are left, or two of a group of three: a plate and sites skip the round, or the group."""
    federation = named(blobs([9, 7, 5, 14, 8, 6][: 6 if groups else 4]))
    method = FedAvg(network_for(FedAvg, federation))
    how = {"rounds": 1, "masked": True, "mask_groups": groups, "chunk": 1, "dtype": torch.float64}
    with mock.patch.dict(SPOILED, {1: spoilt}, clear=True), spoiled_messages():
        run = fit(method, federation, progress=False, **how)
        site_run = Sites(method, federation, tmp_path / "sites", **how).fit()
        runs = (
            [run, site_run]
            if groups
            else [
                run,
                site_run,
                MaskedFits(
                    method, federation, tmp_path, how="shares", **{k: v for k, v in how.items() if k != "masked"}
                ).fit(),
            ]
        )
    for result in runs:
        same_values(run.shared, result.shared)
        assert (result.evaluations[-1]["skipped"], result.evaluations[-1]["rejected"]) == counts


def test_a_robust_rule_compares_groups(tmp_path: Path) -> None:
    """Nine clients in three groups, one of which holds a liar: the median of the groups stays where it was."""
    federation = blobs([9, 7, 5, 14, 8, 6, 9, 7, 5])
    method = FedAvg(network_for(FedAvg, federation))
    how = {"rounds": 1, "masked": True, "mask_groups": 3, "chunk": 1, "dtype": torch.float64}

    def lying(run: Any) -> Run:
        real = Exchange.messages

        def messages(self: Exchange, chunk: Any) -> dict[str, State]:
            sent = real(self, chunk)
            rows = [row for row, j in enumerate(chunk.clients) if chunk.federation.ids[j] == federation.ids[0]]
            for message in sent.values():
                for key, value in message.items():
                    if key != "weight":
                        value[rows] *= 1e4
            return sent

        with mock.patch.object(Exchange, "messages", messages):
            return run()

    honest = fit(method, federation, progress=False, **how)
    plain = lying(lambda: fit(method, federation, progress=False, **how))
    robust = lying(lambda: fit(method, federation, progress=False, robust="median", **how))
    sites = lying(Sites(method, federation, tmp_path, robust="median", **how).fit)
    same_values(robust.shared, sites.shared)
    far = {
        name: max(float((run.shared[k] - v).abs().max()) for k, v in honest.shared.items())
        for name, run in (("plain", plain), ("robust", robust))
    }
    assert far["robust"] < 0.5 < 10 < far["plain"]


def test_a_missing_site_voids_a_round_of_all_and_not_one_over_survivors(tmp_path: Path) -> None:
    federation = blobs([9, 7, 5, 14])
    method = FedAvg(network_for(FedAvg, federation))
    how = {"rounds": 3, "masked": True, "chunk": 1, "dtype": torch.float64}
    runs = {}
    for mode in ("whole", "shares"):
        sites = Sites(method, federation, tmp_path / mode, **how)
        sites.mode = mode

        def ask(requests: Mapping[str, bytes], sites: Sites = sites) -> dict[str, bytes]:
            heads = {name: header(request) for name, request in requests.items()}
            away = [name for name, head in heads.items() if (head["kind"], head["round"]) == ("round", 2)][1:2]
            return sites.ask({name: request for name, request in requests.items() if name not in away})

        runs[mode] = sites.fit(ask)
        values = runs[mode].participation.to_numpy()[1].tolist()
        reported, gone = int(ClientStatus.REPORTED), int(ClientStatus.REJECTED)
        assert values == ([gone] * 4 if mode == "whole" else [reported, gone, reported, reported])
    assert runs["whole"].evaluations[-1]["skipped"] == 1
    assert runs["shares"].evaluations[-1]["skipped"] == 0


@pytest.mark.cpu(16, "every model of the page")
def test_the_tutorial_prints_the_same_digits_with_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Options.__post_init__

    def masked(options: Options) -> None:
        object.__setattr__(options, "masked", True)
        plain(options)

    monkeypatch.setattr(Options, "__post_init__", masked)
    monkeypatch.chdir(tmp_path)
    results = doctest.testfile(
        str(ROOT / "docs" / "mixed-tutorial.md"), module_relative=False,
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
    )  # fmt: skip
    assert results.attempted > 20
    assert not results.failed


class Killed(Exception):
    """The server's process has ended."""


@pytest.mark.cpu(8, "two fits of five sites with keys, shares and signatures")
@pytest.mark.parametrize("how", [pytest.param("whole", marks=pytest.mark.slow), "shares"])
def test_masks_cancel_also_after_kills(how: Any, tmp_path: Path) -> None:
    """A plate's bits: of a fit with clients that do not report, and of one whose server and sites are killed."""
    federation = named(blobs([9, 7, 5, 14, 8]))
    method = FedRep(network_for(FedRep, federation))
    few = {"participation": 0.7, "quorum": 3} if how == "shares" else {"quorum": 5}
    options = {"rounds": 3, "chunk": 1, "dtype": torch.float64, "evaluate_every": 2, **few}
    with spoiled_messages():
        run = fit(method, federation, progress=False, masked=True, **options)
        sites = MaskedFits(method, federation, tmp_path / "one", how=how, **options)
        site_run = sites.fit()
        killed, moments = MaskedFits(method, federation, tmp_path / "two", how=how, **options), [9, 14, 5]

        def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
            moments[0] -= 1
            answers = killed.ask(requests)
            if moments[0] == 0:
                moments.pop(0)
                for name in federation.ids[:3]:
                    killed.restart(name)
                raise Killed
            return answers

        again, done = None, False
        for _ in range(5):
            try:
                again = killed.fit(ask if len(moments) > 1 else None, folder=tmp_path / "server", resume=done)
                break
            except Killed:
                done = (tmp_path / "server" / "checkpoint.json").is_file()
    assert again is not None
    for other, their in ((site_run, sites), (again, killed)):
        same_values(run.shared, other.shared)
        same_values(run.personal, their.values("personal"))
        assert other.evaluations[-1]["pm_nll"] == run.evaluations[-1]["pm_nll"]


@pytest.mark.cpu(4, "a calibration by every site")
def test_a_calibration_is_that_of_the_plate(tmp_path: Path) -> None:
    """Temperature, threshold and test metrics: three of five clients have validation data, which are enough."""
    method, federation = made()
    run = fit(method, federation, progress=False, masked=True, **CALIBRATED)
    site_run = Sites(method, federation, tmp_path, masked=True, **CALIBRATED).fit()
    plain = fit(method, federation, progress=False, **CALIBRATED)
    assert run.calibration
    assert site_run.calibration
    assert plain.calibration
    assert json.dumps(run.calibration.numbers) == json.dumps(site_run.calibration.numbers)
    for name, value in plain.calibration.numbers.items():
        assert run.calibration.numbers[name] == pytest.approx(value, rel=1e-6, abs=2e-3)
