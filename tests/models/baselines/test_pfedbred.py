"""pFedBreD: pFedMe around a prior mean that each client has moved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.baselines import (
    WHOLE,
    Quadratics,
    assert_resumed_is_the_same,
    fitted,
    linear,
    rows_of,
    slope_at,
)
from support.methods import order_of
from support.representatives import of_all
from support.rounds import Rounds
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import PFedBreD, PFedMe
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture

FORMS = ("lg", "meg", "mh")
#: of both methods
COMMON = {"rounds": 3, "steps": 4, "lr": 0.07, "w_lr": 0.03, "lam": 5.0, "batch": 5}


@pytest.mark.parametrize("form", ["lg", "meg"])
def test_without_a_shift_it_is_pfedme(form: str, small: Federation, net: Architecture) -> None:
    """Bit for bit, whoever reports."""
    methods = PFedBreD(net, shift=form, shift_lr=0.0, server_lr=0.5, **COMMON), PFedMe(net, server_lr=0.5, **COMMON)
    unshifted, other = (fitted(m, small, 3, participation=0.6, absent_clients="freeze") for m in methods)
    assert torch.equal(unshifted.shared["w"], other.shared["w"])
    assert torch.equal(unshifted.personal["theta"], other.personal["theta"])
    for name in ("gm_nll", "pm_nll"):
        assert unshifted.evaluations[-1][name] == pytest.approx(other.evaluations[-1][name], rel=1e-12)


def test_without_a_shift_and_short_meta_steps_it_is_pfedme(small: Federation, net: Architecture) -> None:
    whole = {**COMMON, "batch": WHOLE}
    me = fitted(PFedMe(net, **whole), small, 3)
    gaps = []
    for alpha in (1e-2, 1e-4, 1e-12):
        run = fitted(PFedBreD(net, shift="mh", shift_lr=0.0, meta_lr=alpha, **whole), small, 3)
        gaps.append(float((run.shared["w"] - me.shared["w"]).abs().max()))
    assert gaps[0] > 1e-3
    assert gaps[1] == pytest.approx(gaps[0] / 100, rel=0.1)  # first order in alpha
    assert gaps[2] < 1e-10


@pytest.mark.slow
@pytest.mark.cpu(4, "as many rounds as a fixed point takes to seven digits")
def test_loss_gradients_reach_their_stationary_point(lines: Federation) -> None:
    """sum_j (s_j - theta_j) = 0, s_j = w - eta_s grad F_j(w), theta_j = argmin F_j + (lambda / 2) |. - s_j|^2."""
    lam, eta = 1.5, 0.1
    quadratics = Quadratics(lines)
    d = len(quadratics.b[0])
    eye, matrix, vector = torch.eye(d).double(), torch.zeros(d, d).double(), torch.zeros(d).double()
    parts = []
    for A, b, n in zip(quadratics.A, quadratics.b, quadratics.n, strict=True):
        H, h, near = A / n, b / n, torch.linalg.inv(A / n + lam * eye)
        parts.append((H, h, near))
        # s - theta = (1 - lambda near) ((1 - eta H) w + eta h) - near h
        left = eye - lam * near
        matrix = matrix + left @ (eye - eta * H)
        vector = vector + near @ h - eta * left @ h
    w = torch.linalg.solve(matrix, vector)
    own = torch.stack([near @ (h + lam * (w - eta * (H @ w - h))) for H, h, near in parts])
    s = {"lam": lam, "shift_lr": eta, "rounds": 1, "steps": 60, "lr": 0.15, "w_lr": 0.9 / lam, "batch": WHOLE}
    run = fitted(PFedBreD(linear(lines), shift="lg", **s), lines, 55)
    assert torch.allclose(run.shared["w"], w, rtol=1e-7, atol=1e-8)
    assert torch.allclose(run.personal["theta"], own, rtol=1e-6, atol=1e-7)
    me = fitted(PFedMe(linear(lines), **{k: v for k, v in s.items() if k != "shift_lr"}), lines, 10)
    assert (me.shared["w"] - w).abs().max() > 1e-3  # the shift moves it


def client_round(
    form: str, net: Architecture, fed: Federation, chunk: ClientChunk, w: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What a client makes of a round by the paper's formulas: theta_j, w_j, and the shift that it leaves."""
    x, y = fed.examples(fed.train[chunk.clients[0]])
    each = 2 if form == "mh" else 1
    epochs = [order_of(chunk, 0, 1, e).split(5) for e in range(3 * each)]
    minibatches = [b for epoch in epochs for b in epoch][: 3 * each]
    theta = w
    for first in range(0, 3 * each, each):
        batch = minibatches[first]
        if form == "lg":
            shift = -0.2 * slope_at(net, w, x, y, batch)
        if form == "mh":
            ahead = w - 0.04 * slope_at(net, w, x, y, minibatches[first + 1])
            w = w - 0.04 * slope_at(net, ahead, x, y, batch)
        for _ in range(4):
            theta = theta - 0.07 * (slope_at(net, theta, x, y, batch) + 5.0 * (theta - (w + shift)))
        w = w - 0.03 * 5.0 * (w + shift - theta)
    return theta, w, shift if form == "lg" else -0.2 * (w - theta)


@pytest.mark.parametrize("form", FORMS)
def test_rounds_are_a_plain_loop_of_the_papers_formulas(form: str, small: Federation, net: Architecture) -> None:
    """Some report, everybody trains (of lg, who reports); the server goes half way to the plain mean."""
    alpha = {"meta_lr": 0.04} if form == "mh" else {}
    method = PFedBreD(net, shift=form, shift_lr=0.2, server_lr=0.5, **alpha, **COMMON)
    ready = Fit(method, small, Options(rounds=4, participation=0.5, dtype=torch.float64, evaluate_every=10))
    shifts, memory = torch.zeros(7, net.d).double(), 0
    for number in range(1, 4):
        w = ready.state.shared["w"].clone()
        ready.step()
        reported, copies = ready.journal.status[-1].bool(), []
        for j in range(7):
            chunk = ClientChunk(method, small, [j], number, 0, {}, {})
            memory += bool(shifts[j].abs().max() > 1e-3)
            theta, copy, shift = client_round(form, net, small, chunk, w, shifts[j])
            if reported[j]:
                copies.append(copy)
            if reported[j] or form != "lg" or number == 1:  # lg: others train where everything is evaluated
                shifts[j] = shift
                personal = ready.fitted().personal
                torch.testing.assert_close(personal["theta"][j], theta, rtol=1e-9, atol=1e-11)
                torch.testing.assert_close(personal["shift"][j], shift, rtol=1e-9, atol=1e-11)
        assert 0 < len(copies) < 7
        new = 0.5 * w + 0.5 * torch.stack(copies).mean(0)
        torch.testing.assert_close(ready.state.shared["w"], new, rtol=1e-9, atol=1e-11)
    assert memory > 10


def test_the_first_round_of_the_memorised_envelope_is_pfedmes(small: Federation, net: Architecture) -> None:
    """Nothing is remembered yet; later rounds, at the defaults, differ. So do the three forms."""
    steps = {k: COMMON[k] for k in ("rounds", "steps", "lam", "batch", "lr", "w_lr")}
    me = [fitted(PFedMe(net, **steps), small, rounds).shared["w"] for rounds in (1, 2)]
    w = {form: [fitted(PFedBreD(net, shift=form, **steps), small, r).shared["w"] for r in (1, 2)] for form in FORMS}
    assert torch.equal(w["meg"][0], me[0])
    for other in (me[1], w["lg"][1], w["mh"][1]):
        assert (w["meg"][1] - other).abs().max() > 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_what_is_sent(form: str, small: Federation, net: Architecture) -> None:
    """The copy of w alone."""
    method = PFedBreD(net, shift=form, **COMMON)
    chunk = rows_of(method, small)
    server = Rounds(method, small, chunk.shared, {k: v[0, 0] for k, v in chunk.values.items()})
    for number, step in enumerate(method.local()):
        chunk = step.run(chunk, number)
    messages = server.messages(chunk)
    assert {group: set(message) for group, message in messages.items()} == {"w": {"w"}}
    assert torch.equal(messages["w"]["w"], chunk.values["w"].squeeze(1))


@pytest.mark.parametrize("form", FORMS)
def test_who_predicts_with_what(form: str, small: Federation, net: Architecture) -> None:
    """A client with theta_j; the global model, and a client of which nothing is known, with w, without a shift."""
    run = fitted(PFedBreD(net, shift=form, shift_lr=0.5, **COMMON), small, 4)
    assert (run.personal["shift"].abs().amax(1) > 1e-3).all()
    for j in range(7):
        x = small.examples(small.test[j])[0]
        own, common = (net(v, x[None])[0].softmax(-1) for v in (run.personal["theta"][j], run.shared["w"]))
        torch.testing.assert_close(run.predict(x, client=small.ids[j]).double(), own, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(run.predict_new_client(x, draws=0).double(), common, rtol=1e-9, atol=1e-12)
    x, y = small.examples(small.global_test)
    nll = -net(run.shared["w"], x[None])[0].log_softmax(-1)[torch.arange(len(y)), y].mean()
    assert run.evaluations[-1]["gm_nll"] == pytest.approx(float(nll), rel=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_a_new_client_fits_a_model_and_w_stays(form: str, small: Federation, net: Architecture) -> None:
    run = fitted(PFedBreD(net, shift=form, **{**COMMON, "lam": 1.0}), small, 6)
    before = run.shared["w"].clone()
    x, y = small.examples(small.train[0])
    alone = run.predict_new_client(x.numpy())
    known = run.predict_new_client(x.numpy(), given=(x.numpy(), y.numpy()), rounds=3)
    picked = [float(p[torch.arange(len(y)), y].log().mean()) for p in (alone, known)]
    assert picked[1] > picked[0] + 0.02
    assert torch.equal(run.shared["w"], before)


@pytest.mark.parametrize("form", of_all(FORMS, ["mh"], str))
def test_rows_do_not_depend_on_who_is_beside_them(form: str, small: Federation) -> None:
    """With dropout, whose masks are of minibatches of unequal sizes; even who is smaller than a minibatch trains."""
    drop = architecture("mlp:6,dropout=0.5", small)
    method = PFedBreD(drop, shift=form, **COMMON)
    runs = [fitted(method, small, 3, chunk=chunk) for chunk in (1, 3, 7)]
    for run in runs[1:]:
        torch.testing.assert_close(run.personal["theta"], runs[0].personal["theta"], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(run.shared["w"], runs[0].shared["w"], rtol=1e-9, atol=1e-11)
    begin = method.begin(InitialWeights.for_network(drop, 0)).double()
    assert ((runs[0].personal["theta"] - begin).abs().amax(1) > 1e-3).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_resumed_run_is_the_same(form: str, small: Federation, net: Architecture, tmp_path: Path) -> None:
    assert_resumed_is_the_same(PFedBreD(net, shift=form, **COMMON), small, tmp_path, 0.6)


def test_a_meta_step_is_of_mh_alone(net: Architecture) -> None:
    with pytest.raises(UserError, match=r"meta_lr=0.1 changes nothing with shift"):
        PFedBreD(net, shift="lg", meta_lr=0.1)
