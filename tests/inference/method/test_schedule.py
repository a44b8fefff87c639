"""Schedules: who trains, who reports, and when what was trained counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.rounds import Messages, intercepted

from hierfl import Federation, UserError
from hierfl.inference.engines.base import Broadcast
from hierfl.inference.method.schedule import ABSENT, Absent, Schedule
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import FedPer, Scaffold
from hierfl.nn.architecture import Architecture

REPORTING, CLIENTS = [1, 4], 6


@pytest.mark.parametrize("absent", ABSENT)
@pytest.mark.parametrize("evaluated", [False, True])
@pytest.mark.parametrize("personal", [False, True])
def test_a_plan_is_two_sets_of_clients(absent: Absent, evaluated: bool, personal: bool) -> None:
    """Those who report train; the others where that changes what is their own, and the schedule lets them."""
    plan = Schedule(absent).plan(REPORTING, CLIENTS, evaluated=evaluated, personal=personal)
    assert list(plan.reporting) == REPORTING
    everyone = personal and {"train": True, "catch-up": evaluated, "freeze": False}[absent]
    assert list(plan.training) == (list(range(CLIENTS)) if everyone else REPORTING)


@pytest.mark.parametrize("asked", ABSENT)
@pytest.mark.parametrize("declared", ABSENT)
def test_who_fits_can_only_forbid_more(declared: Absent, asked: Absent) -> None:
    merged = Schedule(declared, commit="if-used").at_least(asked)
    assert merged.commit == "if-used"
    for evaluated in (False, True):
        allowed = [
            set(schedule.plan(REPORTING, CLIENTS, evaluated=evaluated, personal=True).training)
            for schedule in (merged, Schedule(declared), Schedule(asked))
        ]
        assert allowed[0] == allowed[1] & allowed[2]


@pytest.mark.parametrize("wrong", [{"absent": "sleep"}, {"commit": "never"}, {"final_when": "begin"}])
def test_values_that_a_schedule_does_not_know_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"unknown value of a schedule's {next(iter(wrong))}"):
        Schedule(**wrong)


def test_final_steps_come_at_the_end_or_before_every_evaluation() -> None:
    steps: Any = [object()]
    for when, expected in (("end", [False, False, True]), ("evaluation", [True, True, True])):
        schedule = Schedule(final_steps=steps, final_when=when)  # type: ignore[arg-type]
        assert [schedule.is_final(number, 3) for number in (1, 2, 3)] == expected
    assert not Schedule().is_final(3, 3)


def test_what_counts_if_used_waits_for_the_next_broadcast(small: Federation, net: Architecture) -> None:
    """A client whose message is refused learns of it when the next round begins, or the run ends; the others keep."""
    ready = Fit(Scaffold(net), small, Options(rounds=2, dtype=torch.float64))
    store = ready.engine.store

    def refused(messages: Messages, clients: Any) -> Messages:
        messages["w"]["w"][clients.index(3)] = torch.nan
        return messages

    with intercepted(refused):
        ready.step()
    assert store.personal["c_j"].abs().amax(1).bool().all()  # nobody has said anything yet
    assert ready.used is not None
    assert ready.used.tolist() == [j != 3 for j in range(7)]
    ready.step()
    assert store.personal["c_j"][3].any()
    before = {k: v.clone() for k, v in store.personal.items()}
    ready.fitted()
    assert all(torch.equal(store.personal[k], v) for k, v in before.items())  # all of round 2 counts
    with intercepted(refused):
        ready.step()  # the last of them: what is made of it is told at the end of the run
    assert not torch.equal(store.personal["c_j"][3], before["c_j"][3])
    last = ready.run(progress=False).personal["c_j"]
    assert torch.equal(last[3], before["c_j"][3])
    assert not torch.equal(last[4], before["c_j"][4])
    assert torch.allclose(ready.state.shared["c"], last.mean(0), rtol=1e-8, atol=1e-12)


def test_a_checkpoint_holds_what_counts(small: Federation, net: Architecture) -> None:
    """Also after a round that is not evaluated: who goes on from it has heard whose messages were used."""
    ready = Fit(Scaffold(net), small, Options(rounds=9, evaluate_every=5, dtype=torch.float64))

    def refused(messages: Messages, clients: Any) -> Messages:
        messages["w"]["w"][clients.index(3)] = torch.nan
        return messages

    ready.step()
    before = ready.engine.store.personal["c_j"].clone()
    with intercepted(refused):
        ready.step()
    after = ready.engine.state(Broadcast(2, ready.state.shared, ready.used))["personal/c_j"]
    moved = (after != before).any(1)
    assert moved.tolist() == [j != 3 for j in range(7)]


def test_what_always_counts_waits_for_nothing(small: Federation, net: Architecture) -> None:
    ready = Fit(FedPer(net), small, Options(rounds=1, dtype=torch.float64))

    def refused(messages: Messages, clients: Any) -> Messages:
        messages["base"]["weight"][clients.index(3)] = torch.nan
        return messages

    with intercepted(refused):
        ready.step()
    made = ready.engine.store.personal["mu"].clone()
    assert torch.equal(ready.fitted().personal["mu"], made)
    assert not torch.equal(made[3], ready.initial["mu"])
