"""A round whose update fails is skipped: nothing changes, and the next one is as if it had not been."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.rounds import Messages, intercepted, rejections, with_rule
from support.senders import CLIENTS, after, every, honest, ready, rows

from hierfl.inference.clients.scores import _solve
from hierfl.inference.run.fit import Fit
from hierfl.models import MixedEffects, Scaffold


class Failing:
    """A rule whose update goes wrong, after it has changed what it remembers."""

    def __init__(self, rule: Any, how: str) -> None:
        self.rule, self.how = rule, how
        self.sends_gradients = rule.sends_gradients

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)

    def update(self, old: Any, total: Any, context: Any) -> Any:
        new = self.rule.update(old, total, context)
        for value in context.rule_state.values():
            value += 1
        if self.how == "raises":
            torch.linalg.cholesky(torch.zeros(2, 2))
        if self.how == "divides":
            _ = 1 / 0
        return {k: torch.full_like(v, torch.nan) for k, v in new.items()}


@every
@pytest.mark.parametrize("how", ["raises", "divides", "is not finite"])
@pytest.mark.parametrize("begun", [False, True], ids=["first", "second"])
def test_a_round_whose_update_fails_is_skipped(case: tuple, how: str, begun: bool) -> None:
    """Nothing changes, what optimisers remember neither; and the next round is as if it had not been."""
    server, messages, clients = honest(case)
    if begun:
        after(server, messages, clients)
        server.begin()
    before = copy.deepcopy(server.kept())
    spared = copy.deepcopy(server)
    last, whole = list(server.rules.items())[-1]
    with_rule(server.exchange, last, Failing(whole, how))
    assert server.receive(messages, clients).all()
    server.end()
    assert server.skipped == 1
    assert all(value == 0 for value in server.state.update_norm.values())
    now = server.kept()
    assert all(torch.equal(now[k], v) for k, v in before.items())
    assert not any(now[k].any() for k in now.keys() - before.keys())  # what has not begun is zero
    with_rule(server.exchange, last, whole)
    for each_server in (server, spared):
        each_server.state = dataclasses.replace(each_server.state, round=5)  # schedules go on in skipped rounds
        each_server.begin()
        assert each_server.receive(messages, clients).all()
        each_server.end()
    assert server.skipped == 1
    assert all(torch.equal(v, spared.shared[k]) for k, v in server.shared.items())


@pytest.mark.parametrize("how", ["raises", "is not finite"])
def test_who_was_not_heard_has_not_moved_in_a_failed_round(how: str) -> None:
    ready_fit = ready((Scaffold, {}))
    exchange = ready_fit.server.exchange
    rule = exchange.groups["w"].rule
    ready_fit.step()
    before = {k: v.clone() for k, v in ready_fit.fitted().personal.items()}
    with_rule(exchange, "w", Failing(rule, how))
    ready_fit.step()
    assert ready_fit.state.skipped == 1
    assert all(torch.equal(ready_fit.fitted().personal[k], v) for k, v in before.items())
    with_rule(exchange, "w", rule)
    ready_fit.step()
    personal = ready_fit.fitted().personal
    assert not torch.equal(personal["c_j"], before["c_j"])
    assert torch.allclose(ready_fit.state.shared["c"], personal["c_j"].mean(0), rtol=1e-9, atol=1e-12)


def test_who_repeats_itself_has_not_moved_when_the_first_message_was_refused() -> None:
    """A client whose value is too large keeps its state, where only those move who are heard."""
    ready_fit = ready((Scaffold, {}), max_message_ratio=1.0)

    def too_large(messages: Messages, clients: Sequence[int]) -> Messages:
        messages["w"]["w"][clients.index(3)] = 1e3
        return messages

    with intercepted(too_large):
        ready_fit.step()
    own = ready_fit.fitted().personal["c_j"]
    assert not own[3].any()
    assert own[4].any()
    assert rejections(ready_fit) == [int(j == 3) for j in range(CLIENTS)]


def test_a_singular_system_is_one_clients_failure() -> None:
    """What draws know of the scores, and sums over rows: the other rows keep their answers."""
    eye, zero = torch.eye(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    right = torch.ones(2, 2, 3, dtype=torch.float64)
    solution = _solve(torch.stack([eye, zero]), right)
    assert torch.equal(solution[0], right[0])
    assert solution[1].isnan().all()
    fit_of = ready((MixedEffects, {}))
    x = fit_of.federation.x.clone()
    x[fit_of.federation.train[4]] = 1e300  # squared, it is infinite
    sick = Fit(fit_of.method, dataclasses.replace(fit_of.federation, x=x), fit_of.options)
    sick.step()
    assert rejections(sick) == [int(j == 4) for j in range(CLIENTS)]
    assert sick.journal.diverged == 1
    kept = [v for entries in sick.state.rule_state.values() for v in entries.values()]
    assert all(bool(v.isfinite().all()) for v in [*sick.state.shared.values(), *kept])


@pytest.mark.parametrize("settings", [{}, {"family": "poisson"}], ids=["gaussian", "poisson"])
def test_a_sum_without_a_client_is_of_another_table(settings: dict[str, str]) -> None:
    """Of a mixed model: a round in which a message is missing changes nothing, and the next one goes on."""
    server, messages, clients = honest((MixedEffects, settings))
    before = copy.deepcopy(server.shared)
    assert server.receive(rows(messages, 1, CLIENTS), clients[1:]).all()
    server.end()
    assert server.skipped == 1
    assert all(torch.equal(v, before[k]) for k, v in server.shared.items())
    server.begin()
    assert server.receive(messages, clients).all()
    server.end()
    assert server.skipped == 1
    assert not torch.equal(server.shared["effects.at"], before["effects.at"])
