"""The engine is where the clients are: another one can stand in for the plate, and no one else asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hierfl import Federation
from hierfl.data.batch import Batch
from hierfl.inference import fit
from hierfl.inference.engines.base import Broadcast, ClientStatus, Reports, Scores
from hierfl.inference.engines.plate import PlateEngine
from hierfl.inference.evaluation.fitted import Fitted
from hierfl.inference.method.base import Method
from hierfl.inference.method.schedule import Plan
from hierfl.inference.options import Options
from hierfl.inference.server.exchange import Exchange
from hierfl.inference.state import State, StateForm
from hierfl.metrics.pooling import HISTOGRAM
from hierfl.models import FedPop, PFedVEM, Scaffold
from hierfl.nn.architecture import Architecture


class Recording:
    """The protocol and nothing else, written down; behind it a plate whose clients come in another order."""

    def __init__(self, method: Method, federation: Federation, options: Options) -> None:
        self.__plate = PlateEngine(method, federation, options)
        self.ids: Sequence[str] = self.__plate.ids
        self.task, self.device = self.__plate.task, self.__plate.device
        self.rounds: list[tuple[Broadcast, Plan, Reports]] = []
        self.asked: list[str] = []

    def begin(self, shared: State, initial: State, exchange: Exchange) -> None:
        self.__plate.begin(shared, initial, exchange)

    def template(self) -> Batch:
        return self.__plate.template()

    def has_data(self, split: str) -> bool:
        return self.__plate.has_data(split)

    def round(self, broadcast: Broadcast, plan: Plan) -> Reports:
        turned = Plan(list(plan.reporting)[::-1], list(plan.training)[::-1])
        reports = self.__plate.round(broadcast, turned)
        self.rounds.append((broadcast, plan, reports))
        return reports

    def scores(self, broadcast: Broadcast, split: str, draws: Sequence[int]) -> Scores:
        self.asked.append("scores")
        scores = self.__plate.scores(broadcast, split, draws)
        return Scores(scores.personal, scores.global_model)  # every client's own stay where they are

    def client_summary(self, broadcast: Broadcast) -> State:
        return self.__plate.client_summary(broadcast)

    def fitted(self, broadcast: Broadcast) -> Fitted:
        self.asked.append("fitted")
        return self.__plate.fitted(broadcast)

    leads, every_round = True, False

    def agree(self, wish: bool) -> bool:
        return wish

    def result(self, broadcast: Broadcast, calibrated: State | None = None) -> Fitted:
        return self.fitted(broadcast)

    def form(self) -> StateForm:
        return self.__plate.form()

    def state(self, broadcast: Broadcast) -> State:
        self.asked.append("state")
        return self.__plate.state(broadcast)

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.asked.append("load")
        self.__plate.load(state)

    def digest(self) -> str:
        return self.__plate.digest()


HOW = {"participation": 0.6, "dtype": torch.float64, "progress": False}
METHODS = [(PFedVEM, {}), (Scaffold, {}), (FedPop, {"final_steps": 20, "final_keep": 5})]


@pytest.mark.parametrize(("cls", "settings"), METHODS)
def test_a_fit_asks_its_engine_for_everything(
    cls: type[Method], settings: dict, small: Federation, net: Architecture, tmp_path: Path
) -> None:
    """Rounds, metrics, a checkpoint, what is resumed from it, and the run: the same as from the plate itself."""
    made: list[Recording] = []

    def engine(method: Method, federation: Federation, options: Options) -> Recording:
        made.append(Recording(method, federation, options))
        return made[-1]

    method = cls(net, **settings)
    plain = fit(method, small, rounds=4, **HOW)
    fit(method, small, rounds=2, folder=tmp_path, engine=engine, **HOW)
    other = fit(method, small, rounds=4, folder=tmp_path, resume=True, engine=engine, **HOW)
    for name, value in {**plain.shared, **plain.personal, **plain.fitted.copies}.items():
        assert torch.equal(value, {**other.shared, **other.personal, **other.fitted.copies}[name]), name
    rows = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in run.evaluations if row["round"] != 2]
        for run in (plain, other)
    ]  # round 2 was once the last one, and was evaluated after the final steps
    assert len(rows[0]) == 3
    for row, twin in zip(*rows, strict=True):
        for name, value in row.items():
            if "worst10" in name:  # of sums alone it is read from a histogram
                assert twin[name] == pytest.approx(value, abs=0.5 / HISTOGRAM + 1e-12)
            else:
                assert twin[name] == (pytest.approx(value, abs=1e-7) if "_cv" in name else value), name
    np.testing.assert_array_equal(plain.participation, other.participation)
    assert other.tested is None  # the engine did not send what each client's metrics are
    assert plain.clients.equals(other.clients)
    assert "load" in made[1].asked
    assert [broadcast.round for recording in made for broadcast, _, _ in recording.rounds] == [1, 2, 3, 4]


def test_what_an_engine_is_told_and_says(small: Federation, net: Architecture) -> None:
    """The broadcast holds the state after the last round and whose messages it used; reports say who did what."""
    made: list[Recording] = []

    def engine(method: Method, federation: Federation, options: Options) -> Recording:
        made.append(Recording(method, federation, options))
        return made[-1]

    run = fit(PFedVEM(net), small, rounds=3, engine=engine, **HOW)
    (recorded,) = made
    used = None
    for number, (broadcast, plan, reports) in enumerate(recorded.rounds, 1):
        assert broadcast.round == number
        assert not broadcast.final
        if used is None:
            assert broadcast.used is None
        else:
            assert broadcast.used is not None
            assert broadcast.used.tolist() == used
        assert set(plan.reporting) <= set(plan.training)
        used = [j in set(plan.reporting) for j in range(7)]
        assert (reports.status == ClientStatus.REPORTED).tolist() == used
        assert int(reports.sums.reported) == sum(used)
        assert not reports.diverged.any()
    assert all(torch.equal(v, run.shared[k]) for k, v in run.fitted.shared.items())
    assert sum(r.sums.bytes for _, _, r in recorded.rounds) == run.last()["bytes"]


class Elsewhere(Recording):
    """Of seven clients two are here; of the others it gives sums alone."""

    def scores(self, broadcast: Broadcast, split: str, draws: Sequence[int]) -> Scores:
        scores = super().scores(broadcast, split, draws)
        assert scores.clients is None
        return scores

    def fitted(self, broadcast: Broadcast) -> Fitted:
        whole = super().fitted(broadcast)
        data = whole.federation
        local = dataclasses.replace(
            data, train=data.train[:2], validation=data.validation[:2], test=data.test[:2], ids=data.ids[:2]
        )
        rows = ({k: v[:2] for k, v in values.items()} for values in (whole.personal, whole.copies))
        return Fitted(whole.method, local, whole.shared, *rows, whole.initial, whole.seed)


def test_a_run_of_which_few_clients_are_here(small: Federation, net: Architecture) -> None:
    """What every client did is known of all; predictions and posteriors are of those that are here."""
    plain = fit(PFedVEM(net), small, rounds=3, **HOW)
    run = fit(PFedVEM(net), small, rounds=3, engine=Elsewhere, **HOW)
    assert run.participation.equals(plain.participation)
    assert run.history.equals(plain.history)
    sums = [name for name in run.metrics if name != "seconds" and "worst10" not in name and "_cv" not in name]
    assert run.metrics[sums].equals(plain.metrics[sums])
    assert list(run.clients["client"]) == list(plain.clients["client"])[:2]
    np.testing.assert_allclose(run.clients["nll"], plain.clients["nll"][:2], rtol=1e-12)
    assert run.posterior(draws=3).posterior.sizes["client"] == 2


def test_counts_are_inside_the_sum(small: Federation, net: Architecture) -> None:
    """How many clients diverged is counted where they are, those that were not to report among them."""
    made: list[Recording] = []

    def engine(method: Method, federation: Federation, options: Options) -> Recording:
        made.append(Recording(method, federation, options))
        return made[-1]

    single = {**HOW, "dtype": torch.float32}
    fit(PFedVEM(net, base_lr=1e38), small, rounds=1, engine=engine, **single)
    ((_, plan, reports),) = made[0].rounds
    assert (reports.status == ClientStatus.DIVERGED).any()
    assert int(reports.sums.diverged) == int(reports.diverged.sum()) > int(reports.diverged[list(plan.reporting)].sum())
    assert int(reports.sums.reported) == int((reports.status == ClientStatus.REPORTED).sum()) < len(plan.reporting)
