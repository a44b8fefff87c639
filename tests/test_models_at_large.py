"""Models that nobody ships but somebody will write: several sites, latents of examples, hyperpriors."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pyro
import pytest
import torch
from pyro.distributions import Normal, Poisson, StudentT
from pyro.distributions.util import scale_and_mask
from pyro.infer import Trace_ELBO
from support.federations import slopes
from support.methods import noise_for, states
from support.rounds import Rounds
from torch import nn
from torch.distributions import kl_divergence
from torch.nn.functional import softplus

from hierfl import Batch, Federation, UserError
from hierfl.inference import SVI, Gradient, Method, SampleWeighted, fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.gradients import elbo_gradient
from hierfl.inference.evaluation.fitted import Fitted
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.constant_latent import constant_latent
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.objective.log_joint import global_log_prob, sum_rows
from hierfl.inference.objective.sites import guide_latents, model_sites
from hierfl.models import FedAvg, FedPer, FedRep, PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead
from hierfl.nn.networks.build import architecture
from hierfl.ppl.plates import clients, data, flat, param, sample
from hierfl.rng import ClientNoise, generator


class TwoSites(Method):
    """An intercept b_j beside the head, and a latent of every example: z_ij ~ N(0, 1) moves the first feature."""

    def shared(self, start: InitialWeights) -> dict:
        return {"w": 0.1 * start.head, "slope": torch.tensor([0.3]), **start.base}

    def personal(self, start: InitialWeights) -> dict:
        d = len(start.head)
        return {"mu": 0.1 * start.head, "pi": torch.full((d,), -1.0), "m": torch.zeros(1), "s": torch.zeros(1)}

    def model(self, batch: object) -> None:
        net = self.network
        w = sample("w", flat(net.head.d))
        with clients(batch):
            w_j = sample("w_j", Normal(w, 0.5).to_event(1))
            b_j = sample("b_j", Normal(torch.zeros(1, dtype=batch.n.dtype), 1.0).to_event(1))
            with data(batch):
                z = sample("z", Normal(torch.zeros(1, dtype=batch.n.dtype), 1.0).to_event(1))
                out = net.head(w_j, net.base(batch.x)) + b_j + z
                sample("y", net.likelihood(out), obs=batch.y)

    def guide(self, batch: object) -> None:
        with clients(batch):
            sample("w_j", Normal(param("mu"), softplus(param("pi"))).to_event(1))
            sample("b_j", Normal(param("m"), softplus(param("s"))).to_event(1))
            with data(batch):
                amortised = (batch.x[..., :1] * param("slope")).tanh()
                sample("z", Normal(amortised, 0.7).to_event(1))

    def local(self) -> list:
        return [
            SVI(["mu", "pi", "m", "s"], 3, sgd(0.01), particles=2),
            SVI(["slope", "base"], 2, sgd(0.01, 0.9), 4, particles=2, per="example"),
        ]

    def exchange(self) -> dict:
        return {"slope": SampleWeighted(), "base": SampleWeighted(), "w": Gradient(sgd(0.05), particles=2)}


def test_latents_of_examples_keep_restriction_and_plate_independence(small: Federation, net: Architecture) -> None:
    method = TwoSites(net)
    shared, rows = states(method, small)
    everyone = list(range(small.clients))
    noise = noise_for(small, everyone, 2)
    noise.counts = small.sizes()
    together = elbo(method, small.batch(everyone), {**shared, **rows}, noise)
    for j in everyone:
        noise = noise_for(small, [j], 2)
        noise.counts = [small.sizes()[j]]
        alone = elbo(method, small.batch([j]), {**shared, **{k: v[[j]] for k, v in rows.items()}}, noise)
        assert torch.allclose(together[j], alone[0], rtol=1e-10)
    a, b = (fit(method, small, rounds=3, chunk=c, dtype=torch.float64, progress=False) for c in (1, 7))
    for name, value in {**a.shared, **a.personal}.items():
        assert torch.allclose(value, {**b.shared, **b.personal}[name], rtol=1e-5, atol=1e-5), name


def test_the_kl_of_examples_leaves_padding_out_and_counts_minibatches_up(small: Federation, net: Architecture) -> None:
    """The analytic KL of z summed over real examples: the difference that the site makes at fixed draws."""
    method = TwoSites(net)
    shared, rows = states(method, small)
    batch = small.batch([0, 2])
    values = {**shared, **{k: v[[0, 2]] for k, v in rows.items()}}
    mean = (batch.x[..., 0] * shared["slope"]).tanh()
    kl = 0.5 * (mean**2 + 0.7**2 - 1) - torch.tensor(0.7).log()

    def site_kl(batch: object) -> torch.Tensor:
        def noise() -> ClientNoise:
            return ClientNoise([("a",), ("b",)], 1, counts=[23, 2], dtype=torch.float64)

        full = elbo(method, batch, values, noise())
        latents = guide_latents(method, batch, values, noise())

        sites = model_sites(method, batch, values, latents)
        y = sum_rows(scale_and_mask(sites["y"].fn.log_prob(sites["y"].value), sites["y"].scale, sites["y"].mask), 2)
        others = sum(sum_rows(kl_divergence(latents[k].fn, sites[k].fn), 2) for k in ("w_j", "b_j"))
        return y - others - full

    assert torch.allclose(site_kl(batch), (kl * batch.mask).sum(1), rtol=1e-6)
    scaled = Batch(batch.x, batch.y, batch.mask, batch.n, torch.tensor([[2.0], [5.0]], dtype=torch.float64))
    expected = (kl * batch.mask).sum(1) * torch.tensor([2.0, 5.0], dtype=torch.float64)
    assert torch.allclose(site_kl(scaled), expected, rtol=1e-6)


def test_streams_differ_by_client_round_phase_and_site(small: Federation, net: Architecture) -> None:
    method = TwoSites(net)
    shared, rows = states(method, small)
    size = torch.Size([400])

    def drawn(round: int, phase: object, site: str) -> torch.Tensor:
        chunk = ClientChunk(method, small, [0, 1], round, 0, shared, {k: v[:2] for k, v in rows.items()})
        return chunk.noise(phase, 1).normal(site, None, size)[0, :, 0]

    fitted = Fitted(method, small, shared, {}, {}, {}, 0)
    streams = [*drawn(1, 1, "w_j"), *drawn(2, 1, "w_j"), *drawn(1, 2, "w_j"), *drawn(1, 1, "b_j")]
    for purpose in ("predict", "posterior"):
        streams += list(fitted.noise([0, 1], 1, purpose).normal("w_j", None, size)[0, :, 0])
    correlation = torch.corrcoef(torch.stack(streams)) - torch.eye(len(streams))
    assert correlation.abs().max() < 5 / 400**0.5  # twelve independent streams of 400
    chunk = ClientChunk(method, small, [0], 1, 0, shared, {})
    assert chunk.key(1, 0) != fitted.noise([0], 1, "predict").keys[0]


def test_noise_is_read_forwards() -> None:
    noise = ClientNoise([("a",)], 5)
    noise.at(500).normal("w", None, torch.Size([700]))
    with pytest.raises(ValueError, match="read forwards"):
        noise.at(0).normal("w", None, torch.Size([700]))


def test_every_step_of_a_phase_has_fresh_draws(
    small: Federation, net: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hierfl.inference.objective.elbo as objective

    seen: list[torch.Tensor] = []
    original = objective.model_sites

    def spy(*arguments: object) -> dict:
        seen.append(arguments[3]["w_j"].value.detach().clone())  # type: ignore[index]
        return original(*arguments)

    monkeypatch.setattr(objective, "model_sites", spy)
    method = PFedVEM(net)
    shared, rows = states(method, small)
    chunk = ClientChunk(method, small, [0], 1, 0, shared, {k: v[[0]] for k, v in rows.items()})
    SVI(["base"], 2, sgd(1e-3), 5, particles=3, per="example").run(chunk, 2)  # the head stands still
    assert len(seen) == 10
    values = torch.stack(seen)
    assert len(values.unique()) == values.numel()
    assert values.shape[1] == 3


def test_generic_gradients_are_taken_at_what_was_broadcast(small: Federation, net: Architecture) -> None:
    method = FedPer(net)
    shared, rows = states(method, small)
    chunk = ClientChunk(method, small, [0, 1], 1, 0, shared, {k: v[:2] for k, v in rows.items()})
    names = list(net.base.names)
    trained = SVI(["base"], 5, sgd(0.5)).run(chunk, 0)
    before, after = (elbo_gradient(one, names, 1, "g") for one in (chunk, trained))
    assert not torch.allclose(trained.values[names[0]].squeeze(1), shared[names[0]])
    assert all(torch.equal(before[k], after[k]) for k in names)


# -- the globals ----------------------------------------------------------------------------------------------------


class Hyper(Method):
    """w ~ N(0, exp(log_s)^2): the scale of the globals is itself a parameter, and only log p(w) knows it."""

    order = ("w", "log_s")

    def shared(self, start: InitialWeights) -> dict:
        return {"w": torch.full_like(start.head, 1.0), "log_s": torch.zeros(1)}

    def personal(self, start: InitialWeights) -> dict:
        return {"mu": 0.1 * start.head, "pi": torch.zeros_like(start.head)}

    def model(self, batch: object) -> None:
        net = self.network
        scale = param("log_s").exp()
        w = sample("w", Normal(torch.zeros(net.head.d, dtype=batch.n.dtype), scale).to_event(1))
        pyro.deterministic("norm", w.norm(dim=-1))
        with clients(batch):
            w_j = sample("w_j", Normal(w, 1.0).to_event(1))
            with data(batch):
                sample("y", net.likelihood(net.head(w_j, net.base(batch.x))), obs=batch.y)

    def guide(self, batch: object) -> None:
        with clients(batch):
            sample("w_j", Normal(param("mu"), softplus(param("pi"))).to_event(1))

    def local(self) -> list:
        return []

    def exchange(self) -> dict:
        return {name: Gradient(sgd(0.1)) for name in self.order}


class Backwards(Hyper):
    order = ("log_s", "w")


def test_rules_see_the_same_old_values_whatever_their_order() -> None:
    fed = slopes([6, 4])
    net = architecture("linear", fed)
    runs = [fit(cls(net), fed, rounds=3, dtype=torch.float64, progress=False) for cls in (Hyper, Backwards)]
    for name in ("w", "log_s"):
        assert torch.allclose(runs[0].shared[name], runs[1].shared[name], rtol=1e-12)
    one = fit(Hyper(net), fed, rounds=1, dtype=torch.float64, progress=False)
    # d/dlog_s of sum log N(w_i | 0, s^2) at w = 1, s = 1 is sum (w_i^2 - 1) = 0 in the first round, not after
    assert one.shared["log_s"].abs().max() < 1e-12
    assert runs[0].shared["log_s"].abs().max() > 1e-3


def test_factors_and_anchors_on_globals_count(small: Federation, net: Architecture) -> None:
    class Anchored(FedAvg):
        def model(self, batch: object) -> None:
            super().model(batch)
            w = param("w")
            pyro.factor("ridge", -5.0 * w.square().sum(-1))
            sample("anchor", Normal(w.sum(-1), 0.5), obs=torch.tensor(10.0, dtype=torch.float64))

        def local(self) -> list:
            return []

        def exchange(self) -> dict:
            return {"w": Gradient(sgd(0.001))}

    method = Anchored(net)
    shared, _ = states(method, small)
    w = shared["w"]
    expected = -5 * w.square().sum() + Normal(w.sum(), 0.5).log_prob(torch.tensor(10.0, dtype=torch.float64))
    assert torch.allclose(global_log_prob(method, small.template(), shared, {}), expected)
    found = Rounds(method, small, shared, {}).server._prior_gradient(shared, ["w"])["w"]
    assert torch.allclose(found, -10 * w + (10 - w.sum()) / 0.25)
    run = fit(method, small, rounds=1, dtype=torch.float64, progress=False)
    assert run.last()["pm_accuracy"] is not None  # y is the response, not the anchor


# -- predictions ----------------------------------------------------------------------------------------------------


class Nested(Method):
    """s_j ~ N(0, 2^2), w_j | s_j ~ N(w + s_j, 0.05^2)."""

    def shared(self, start: InitialWeights) -> dict:
        return {"w": torch.ones_like(start.head)}

    def personal(self, start: InitialWeights) -> dict:
        d = len(start.head)
        return {"m": torch.zeros(1), "mu": torch.ones(d), "pi": torch.full((d,), -3.0)}

    def model(self, batch: object) -> None:
        net = self.network
        w = sample("w", flat(net.head.d))
        with clients(batch):
            s_j = sample("s_j", Normal(torch.zeros(1, dtype=batch.n.dtype), 2.0).to_event(1))
            w_j = sample("w_j", Normal(w + s_j, 0.05).to_event(1))
            with data(batch):
                sample("y", net.likelihood(net.head(w_j, net.base(batch.x))), obs=batch.y)

    def guide(self, batch: object) -> None:
        with clients(batch):
            sample("s_j", Normal(param("m"), 0.01).to_event(1))
            sample("w_j", Normal(param("mu"), softplus(param("pi"))).to_event(1))


def test_nested_latents_are_drawn_one_after_the_other() -> None:
    fed = slopes([6, 4, 1])
    run = fit(Nested(architecture("linear", fed, noise=0.5)), fed, rounds=0, dtype=torch.float64, progress=False)
    x = fed.x[:5]
    said = run.predict_new_client(x, draws=20_000)
    assert said.shape == (5, 2)
    design = torch.cat([x.double(), torch.ones(5, 1)], 1)
    variance = 4 * design.sum(1).square() + 0.05**2 * design.square().sum(1) + 0.25
    assert torch.allclose(said[:, 1], variance.sqrt(), rtol=0.03)
    prior = run.posterior(draws=4000).prior
    assert prior["s_j"].shape == (1, 4000, 3, 1)
    assert abs(float(prior["w_j"].values[0, :, 2, 0].std()) - (4 + 0.05**2) ** 0.5) < 0.1


@pytest.mark.parametrize("family", ["student", "poisson"])
def test_other_responses_are_scored_by_their_own_density(family: str) -> None:
    fed = slopes([8, 6, 7])
    if family == "poisson":
        fed = dataclasses.replace(fed, y=fed.y.abs().round())
    fed_test = [i[-3:] for i in fed.train]
    fed = dataclasses.replace(fed, test=fed_test, global_test=torch.cat(fed_test))

    @dataclass(frozen=True)
    class Own(Architecture):
        def likelihood(self, output: torch.Tensor) -> object:
            out = output.squeeze(-1)
            return StudentT(3.0, out, 0.5) if family == "student" else Poisson(out.exp())

    net = architecture("linear", fed)
    method = PFedVEM(Own(net.base, net.head, 1.0))
    run = fit(method, fed, rounds=1, dtype=torch.float64, progress=False)
    nll = []
    for j in range(3):
        x, y = fed.examples(fed.test[j])
        out = torch.cat([x, torch.ones(3, 1)], 1) @ run.personal["mu"][j]
        own = StudentT(3.0, out, 0.5) if family == "student" else Poisson(out.exp())
        nll.append(-own.log_prob(y).mean())
    row = run.last()
    assert row["pm_nll"] == pytest.approx(float(torch.stack(nll).mean()), rel=1e-9)
    assert row["pm_crps"] != row["pm_crps"]  # not given for other families


def test_point_guides_still_draw_responses(small: Federation, net: Architecture) -> None:
    draws = fit(FedPer(net), small, rounds=1, progress=False).posterior(draws=40).posterior_predictive["y"].values[0]
    assert (draws.std(0) > 0).mean() > 0.5


def test_a_prior_without_a_mean_is_said_so_before_the_fit(small: Federation, net: Architecture) -> None:
    class FlatGlobal(FedPer):
        @property
        def has_global_model(self) -> bool:
            return True

    with pytest.raises(UserError, match="the prior of 'w_j', ImproperUniform, cannot be put at its mean"):
        fit(FlatGlobal(net), small, rounds=1, progress=False)


def test_dropout_elsewhere_is_refused() -> None:
    with torch.random.fork_rng():
        modules = [
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.Dropout(0.5), nn.MaxPool2d(2), nn.Flatten()),
            nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Dropout(0.5))),
            nn.Sequential(nn.Linear(4, 4), nn.Dropout1d(0.5)),
        ]
    for module in modules:
        with pytest.raises(UserError, match="has dropout whose masks"):
            Network(module)


def test_dropout_acts_where_the_network_is_trained_with_masks_keyed_by_client(small: Federation) -> None:
    net = architecture("mlp:40,dropout=0.3", small)
    weights = {k.removeprefix("base."): v.double() for k, v in InitialWeights.of(net, 0).base.items()}
    x = small.batch([0]).x
    plain = net.base.apply(weights, x)
    normals = torch.randn((4000, *plain.shape[1:]), generator=generator("drop"), dtype=torch.float64)
    many = net.base.apply(weights, x.expand(4000, *x.shape[1:]), lambda name, at: normals)
    assert float((many == 0)[:, plain[0] > 0].double().mean()) == pytest.approx(0.3, abs=0.005)
    assert torch.allclose(many.mean(0), plain[0], atol=0.06 * float(plain.max()))
    one, seven, undropped = (
        fit(
            PFedVEM(architecture(spec, small), base_batch=5, head_epochs=1),
            small,
            rounds=2,
            chunk=chunk,
            dtype=torch.float64,
            progress=False,
        )
        for spec, chunk in (("mlp:40,dropout=0.3", 1), ("mlp:40,dropout=0.3", 7), ("mlp:40", 7))
    )
    for name, value in one.shared.items():
        assert torch.allclose(value, seven.shared[name], rtol=1e-6, atol=1e-9), name
    assert not torch.allclose(seven.shared["base.1.weight"], undropped.shared["base.1.weight"])
    x = x[0, :3]
    assert torch.equal(seven.predict(x, client="place-00"), seven.predict(x, client="place-00"))
    for spec, words in (
        ("mlp:4,leaky=1", "leaky is a slope between 0 and 1"),
        ("linear,leaky=0.1", "leaky is for mlp, cnn, convnet, bncnn"),
        ("mlp:4,leaky=0.1,leaky=0.2", "leaky is said twice"),
        ("mlp:4,dropout=0.1,tanh=1", "unknown option of a network 'tanh=1'"),
    ):
        with pytest.raises(UserError, match=words):
            architecture(spec, small)
    both = architecture("mlp:4,leaky=0.2,dropout=0.5", small).base.module
    assert [type(layer).__name__ for layer in both] == ["Flatten", "Linear", "LeakyReLU", "Dropout"]
    assert both[2].negative_slope == 0.2
    for spec in ("mlp:4,dropout=1", "mlp:4,dropout=", "mlp:4,dropout=x", "linear,dropout=0.5"):
        with pytest.raises(UserError, match="dropout is"):
            architecture(spec, small)


def test_a_network_of_ones_own(small: Federation) -> None:
    with torch.random.fork_rng():
        module = nn.Sequential(nn.Linear(4, 6), nn.Softplus(), nn.Linear(6, 3))
    net = Architecture(Network(module), LinearHead(3, 3))
    a, b = (fit(PFedVEM(net), small, rounds=2, chunk=c, dtype=torch.float64, progress=False) for c in (1, 7))
    for name, value in a.shared.items():
        assert torch.allclose(value, b.shared[name], rtol=1e-6, atol=1e-9)


def test_what_is_padded_is_nobody_elses(small: Federation) -> None:
    batch = small.batch([2, 0])
    assert torch.equal(batch.x[0, 2:], batch.x[0, :1].expand(21, -1))


def test_priors_report_what_they_have(small: Federation, net: Architecture) -> None:
    fixed = fit(PFedVEM(net, prior="fixed"), small, rounds=1, dtype=torch.float64, progress=False)
    assert (fixed.shared["w"] == 0).all()
    deviation = fixed.personal["mu"].square().mean(1)
    assert torch.allclose(torch.tensor(fixed.clients["deviation"].tolist(), dtype=torch.float64), deviation)
    flat_run = fit(PFedVEM(net, prior="flat"), small, rounds=1, progress=False)
    assert "tau" not in flat_run.clients
    assert flat_run.personal.keys() == {"mu"}


def test_every_prior_starts_from_the_same_network_and_head(small: Federation, net: Architecture) -> None:
    starts = [
        fit(cls, small, rounds=0, progress=False) for cls in (PFedVEM(net), PFedVEM(net, prior="fixed"), FedPer(net))
    ]
    for other in starts[1:]:
        assert torch.equal(starts[0].personal["mu"], other.personal["mu"])
        assert torch.equal(starts[0].shared["base.1.weight"], other.shared["base.1.weight"])


def test_pyros_own_elbo_agrees_on_two_sites(small: Federation, net: Architecture) -> None:
    method = TwoSites(net)
    shared, rows = states(method, small)
    batch = small.batch(range(small.clients))
    with pyro.get_param_store().scope(), torch.random.fork_rng():
        for name, value in {**shared, **rows}.items():
            pyro.param(name, value.clone())
        torch.manual_seed(0)
        model = pyro.poutine.condition(method.model, data={"w": shared["w"]})
        loss = Trace_ELBO(num_particles=500, vectorize_particles=True, max_plate_nesting=2)
        theirs = -loss.loss(model, method.guide, batch)
    noise = noise_for(small, list(range(small.clients)), 500)
    noise.counts = small.sizes()
    ours = float(elbo(method, batch, {**shared, **rows}, noise).sum())
    assert theirs == pytest.approx(ours, rel=0.03)


def test_clients_with_unequal_test_sets_are_scored_on_their_own(small: Federation, net: Architecture) -> None:
    sizes = [12, 3, 7, 1, 0, 5, 9]
    uneven = dataclasses.replace(small, test=[i[:n] for i, n in zip(small.test, sizes, strict=True)])
    run = fit(PFedVEM(net), uneven, rounds=2, chunk=7, dtype=torch.float64, progress=False)
    table = run.clients
    assert table["n_test"].tolist() == sizes
    accuracies = []
    for j, n in enumerate(sizes):
        if not n:
            assert table["accuracy"].isna()[j]
            continue
        x, y = uneven.x[uneven.test[j]], uneven.y[uneven.test[j]]
        p = run.predict(x, j)
        accuracies.append(float((p.argmax(1) == y).double().mean()))
        assert table["accuracy"][j] == pytest.approx(accuracies[-1])
        assert table["nll"][j] == pytest.approx(float(-p.gather(1, y[:, None]).log().mean()))
        draws = run.predict(x, j, draws=20)
        assert draws.shape == (n, 3)
    assert run.last()["pm_accuracy"] == pytest.approx(sum(accuracies) / len(accuracies))
    hits = sum(a * n for a, n in zip(accuracies, [n for n in sizes if n], strict=True))
    assert run.last()["pm_accuracy_pooled"] == pytest.approx(hits / sum(sizes))


def test_a_guide_is_asked_once_only_where_nothing_in_it_can_change(small: Federation, net: Architecture) -> None:
    class Amortised(PFedVEM):
        def guide(self, batch: Batch) -> None:
            shift = batch.y.double().mean(1, keepdim=True)[..., None]
            with clients(batch):
                sample("w_j", Normal(param("mu") + shift, softplus(param("pi"))).to_event(1))

    class OfTheBase(PFedVEM):
        def guide(self, batch: Batch) -> None:
            size = param("base.1.bias").square().sum(-1, keepdim=True)
            with clients(batch):
                sample("w_j", Normal(param("mu") + size, softplus(param("pi"))).to_event(1))

    for method, moving, stands in (
        (PFedVEM(net), net.base.names, True),
        (PFedVEM(net), ["mu"], False),
        (FedRep(net), net.base.names, True),
        (Amortised(net), net.base.names, False),
        (OfTheBase(net), net.base.names, False),
        (TwoSites(net), net.base.names, False),
    ):
        shared, rows = states(method, small)
        values = {**shared, **rows}
        noise = noise_for(small, list(range(7)), 3)
        site = constant_latent(method, small.batch(range(7)), values, noise, moving)
        assert (site is not None) is stands, type(method)
        if site is not None:
            drawn = site.redrawn(noise.at(1))["w_j"].value
            again = guide_latents(method, small.batch(range(7)), values, noise.at(1))["w_j"].value
            assert torch.equal(drawn, again)
