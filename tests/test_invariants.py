"""What must always hold, for every method: restriction, plate independence, limits, clean evaluation."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from pyro import poutine
from support.federations import blobs, slopes
from support.methods import TUTORIAL, case_name, largest_first, network_for, noise_for, states
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn.functional import cross_entropy, softplus

from hierfl import Federation, UserError
from hierfl.inference import SVI, Method, PrecisionWeightedMean, fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.rho import closed_form_rho
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.objective.log_joint import global_log_prob
from hierfl.inference.objective.sites import guide_latents
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.state import client_view
from hierfl.models import (
    APFL,
    DGLMC,
    IFCA,
    L2GD,
    Ditto,
    FedAvg,
    FedAvgFT,
    FedBN,
    FedPer,
    FedPop,
    FedProx,
    FedRep,
    FedV,
    LGFedAvg,
    Local,
    PerFedAvg,
    PFedBayes,
    PFedMe,
    PFedV,
    PFedVEM,
    Scaffold,
)
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture
from hierfl.ppl.guide_draws import draw_with
from hierfl.ppl.restrict import Restrict
from hierfl.rng import ClientNoise

PRIORS = [(PFedVEM, {"prior": p}) for p in ("hierarchical", "fixed", "flat")]
POPULATIONS = [(FedPop, {"prior": p}) for p in ("hierarchical", "fixed", "flat")]
POPULATIONS.append((FedPop, {"population": "energy"}))
ENCODERS = [(PFedV, {"prior": p}) for p in ("hierarchical", "fixed", "flat")]
ENCODERS += [(FedV, {"prior": "hierarchical", "prior_norm": "running"}), (FedV, {"kl": "sum"})]
METHODS = [*PRIORS, *POPULATIONS, *ENCODERS, (TUTORIAL, {}), (Local, {}), (FedAvg, {}), (FedPer, {}), (FedRep, {})]
METHODS += [(FedBN, {}), (FedBN, {"local_norm": "statistics"})]
METHODS += [(cls, {}) for cls in (LGFedAvg, FedProx, PFedMe, L2GD, PFedBayes, DGLMC, FedAvgFT, PerFedAvg, Scaffold)]
METHODS += [(cls, {}) for cls in (IFCA, Ditto, APFL)]
METHODS += [(FedAvgFT, {"scope": "all"}), (IFCA, {"scope": "all"})]


# -- 1. restriction -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", METHODS, ids=case_name)
def test_sum_of_client_elbos_is_the_joint_elbo(case: tuple, small: Federation) -> None:
    """One row at a time and summed, plus log p(globals) once, against Pyro's own log densities of the whole plate."""
    method = case[0](network_for(case[0], small), **case[1])
    shared, rows = states(method, small)
    everyone = list(range(small.clients))
    alone = [
        elbo(
            method,
            small.batch([j]),
            client_view(shared, {k: v[[j]] for k, v in rows.items()}),
            noise_for(small, [j], counts=True),
            analytic=False,
        )
        for j in everyone
    ]
    batch = small.batch(everyone)
    ours = torch.cat(alone).sum() + global_log_prob(
        method, small.template(), shared, {k: v[:1] for k, v in rows.items()}
    )
    values = client_view(shared, rows)
    with Restrict(values, draw=draw_with(noise_for(small, everyone, counts=True))):
        q = poutine.trace(method.guide).get_trace(batch)
    with Restrict(values):  # parameters only: the latents below are Pyro's to fix
        p = poutine.trace(poutine.replay(poutine.condition(method.model, data=shared), trace=q)).get_trace(batch)
    assert torch.isclose(ours, p.log_prob_sum() - q.log_prob_sum(), rtol=1e-6)


def test_analytic_kl_is_torchs_and_agrees_with_its_monte_carlo_estimate(small: Federation, net: Architecture) -> None:
    method = PFedVEM(net)
    shared, rows = states(method, small)
    batch, everyone = small.batch(range(small.clients)), list(range(small.clients))
    values = {**shared, **rows}
    latents = guide_latents(method, batch, values, noise_for(small, everyone, 4000))
    w_j = latents["w_j"].value
    logits = net.head(w_j, net.base.apply(net.base.parameters_from(values), batch.x))
    labels = batch.y.expand(logits.shape[:-1])
    nll = cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view(labels.shape)
    nll = (nll * batch.mask).sum(-1).mean(0)
    kl = kl_divergence(
        Independent(Normal(rows["mu"], softplus(rows["pi"])), 1),
        Independent(Normal(shared["w"].expand_as(rows["mu"]), rows["rho"].expand_as(rows["mu"])), 1),
    ).squeeze(1)
    exact = elbo(method, batch, values, noise_for(small, everyone, 4000))
    assert torch.allclose(exact, -nll - kl, rtol=1e-10)
    sampled = elbo(method, batch, values, noise_for(small, everyone, 4000), analytic=False)
    log_ratio = (
        Normal(rows["mu"], softplus(rows["pi"])).log_prob(w_j) - Normal(shared["w"], rows["rho"]).log_prob(w_j)
    ).sum(-1)
    error = log_ratio.std(0).squeeze(-1) / 4000**0.5
    assert ((exact - sampled).abs() < 5 * error).all()


# -- 2. plate independence ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", METHODS, ids=case_name)
def test_personal_state_does_not_depend_on_chunk_or_order(case: tuple) -> None:
    """Chunks of 1, 7 and J = 9, and the clients in another order, after three rounds with minibatches: same to 1e-5."""
    fed = blobs([23, 7, 2, 14, 14, 5, 9, 31, 3])
    method = case[0](network_for(case[0], fed), **case[1])
    shuffled = fed.select([3, 8, 0, 6, 5, 1, 7, 4, 2])
    variants = [(fed, 1), (fed, 7), (fed, 9), (shuffled, 7)]
    runs = [
        fit(method, who, rounds=3, chunk=chunk, participation=0.6, dtype=torch.float64, progress=False)
        for who, chunk in variants
    ]
    first = runs[0]
    for run, (who, _) in zip(runs[1:], variants[1:], strict=True):
        back = [list(who.ids).index(name) for name in fed.ids]
        for name, value in {**first.personal, **first.fitted.copies}.items():
            other = {**run.personal, **run.fitted.copies}[name][back]
            assert torch.allclose(value, other, rtol=1e-5, atol=1e-5), name
        for name, value in first.shared.items():
            assert torch.allclose(value, run.shared[name], rtol=1e-5, atol=1e-5), name


def test_a_client_computes_the_same_alone_as_among_others(small: Federation, net: Architecture) -> None:
    step = SVI(["mu", "pi", "base"], 4, sgd(0.002, 0.9), 3, particles=3)
    method = PFedVEM(net)
    shared, rows = states(method, small)
    order = largest_first(small)
    together = step.run(ClientChunk(method, small, order, 1, 0, shared, {k: v[order] for k, v in rows.items()}), 0)
    for place, j in enumerate(order):
        alone = step.run(ClientChunk(method, small, [j], 1, 0, shared, {k: v[[j]] for k, v in rows.items()}), 0)
        for name in ("mu", "pi", *net.base.names):
            assert torch.allclose(together.values[name][place], alone.values[name][0], rtol=1e-9, atol=1e-9)


def test_noise_of_a_client_is_its_own_and_standard_normal() -> None:
    noise = ClientNoise([(0, "a"), (0, "b")], 5, dtype=torch.float64)
    steps = torch.stack([noise.at(s).normal("w", None, torch.Size([700])) for s in range(40)])
    alone = ClientNoise([(0, "b")], 5, dtype=torch.float64)
    again = torch.stack([alone.at(s).normal("w", None, torch.Size([700])) for s in range(40)])
    assert torch.equal(steps[:, :, 1:], again)
    assert len(steps.flatten().unique()) == steps.numel()  # no draw is used twice
    n = steps.numel()
    assert abs(steps.mean()) < 4 / n**0.5
    assert abs(steps.var() - 1) < 4 * (2 / n) ** 0.5


def test_a_shape_that_would_mix_clients_is_refused(small: Federation, net: Architecture) -> None:
    """A scalar beside a vector, declared without its dimension, would broadcast clients against data."""

    class Careless(TUTORIAL):
        def shared(self, start: InitialWeights) -> dict:
            return {**super().shared(start), "log_rho": torch.tensor(-2.0)}

    with pytest.raises(UserError, match=r"site 'w_j' has batch shape \(2, 2\).*a scalar beside a vector"):
        fit(Careless(net), small, rounds=1, progress=False)


# -- 3. closed forms ------------------------------------------------------------------------------------------------


def block_gradient(method: Method, fed: Federation, values: dict, block: str, who: list[int]) -> torch.Tensor:
    """Gradient of the ELBO of some clients in one block of values, everything else held; exact, all but the data term.

    The data term does not depend on w or rho given the guide, so one draw of it will do.
    """
    leaf = values[block].clone().requires_grad_()
    with torch.enable_grad():
        total = elbo(
            method,
            fed.batch(range(fed.clients)),
            {**values, block: leaf},
            noise_for(fed, list(range(fed.clients))),
        )
        return torch.autograd.grad(total[who].sum(), leaf)[0]


@pytest.mark.parametrize("who", [[0, 2, 5], [0, 1, 2, 3, 4, 5, 6]])
def test_confidence_weighted_mean_is_stationary_in_w(who: list[int], small: Federation, net: Architecture) -> None:
    method, rule = PFedVEM(net), PrecisionWeightedMean("mu", "rho")
    shared, rows = states(method, small)
    chunk = ClientChunk(method, small, who, 1, 0, shared, {k: v[who] for k, v in rows.items()})
    sums = {k: v.sum(0) for k, v in rule.message(["w"], chunk).items()}
    context = AggregationContext(small.clients, torch.tensor(float(len(who))), 1, lambda n: {})
    w = rule.update({"w": shared["w"]}, sums, context)["w"]
    before = block_gradient(method, small, {**shared, **rows}, "w", who)
    after = block_gradient(method, small, {**shared, **rows, "w": w}, "w", who)
    assert after.abs().max() < 1e-6 < before.abs().max()


def test_a_server_learning_rate_is_a_step_towards_the_maximiser(small: Federation, net: Architecture) -> None:
    everyone = list(range(small.clients))
    for server_lr in (1.0, 0.7):
        method = PFedVEM(net, server_lr=server_lr)
        shared, rows = states(method, small)
        chunk = ClientChunk(method, small, everyone, 1, 0, shared, rows).own(method.expand("base", shared))
        chunk = chunk.put({k: v + 0.1 for k, v in chunk.values.items() if k.startswith("base.")})
        context = AggregationContext(small.clients, torch.tensor(7.0), 1, lambda n: {})
        for group, rule in method.exchange().items():
            names = method.expand(group, shared)
            old = {k: shared[k] for k in names}
            sums = {k: v.sum(0) for k, v in rule.message(names, chunk).items()}
            new = rule.update(old, sums, context)
            full = dataclasses.replace(rule, server_lr=1.0).update(old, sums, context)
            for k in names:
                assert not torch.allclose(full[k], old[k])
                assert torch.allclose(new[k], old[k] + server_lr * (full[k] - old[k]))


def test_closed_form_rho_is_stationary_in_rho(small: Federation, net: Architecture) -> None:
    method = PFedVEM(net)
    shared, rows = states(method, small)
    rho = closed_form_rho(rows["mu"], softplus(rows["pi"]), shared["w"], rows["rho"])
    everyone = list(range(small.clients))
    before = block_gradient(method, small, {**shared, **rows}, "rho", everyone)
    after = block_gradient(method, small, {**shared, **rows, "rho": rho}, "rho", everyone)
    assert after.abs().max() < 1e-6 < before.abs().max()
    d = net.head.d
    trace, gap = softplus(rows["pi"]).square().sum(-1), (rows["mu"] - shared["w"]).square().sum(-1)
    assert torch.allclose(rho.flatten().pow(-2), (d / (trace + gap)).flatten())  # Eq. 8 as printed


@pytest.mark.parametrize(("terms", "expected"), [("uncertainty", 0.04), ("deviation", 0.25), ("both", 0.29)])
def test_ablations_of_tau_keep_their_term(terms: str, expected: float) -> None:
    mean, scale = torch.full((2, 1, 3), 1.5), torch.full((2, 1, 3), 0.2)
    rho = closed_form_rho(mean, scale, torch.ones(3), torch.ones(2, 1, 1), terms=terms)
    assert torch.allclose(rho.square(), torch.full((2, 1, 1), expected))


@pytest.mark.parametrize("terms", ["both", "uncertainty", "deviation"])
def test_every_definition_of_tau_trains(terms: str, small: Federation, net: Architecture) -> None:
    """The deviation alone is zero in the first round, where mu_j = w: rho stays at sigma_0 until it says something."""
    run = fit(PFedVEM(net, tau=terms), small, rounds=3, dtype=torch.float64, progress=False)
    last = run.last()
    assert (last["diverged"], last["rejected"], last["skipped"]) == (0, 0, 0)
    start = 0.1 * InitialWeights.of(net, 0).head.double()
    assert all(not torch.equal(mu, start) for mu in run.personal["mu"])
    rho = run.personal["rho"]
    assert (rho >= 0.01).all()  # tau is at most 1 / head_lr
    if terms == "deviation":
        assert not torch.allclose(rho, torch.tensor(0.1, dtype=torch.float64))


def test_rho_has_a_floor() -> None:
    zeros = torch.zeros(1, 1, 3)
    rho = closed_form_rho(zeros + 1e-9, zeros, zeros, torch.ones(1, 1, 1))
    assert rho.item() == pytest.approx(1e-3)


# -- 4. exact cases -------------------------------------------------------------------------------------------------


def test_local_svi_converges_to_the_conjugate_posterior() -> None:
    """Linear head, Gaussian noise s, prior N(w, rho^2 I): the posterior is N(m, A^-1), A = X'X/s^2 + I/rho^2,
    m = A^-1 (X'y/s^2 + w/rho^2), and the best mean-field Gaussian has mean m and variances 1/diag(A)."""
    fed, noise = slopes([12, 5, 3, 1]), 0.5
    net = architecture("linear", fed, noise=noise)
    method = PFedVEM(net)
    shared, rows = states(method, fed)
    # the gradient noise of K draws is averaged away by the small steps at the end
    order = largest_first(fed)
    chunk = ClientChunk(method, fed, order, 1, 0, shared, {k: v[order] for k, v in rows.items()})
    for phase, (lr, epochs) in enumerate([(3e-3, 600), (1e-3, 1500), (1e-4, 6000)]):
        chunk = SVI(["mu", "pi"], epochs, sgd(lr), particles=64).run(chunk, phase)
    for place, j in enumerate(order):
        x = torch.cat([fed.x[fed.train[j]], torch.ones(len(fed.train[j]), 1, dtype=torch.float64)], 1)
        y, rho2 = fed.y[fed.train[j]], rows["rho"][j].square()
        precision = x.T @ x / noise**2 + torch.eye(3) / rho2
        mean = torch.linalg.solve(precision, x.T @ y / noise**2 + (shared["w"] / rho2).flatten())
        sigma = softplus(chunk.values["pi"][place]).flatten()
        # 1 % of a posterior standard deviation; Monte-Carlo error of the last phase is about a third of it
        assert ((chunk.values["mu"][place].flatten() - mean).abs() < 0.01 * precision.diagonal().rsqrt()).all()
        assert torch.allclose(sigma.square(), 1 / precision.diagonal(), rtol=0.02)


# -- 5. limits ------------------------------------------------------------------------------------------------------


def test_equal_confidence_gives_the_plain_mean(small: Federation, net: Architecture) -> None:
    method, rule = PFedVEM(net), PrecisionWeightedMean("mu", "rho")
    shared, rows = states(method, small)
    rows["rho"] = torch.full_like(rows["rho"], 0.3)
    sums = {
        k: v.sum(0)
        for k, v in rule.message(["w"], ClientChunk(method, small, list(range(7)), 1, 0, shared, rows)).items()
    }
    w = rule.update({"w": shared["w"]}, sums, AggregationContext(7, torch.tensor(7.0), 1, lambda n: {}))["w"]
    assert torch.allclose(w, rows["mu"].mean((0, 1)), rtol=1e-12)


def test_a_fixed_prior_is_never_moved(small: Federation, net: Architecture) -> None:
    method = PFedVEM(net, prior="fixed", sigma_0=0.7)
    run = fit(method, small, rounds=3, dtype=torch.float64, progress=False)
    assert (run.personal["rho"] == 0.7).all()
    assert (run.shared["w"] == 0).all()
    assert not torch.equal(run.shared["base.1.weight"], InitialWeights.of(net, 0).base["base.1.weight"].double())


def test_one_full_batch_epoch_of_fedavg_is_gradient_descent_on_the_pooled_mean_loss(
    small: Federation, net: Architecture
) -> None:
    lr = 0.1
    method = FedAvg(net, epochs=1, batch=1000, lr=lr, momentum=0.0)
    start = {k: v.double().requires_grad_() for k, v in method.shared(InitialWeights.of(net, 0)).items()}
    index = torch.cat(list(small.train))
    x, y = small.examples(index)
    features = net.base.apply(net.base.parameters_from(start), x[None])
    loss = cross_entropy(net.head(start["w"], features)[0], y)
    gradients = dict(zip(start, torch.autograd.grad(loss, list(start.values())), strict=True))
    run = fit(method, small, rounds=1, dtype=torch.float64, progress=False)
    for name, value in start.items():
        assert torch.allclose(run.shared[name], value - lr * gradients[name], rtol=1e-10, atol=1e-12), name


def test_fedpop_without_a_spread_has_the_pooled_objective(small: Federation, net: Architecture) -> None:
    """sigma -> 0: every z_j is mu, and the summed messages are the gradient of the pooled log likelihood at mu."""
    method = FedPop(net, sigma_0=1e-7, start="stateless", steps=3, burn=1, step_size=1e-16)
    shared = {k: v.double() for k, v in method.shared(InitialWeights.of(net, 0)).items()}
    rows = {k: v.double().expand(7, 1, *v.shape) for k, v in method.personal(InitialWeights.of(net, 0)).items()}
    order = largest_first(small)
    chunk = method.local()[0].run(ClientChunk(method, small, order, 1, 0, shared, rows), 0)
    names = [k for k in shared if k.startswith("base")]
    messages = method.exchange()["base"].message(names, chunk)
    x, y = small.examples(torch.cat(list(small.train)))
    leaves = {k: shared[k].clone().requires_grad_() for k in names}
    features = net.base.apply(net.base.parameters_from(leaves), x[None])
    pooled = -cross_entropy(net.head(shared["mu"], features)[0], y, reduction="sum")
    for name, gradient in zip(names, torch.autograd.grad(pooled, list(leaves.values())), strict=True):
        assert torch.allclose(messages[name].sum(0), gradient, rtol=1e-4, atol=1e-4), name


def test_fedpop_without_a_prior_takes_fedreps_step() -> None:
    """sigma -> inf, point heads, one full-batch step of the base, everyone there: base and heads are FedRep's."""
    n, lr, fed = 9, 0.1, blobs([9] * 5)
    net = architecture("mlp:5", fed)
    pop = FedPop(net, prior="flat", steps=20, step_size=lr / n, inner_phi_steps=1, inner_lr=lr)
    rep = FedRep(net, head_epochs=20, epochs=1, lr=lr, batch=n, momentum=0.0)
    one, other = (fit(method, fed, rounds=3, dtype=torch.float64, progress=False) for method in (pop, rep))
    for name, value in other.shared.items():
        assert torch.allclose(one.shared[name], value, rtol=1e-9, atol=1e-12), name
    assert torch.allclose(one.personal["z_point"], other.personal["mu"], rtol=1e-9, atol=1e-12)


def test_flat_prior_with_a_point_guide_is_fedreps_alternation(small: Federation, net: Architecture) -> None:
    """Full-batch head steps on the mean loss, then the base: pFedVEM at prior=flat and FedRep take the same steps."""
    n = 9
    fed = blobs([n] * 5)  # equal sizes: the summed head objective is n times the mean one
    net = architecture("mlp:5", fed)
    flat = PFedVEM(
        net,
        prior="flat",
        head_epochs=3,
        head_lr=0.1 / n,
        base_epochs=2,
        base_lr=0.1,
        base_batch=n,
        momentum=0.5,
    )
    rep = FedRep(net, head_epochs=3, epochs=2, lr=0.1, batch=n, momentum=0.5)
    a = fit(flat, fed, rounds=2, dtype=torch.float64, progress=False)
    b = fit(rep, fed, rounds=2, dtype=torch.float64, progress=False)
    assert torch.allclose(a.personal["mu"], b.personal["mu"], rtol=1e-9, atol=1e-12)
    assert torch.allclose(a.shared["base.1.weight"], b.shared["base.1.weight"], rtol=1e-9, atol=1e-12)


# -- 8. clean evaluation --------------------------------------------------------------------------------------------


def test_nothing_is_chosen_on_test_data(net: Architecture) -> None:
    """Scrambled test labels change the test numbers, and nothing else: state, validation rows, the best round."""
    fed = blobs([40, 30, 60])
    held = dataclasses.replace(fed, validation=[i[:10] for i in fed.train], train=[i[10:] for i in fed.train])
    y = held.y.clone()
    tests = torch.cat(list(held.test))
    y[tests] = (y[tests] + 1) % 3
    method = PFedVEM(architecture("mlp:5", held), base_lr=0.05, head_lr=0.01)
    honest = fit(method, held, rounds=6, progress=False)
    scrambled = fit(method, dataclasses.replace(held, y=y), rounds=6, progress=False)
    for name, value in {**honest.shared, **honest.personal}.items():
        assert torch.equal(value, {**scrambled.shared, **scrambled.personal}[name])

    def validation(run: object) -> list:
        return [[row[k] for k in row if k != "seconds"] for row in run.evaluations if row["split"] == "validation"]

    assert validation(honest) == validation(scrambled)
    assert honest.best()["round"] == scrambled.best()["round"]
    assert honest.last()["round"] == 6
    assert honest.last()["pm_accuracy"] != scrambled.last()["pm_accuracy"]


def test_evaluation_follows_one_schedule(small: Federation, net: Architecture) -> None:
    run = fit(FedAvg(net), small, rounds=9, evaluate_every=4, progress=False)
    assert [row["round"] for row in run.evaluations] == [1, 5, 9]
    run = fit(FedAvg(net), small, rounds=7, evaluate_every=4, progress=False)
    assert [row["round"] for row in run.evaluations] == [1, 5, 7]


# -- 9. global state (the fixture checks the rest) ------------------------------------------------------------------


def test_a_run_is_a_function_of_its_arguments(small: Federation, net: Architecture) -> None:
    import pyro

    first = fit(PFedVEM(net), small, rounds=2, progress=False)
    state = torch.get_rng_state()
    torch.manual_seed(99)
    pyro.param("mu", torch.zeros(3))
    again = fit(PFedVEM(net), small, rounds=2, progress=False)
    pyro.clear_param_store()
    torch.set_rng_state(state)
    for name, value in {**first.shared, **first.personal}.items():
        assert torch.equal(value, {**again.shared, **again.personal}[name])
    other = fit(PFedVEM(net), small, rounds=2, seed=1, progress=False)
    assert not torch.equal(first.shared["w"], other.shared["w"])


def test_the_federated_digest_tells_splits_apart(small: Federation) -> None:
    assert small.digest() == blobs([23, 7, 2, 14, 14, 5, 9]).digest()
    assert small.digest() != blobs([23, 7, 2, 14, 14, 5, 9], seed=1).digest()
    assert small.digest() != small.select([1, 0, 2, 3, 4, 5, 6]).digest()
    assert np.isfinite(small.x.numpy()).all()
