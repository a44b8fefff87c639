"""A message whose numbers cannot be is rejected: not finite, too large, of the wrong sign, at odds with each other."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from support.rounds import Messages, intercepted, rejections
from support.senders import (
    CLIENTS,
    PARTIAL,
    SENDING,
    after,
    check_the_others_are_used,
    every,
    every_precision,
    finite,
    honest,
    ready,
    rows,
    scaled,
    with_key,
)
from torch import Tensor

from hierfl.inference.run.fit import Fit
from hierfl.models import FedAvg, PFedVMP
from hierfl.ppl.gaussian_factors import Gaussian


@every
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_message_that_is_not_finite_is_rejected(case: tuple, poison: float) -> None:
    """Under each key in turn: precisions among them."""
    server, messages, _ = honest(case)
    for group, message in messages.items():
        for key, value in message.items():
            if not value.numel():
                continue

            def spoil(m: Messages, group: str = group, key: str = key) -> Messages:
                value = m[group][key].clone()
                if value.dtype is torch.uint8:
                    value = server.filled(group, key, value, poison)
                else:
                    value.view(-1)[-1] = poison
                return with_key(m, key, value, group)

            check_the_others_are_used(case, torch.float64, spoil)


#: what is sent beside the values, or instead, and cannot be below zero
SIGNED = ("weight", "tau", "precision", "counts")
#: rules to which changes of precisions are sent, of any sign: what they do with them is their methods' tests
CHANGES = ("GaussianIncrements",)
#: what must be above
ABOVE = {
    "SampleWeighted": "weight", "ClusterMeans": "weight", "PrecisionWeightedMean": "tau", "GibbsDraw": "precision",
    "OnlineLaplace": "weight",
}  # fmt: skip


def test_a_negative_weight_is_rejected() -> None:
    """Minus what all others weigh would make the sum zero, and the mean infinite for ever."""
    tried = set()
    for case in PARTIAL:
        server, messages, _ = honest(case)
        signed = [g for g in messages if type(server.rules[g]).__name__ not in CHANGES]
        for group, key in [(g, k) for g in signed for k in messages[g] if k in SIGNED]:
            others = messages[group][key][1:].sum(0, keepdim=True).abs()

            def spoil(m: Messages, group: str = group, key: str = key, others: Tensor = others) -> Messages:
                return with_key(m, key, -others - float(key == "counts"), group)

            check_the_others_are_used(case, torch.float64, spoil)
            tried.add(key)
    assert tried == set(SIGNED)


def test_a_weight_of_zero_is_rejected() -> None:
    tried = set()
    for case in SENDING:
        server, _, _ = honest(case)
        for group, rule in server.rules.items():
            name = type(rule).__name__
            if name in ABOVE:

                def spoil(m: Messages, group: str = group, key: str = ABOVE[name]) -> Messages:
                    return with_key(m, key, torch.zeros_like(m[group][key]), group)

                def silent(m: Messages, group: str = group) -> Messages:  # it would count towards the quorum
                    return {**m, group: {k: torch.zeros_like(v) for k, v in m[group].items()}}

                check_the_others_are_used(case, torch.float64, silent)
                check_the_others_are_used(case, torch.float64, spoil)
                tried.add(name)
    assert tried == ABOVE.keys()


@every_precision
def test_finite_numbers_whose_sum_overflows_are_rejected(case: tuple, dtype: torch.dtype) -> None:
    """Two of them, each finite: 3e38 in single precision."""
    server, messages, clients = honest(case, dtype)
    expected = after(copy.deepcopy(server), rows(messages, 2, CLIENTS), clients[2:])
    for group, message in messages.items():
        for key, value in message.items():
            size = torch.finfo(server.forms[group][key].dtype).max
            value[:2] = server.filled(group, key, value[:2], 0.9 * size)
    assert server.receive(messages, clients).tolist() == [False] * 2 + [True] * 8
    server.end()
    assert server.skipped == 0
    assert server.rejected.sum() == 2
    # A sum over ten rows, two of them zero, may round otherwise than one over eight.
    near = {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    assert all(torch.allclose(v, expected[k], rtol=near, atol=near) for k, v in server.shared.items())


@every_precision
def test_the_largest_numbers_let_in_leave_state_and_memory_finite(case: tuple, dtype: torch.dtype) -> None:
    """All clients just below the ceiling, without the bound: neither sums nor an optimiser's squares are infinite."""
    server, messages, clients = honest(case, dtype)
    server.max_message_ratio = 0.0
    for group, message in messages.items():
        for key, value in message.items():
            field = server.forms[group][key]
            value[:] = server.filled(group, key, value, 0.999 * server.receiver.ceiling(field.dtype))
            if field.holds is not None and not field.holds(value).all():  # a probability
                value[:] = server.filled(group, key, value, 1.0)
    for _ in range(3):
        server.begin()
        assert server.receive(messages, clients).all()
        server.end()
        assert finite(server)
    assert server.skipped == 0


@every
def test_a_value_is_bounded_relative_to_the_broadcast_one(case: tuple) -> None:
    """Just below the bound it is used, just above it is not: after the weight inside is divided out."""
    server, messages, clients = honest(case)
    server.max_message_ratio = 50.0
    for group, key in scaled(server):
        broadcast = max(1.0, float(server.shared[key].abs().max()))
        for share, used in ((0.99, True), (1.01, False)):
            message = rows(messages, 0, 1)
            field, value = server.forms[group][key], message[group][key]
            weight = value.new_ones(1) if field.weight is None else field.weight(message[group])
            weight = weight.view(*weight.shape, *[1] * (value.dim() - weight.dim()))
            if field.value is not None:  # h = Lambda mu, all of mu the same
                weight = Gaussian.unpacked(value, message[group]["precision"], "full").precision.sum(-1)
            message[group][key] = (share * 50 * broadcast * weight).expand_as(value).clone()
            server.begin()
            assert server.receive(message, clients[:1]).tolist() == [used], (group, key, share)


#: gradients and curvatures in the population of heads
HEADS = {"HeadPopulation", "HeadNodes"}


def test_only_gradients_and_counts_have_no_scale() -> None:
    servers = [honest(case)[0] for case in SENDING]
    bounded = {type(server.rules[group]).__name__ for server in servers for group, _ in scaled(server)}
    rules = {type(rule).__name__ for server in servers for rule in server.rules.values()}
    free = {"Gradient", "LangevinStep", "PopulationSearch", "CountSum", "RunningMean", "KeptDraws", *HEADS}
    free |= {"LabelSharePopulation", "HeadSpreads", "RhoNodes"}  # probabilities and counts; scores
    free |= set(CHANGES)
    assert rules - bounded == free


@pytest.mark.parametrize("size", [1e30, pytest.param(1e9, marks=pytest.mark.slow)])
def test_one_of_ten_clients_does_not_move_the_mean(size: float) -> None:
    """FedAvg, one client's weights 1e30 in every round: the fit is the one without that client, number by number."""

    def fitted(hit: float | None, ratio: float) -> Fit:
        ready_fit = ready((FedAvg, {}), rounds=15, max_message_ratio=ratio)

        def spoilt(messages: Messages, clients: Sequence[int]) -> Messages:
            for key in () if hit is None else sorted(messages["base"].keys() - {"weight"}):
                messages["base"][key][clients.index(3)] = hit
            return messages

        with intercepted(spoilt):
            ready_fit.run(progress=False)
        return ready_fit

    well, hit, without = fitted(None, 1e6), fitted(size, 1e6), fitted(float("nan"), 1e6)
    ends = [ready_fit.journal.evaluations[-1] for ready_fit in (well, hit)]
    assert ends[0]["rejected"] == 0
    assert ends[1]["rejected"] == rejections(hit)[3] == 15
    assert all(torch.equal(v, without.state.shared[k]) for k, v in hit.state.shared.items())
    assert ends[1]["pm_accuracy"] > ends[0]["pm_accuracy"] - 0.05
    loose = fitted(size, 0.0)  # no bound lets it in
    assert max(float(v.abs().max()) for v in loose.state.shared.values()) > size / 100


def packed(matrix: Tensor) -> Tensor:
    """Lower triangles, row by row."""
    k, column = torch.tril_indices(*matrix.shape[-2:])
    return matrix[..., k, column]


@pytest.mark.parametrize("hostile", ["indefinite", "out of range"])
def test_a_full_precision_is_one_and_bounds_its_mean(hostile: str) -> None:
    """Zeros beside 1e6 undid what all others said; a singular block let a mean through that lies anywhere."""
    server, messages, clients = honest((PFedVMP, {}))
    (message,) = [m for m in messages.values() if "precision" in m]
    (name,) = [k for k in message if k != "precision"]
    d = message[name].shape[-1]
    matrix = torch.zeros(d, d, dtype=torch.float64)
    h = torch.zeros(d, dtype=torch.float64)
    if hostile == "indefinite":
        matrix[0, 1] = matrix[1, 0] = 1e6
    else:
        matrix[:2, :2] = 1e12
        h[:2] = torch.tensor([1e17, -1e17])
    message["precision"][0], message[name][0] = packed(matrix), h
    alone = copy.deepcopy(server)
    used = server.receive(messages, clients)
    assert used.tolist() == [False] + [True] * 9
    alone.receive(rows(messages, 1, 10), clients[1:])
    for each_server in (server, alone):
        each_server.end()
    for name, value in server.shared.items():  # a sum of ten, one of them zero, is rounded otherwise than one of nine
        assert torch.allclose(value, alone.shared[name], rtol=1e-10)
