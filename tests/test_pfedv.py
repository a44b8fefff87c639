"""pFedV and FedV: the paper's objective, a round by hand, the prior that is broadcast, clients that were never seen."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import Call
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hierfl import Federation, UserError
from hierfl.errors import NotFinite
from hierfl.experiments.run_folder.results import write_results
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.minibatches import plan
from hierfl.inference.evaluation import fitted as predictions
from hierfl.inference.evaluation.new_client import fit_new_client
from hierfl.inference.evaluation.personal import evaluate_personal
from hierfl.inference.method.base import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.objective.sites import guide_latents
from hierfl.inference.state import client_view
from hierfl.models import FedAvg, FedBN, FedPer, FedV, PFedV
from hierfl.nn.architecture import Architecture
from hierfl.nn.layers.batch_norm import Norms, is_statistic
from hierfl.nn.networks.build import architecture
from hierfl.ppl.restrict import Restrict
from hierfl.rng import generator

SPEC = "bncnn:3,4:8,z-norm"


def pictures(
    sizes: tuple[int, ...] = (13, 8, 5), seed: int = 0, test: float = 0.0, contrast: bool = False
) -> Federation:
    """Three bars in noise, three classes; with contrast, every client has its own."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    y, who = rng.integers(0, 3, n), np.repeat(np.arange(len(sizes)), sizes)
    y[:3] = [0, 1, 2]
    x = 0.5 * rng.normal(size=(n, 1, 6, 6))
    for k in range(3):
        x[y == k, :, 2 * k : 2 * k + 2] += 1.5
    if contrast:
        x = x * np.array([1.0, -1.0, 3.0, -3.0])[who][:, None, None, None]
    return Federation.from_arrays(x.astype(np.float32), y, np.array([f"c{j}" for j in who]), test=test)


def method_of(cls: type[PFedV], fed: Federation, **settings: object) -> PFedV:
    return cls(architecture(SPEC, fed, latent=True), **settings)


def states(method: Method, fed: Federation) -> tuple[dict, dict]:
    """Shared values; rows for all clients with copies of everything trained, all different from what was sent."""
    start, rows = InitialWeights.of(method.network, 5), {}
    shared = {k: v.double() for k, v in method.shared(start).items()}
    for k, v in {**shared, **method.personal(start)}.items():
        noise = 0.2 * torch.randn((fed.clients, 1, *v.shape), generator=generator(k), dtype=torch.float64)
        rows[k] = (v + noise).abs() + 0.1 if k.endswith("running_var") else v + noise
    return shared, rows


class Torch(nn.Module):
    """The network as anybody would write it, for one client."""

    def __init__(self, network: Architecture, classes: int = 3) -> None:
        super().__init__()
        self.encoder, self.base = copy.deepcopy(network.encoder.module), copy.deepcopy(network.base.module)
        with torch.random.fork_rng(devices=[]):
            self.head = nn.Linear(network.head.features, classes)
        self.double().requires_grad_(True)

    def load(self, values: dict[str, Tensor], head: Tensor) -> Torch:
        f = self.head.in_features
        with torch.no_grad():
            for name, value in [*self.named_parameters(), *self.named_buffers()]:
                if name in values:
                    value.copy_(values[name])
            self.head.weight.copy_(head[: 3 * f].view(3, f))
            self.head.bias.copy_(head[3 * f :])
        return self

    def flat_head(self) -> Tensor:
        return torch.cat([self.head.weight.flatten(), self.head.bias])

    def loss(self, x: Tensor, y: Tensor, xi: Tensor, alpha: float, sent: nn.Module | None, mean: bool) -> Tensor:
        """Mean of CE + alpha KL, Eq. 7, the KL by the closed form for two Gaussians."""
        mu, log_var = self.encoder(x).chunk(2, -1)
        z = mu + (0.5 * log_var).exp() * xi
        if sent is None:
            mu_s, log_var_s = torch.zeros_like(mu), torch.zeros_like(mu)
        else:
            with torch.no_grad():
                mu_s, log_var_s = sent(x).chunk(2, -1)
        kl = 0.5 * (log_var_s - log_var + (log_var.exp() + (mu - mu_s) ** 2) / log_var_s.exp() - 1)
        kl = kl.mean(-1) if mean else kl.sum(-1)
        return (cross_entropy(self.head(self.base(z)), y, reduction="none") + alpha * kl).mean()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kl", ["sum", "mean"])
@pytest.mark.parametrize("prior", ["hierarchical", "fixed"])
@pytest.mark.parametrize("cls", [PFedV, FedV])
def test_the_elbo_is_the_papers_objective(cls: type[PFedV], prior: str, kl: str, training: bool) -> None:
    """For the same noise, with batch norm by batches (prior and client alike) and by running statistics."""
    fed = pictures()
    method = method_of(cls, fed, prior=prior, kl=kl, alpha=0.7)
    shared, rows = states(method, fed)
    batch = fed.to(dtype=torch.float64).batch([0, 1, 2])
    chunk = ClientChunk(method, fed.to(dtype=torch.float64), [0, 1, 2], 1, 0, shared, rows)
    noise, again = (chunk.noise(0, 1, chunk.sizes) for _ in range(2))
    norms = Norms(batch.mask, frozenset(rows)) if training else None
    ours = elbo(method, batch, client_view(shared, rows), noise, norms=norms) / batch.n
    xi = again.normal("z", batch.width, torch.Size([method.network.latents]))[0]
    sent = None
    if prior == "hierarchical":
        sent = (
            Torch(method.network).load(shared, rows["w" if cls is FedV else "w_j_point"][0, 0]).train(training).encoder
        )
    for j, n in enumerate(fed.sizes()):
        own = {k: v[j, 0] for k, v in rows.items()}
        client = Torch(method.network).load(own, own["w" if cls is FedV else "w_j_point"]).train(training)
        index = fed.train[j]
        sent_j = copy.deepcopy(sent)  # (its statistics move)
        loss = client.loss(fed.x[index].double(), fed.y[index], xi[j, :n], 0.7, sent_j, kl == "mean")
        assert torch.isclose(ours[j], -loss.detach(), rtol=1e-8)


@pytest.mark.parametrize(
    ("cls", "prior", "more"),
    [
        (PFedV, "hierarchical", {}),
        (FedV, "fixed", {}),
        (PFedV, "hierarchical", {"local_norm": "all"}),
        (FedV, "hierarchical", {"local_norm": "all", "prior_norm": "running"}),
        (PFedV, "hierarchical", {"local_norm": "statistics", "prior_norm": "running"}),
        (FedV, "fixed", {"local_norm": "statistics"}),
    ],
)
def test_a_round_by_hand(cls: type[PFedV], prior: str, more: dict[str, str]) -> None:
    """Two rounds, client after client in plain torch: minibatches with short ends, averages by n_j, statistics too.

    What a client keeps of its batch norm it begins the next round with, and so does the prior.
    """
    fed = pictures()
    method = method_of(cls, fed, prior=prior, alpha=0.3, kl="sum", epochs=2, lr=0.02 if more else 0.05, batch=4, **more)
    run = fit(method, fed, rounds=2, chunk=3, dtype=torch.float64, progress=False, seed=3)
    start = InitialWeights.of(method.network, 3)
    shared = {k: v.double() for k, v in method.shared(start).items()}
    heads = dict.fromkeys(range(3), 0.1 * start.head)
    kept = {j: {k: start.base[k].double() for k in method.kept} for j in range(3)}
    for t in (1, 2):
        totals: dict[str, Tensor] = {}
        for j, n in enumerate(fed.sizes()):
            client = Torch(method.network).load({**shared, **kept[j]}, shared.get("w", heads[j])).train()
            sent = copy.deepcopy(client.encoder) if prior == "hierarchical" else None
            if sent is not None and method.settings.prior_norm == "running":
                sent.eval()
            optimizer = torch.optim.SGD(client.parameters(), lr=method.settings.lr)
            chunk = ClientChunk(method, fed.to(dtype=torch.float64), [j], t, 3, {}, {})
            noise = chunk.noise(0, 1)
            for number, step in enumerate(plan(chunk, 0, 0, 4, 2)):
                index = fed.train[j][step[step >= 0]]
                noise.counts = [len(index)]
                xi = noise.at(number).normal("z", len(index), torch.Size([method.network.latents]))[0, 0]
                for part in client.modules():
                    if isinstance(part, nn.BatchNorm1d):  # torch refuses what has no spread
                        part.train(len(index) > 1)
                optimizer.zero_grad()
                client.loss(fed.x[index].double(), fed.y[index], xi, 0.3, sent, False).backward()
                optimizer.step()
            heads[j] = client.flat_head().detach()
            kept[j] = {k: client.state_dict()[k].clone() for k in method.kept}
            for name in shared:
                value = heads[j] if name == "w" else client.state_dict()[name]
                totals[name] = totals.get(name, 0) + n / sum(fed.sizes()) * value
        shared = totals
    for name, value in shared.items():
        assert torch.allclose(run.shared[name], value, atol=1e-8), name
    for j in range(3):
        for name, value in kept[j].items():
            assert torch.allclose(run.personal[name][j], value, atol=1e-8), name
        if cls is PFedV:
            assert torch.allclose(run.personal["w_j_point"][j], heads[j], atol=1e-8)


def divergence(prior_norm: str) -> float:
    """KL from the hierarchical prior before a client's first step, in training."""
    fed = pictures().to(dtype=torch.float64)
    method = method_of(FedV, fed, prior_norm=prior_norm)
    shared, _ = states(method, fed)
    chunk = ClientChunk(method, fed, [0, 1, 2], 1, 0, shared, {}).own(shared)
    batch, norms = chunk.batch(), Norms(chunk.batch().mask, frozenset(shared))
    q = guide_latents(method, batch, chunk.view, None, norms)["z"].fn.base_dist
    with Restrict(chunk.view, norms=norms):
        p = method.prior(batch.x).base_dist
    return float(torch.distributions.kl_divergence(q, p).sum())


@pytest.mark.parametrize("prior", ["hierarchical", "fixed"])
def test_both_sites_are_scaled_alike(prior: str) -> None:
    """The analytic KL is weighted once; estimated from draws, log p and log q each are."""
    fed = pictures((5, 4)).to(dtype=torch.float64)
    method = method_of(PFedV, fed, prior=prior, kl="sum", alpha=0.3)
    shared, rows = states(method, fed)
    chunk = ClientChunk(method, fed, [0, 1], 1, 0, shared, rows)
    values, many = client_view(shared, rows), 40
    gaps = []
    for seed in range(many):
        exact, drawn = (
            elbo(method, chunk.batch(), values, replace(chunk, seed=seed).noise(0, 50, chunk.sizes), analytic=a)
            for a in (True, False)
        )
        gaps.append(drawn - exact)  # (the same draws: what is left is the KL's Monte-Carlo error)
    gap = torch.stack(gaps)
    error = gap.std(0) / many**0.5
    assert (gap.mean(0).abs() < 4 * error).all()
    assert (error < 0.02 * exact.abs()).all()


@pytest.mark.parametrize("draws", [0, 7])
@pytest.mark.parametrize("cls", [PFedV, FedV])
def test_predictions_by_hand(cls: type[PFedV], draws: int) -> None:
    """The aggregate's encoder and classifier, the client's own last layer, and draws of q(z | x)."""
    fed = pictures((20, 15), test=0.3)
    run = fit(method_of(cls, fed, lr=0.1, batch=8), fed, rounds=3, dtype=torch.float64, progress=False, draws=7)
    x = fed.x[fed.test[1]]
    head = run.shared["w"] if cls is FedV else run.personal["w_j_point"][1]
    torchs = Torch(run.fitted.method.network).load(run.shared, head).eval()
    with torch.no_grad():
        mu, log_var = torchs.encoder(x.double()).chunk(2, -1)
        noise = run.fitted.noise([1], draws, "predict") if draws else None
        xi = noise.normal("z", len(x), mu.shape[1:])[:, 0] if noise else torch.zeros((1, *mu.shape))
        z = mu + (0.5 * log_var).exp() * xi
        theirs = torch.stack([torchs.head(torchs.base(one)).softmax(-1) for one in z]).mean(0)
    assert torch.allclose(run.predict(x, 1, draws=draws), theirs, atol=1e-9)


def test_a_newcomers_steps_by_hand() -> None:
    """Only its last layer moves, from the mean of the others', under the shared networks as they predict."""
    fed = pictures((20, 15))
    run = fit(method_of(PFedV, fed, prior="flat", lr=0.1), fed, rounds=2, dtype=torch.float64, progress=False)
    x, y = fed.x[:6], fed.y[:6]
    torchs = Torch(run.fitted.method.network).load(run.shared, run.personal["w_j_point"].mean(0)).eval()
    optimizer = torch.optim.SGD(torchs.head.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        features = torchs.base(torchs.encoder(x.double()).chunk(2, -1)[0])
        cross_entropy(torchs.head(features), y).backward()
        optimizer.step()
    with torch.no_grad():
        theirs = torchs.head(torchs.base(torchs.encoder(fed.x.double()).chunk(2, -1)[0])).softmax(-1)
    ours = run.predict_new_client(fed.x, given=(x, y), draws=0, rounds=4)
    assert torch.allclose(ours, theirs, atol=1e-9)


def test_the_prior_is_the_client_until_it_moves() -> None:
    assert abs(divergence("batch")) < 1e-12
    assert divergence("running") > 1.0


def test_a_fixed_prior_never_moves_and_a_learned_one_does() -> None:
    fed = pictures()
    x = fed.to(dtype=torch.float64).batch([0]).x
    for prior, moves in (("hierarchical", True), ("fixed", False)):
        method = method_of(PFedV, fed, prior=prior, lr=0.1)
        means = []
        for rounds in (0, 2):
            run = fit(method, fed, rounds=rounds, dtype=torch.float64, progress=False)
            with Restrict(run.fitted.values([0])):
                means.append(method.prior(x).mean)
        assert (
            (means[0] - means[1]).abs().max() > 1e-3 if moves else torch.equal(means[0].expand_as(means[1]), means[1])
        )


def test_a_flat_prior_is_the_plain_network() -> None:
    """No KL and no variance: FedPer's model, but for the batch norm that the encoder's last layer has or has not."""
    fed = pictures((20, 20))
    plain = FedPer(
        architecture("mlp:9,4", fed),
        lr=0.1,
        epochs=2,
        momentum=0.0,
        batch=32,
    )
    ours = PFedV(architecture("mlp:9,4", fed, latent=True), prior="flat", lr=0.1, epochs=2, batch=32)
    shared = {k: v.double() for k, v in ours.shared(InitialWeights.of(ours.network, 0)).items()}
    weight, bias = shared["encoder.3.weight"][:4], shared["encoder.3.bias"][:4]
    theirs = {"base.1.weight": shared["encoder.1.weight"], "base.1.bias": shared["encoder.1.bias"]}
    theirs |= {"base.3.weight": weight, "base.3.bias": bias}
    mu = torch.randn((2, 1, ours.network.head.d), generator=generator("mu"), dtype=torch.float64)
    fed = fed.to(dtype=torch.float64)
    one = ours.local()[0].run(ClientChunk(ours, fed, [0, 1], 1, 0, shared, {"w_j_point": mu}), 0)
    two = plain.local()[0].run(ClientChunk(plain, fed, [0, 1], 1, 0, theirs, {"mu": mu}), 0)
    assert torch.allclose(one.values["w_j_point"], two.values["mu"], atol=1e-10)
    assert torch.allclose(one.values["encoder.3.weight"][:, :, :4], two.values["base.3.weight"], atol=1e-10)
    assert torch.equal(one.values["encoder.3.weight"][:, :, 4:], shared["encoder.3.weight"][4:].expand(2, 1, 4, 9))


# -- predictions ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> dict[str, object]:
    fed = pictures((60, 60, 60), test=0.3, contrast=True)
    how = {"lr": 0.1, "epochs": 5, "batch": 16, "kl": "mean", "alpha": 0.1}
    return {cls.name: fit(method_of(cls, fed, **how), fed, rounds=20, progress=False, draws=8) for cls in (PFedV, FedV)}


def test_they_learn(trained: dict) -> None:
    for run in trained.values():
        assert run.last()["pm_accuracy"] > 0.85
        assert run.last()["pm_draws_accuracy"] > 0.85
    assert trained["fedv"].last()["gm_accuracy"] > 0.85
    assert trained["pfedv"].last()["gm_accuracy"] is None


def test_the_last_evaluation_is_kept(trained: dict) -> None:
    for run in trained.values():
        anew = replace(run, tested=None).client_metrics
        assert run.tested is not None
        for kept, found in zip(run.tested, anew, strict=True):
            assert kept.keys() == found.keys()
            assert all(np.array_equal(kept[k], found[k], equal_nan=True) for k in kept)
        assert run.last()["pm_draws_nll"] == pytest.approx(np.mean(anew[1]["nll"]))
    fed = pictures((20, 20), test=0.3)
    assert fit(method_of(FedV, fed), fed, rounds=0, progress=False).tested is not None
    assert fit(method_of(FedV, fed), fed, rounds=1, progress=False, splits=("validation",)).tested is None


def test_pieces_change_nothing_but_the_draws(trained: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained["fedv"]
    whole = evaluate_personal(run.fitted, "test", 3, (0, 8))
    monkeypatch.setattr(predictions, "LATENTS", 7 * 8 * run.fitted.method.network.latents)
    for chunk in (1, 3):  # seven examples at a time, and draws that do not depend on who else is there
        cut = evaluate_personal(run.fitted, "test", chunk, (0, 8))
        np.testing.assert_allclose(cut[0]["nll"], whole[0]["nll"], rtol=1e-5)
        if chunk == 1:
            alone = cut[1]["nll"]
        np.testing.assert_allclose(cut[1]["nll"], alone, rtol=1e-4)
        assert not np.allclose(cut[1]["nll"], whole[1]["nll"], rtol=1e-6)
    posterior = run.posterior(draws=4)
    assert posterior.log_likelihood["y"].shape == (1, 4, sum(run.fitted.federation.sizes()))
    assert "posterior" not in posterior.groups() or "z" not in posterior.posterior


def test_a_client_that_was_never_seen(trained: dict) -> None:
    """Another contrast: the global encoder and a last layer of its own, from a few examples."""
    new = pictures((8, 8, 8, 120), seed=1, contrast=True)
    index = new.train[3]
    x, y = new.x[index], new.y[index]
    for name, run in trained.items():
        if name == "pfedv":
            with pytest.raises(UserError, match="no global model"):
                run.predict_new_client(x)
            said = run.predict_new_client(x[30:], given=(x[:30], y[:30]), draws=0, rounds=4)
            mean = run.personal["w_j_point"].mean(0)
            assert torch.equal(run.fitted.method.init_new_client(run.personal, {})["w_j_point"], mean)
        else:
            with pytest.raises(UserError, match="nothing that a new client"):
                run.predict_new_client(x, given=(x, y))
            said = run.predict_new_client(x[30:], draws=0)
        assert torch.allclose(said.sum(1), torch.ones(len(said)), atol=1e-5)
        accuracy = float((said.argmax(1) == y[30:]).float().mean())
        assert accuracy > (0.6 if name == "pfedv" else 0.2)
    pfedv = trained["pfedv"]
    for how, words in (
        ({"rounds": -1}, "rounds must be a whole number"),
        ({"rounds": 1.5}, "rounds must be a whole number"),
        ({"given": x}, "given is a pair"),
    ):
        with pytest.raises(UserError, match=words):
            pfedv.predict_new_client(x, **{"given": (x, y), **how})
    averaged = trained["fedv"].predict_new_client(x[30:], draws=50)
    assert not torch.allclose(averaged, said)


@pytest.mark.parametrize("value", [float("nan"), 1e30, -1e30])
def test_a_model_that_has_diverged_leaves_its_results(value: float, tmp_path: Path) -> None:
    fed = pictures((20, 20), test=0.3)
    run = fit(method_of(PFedV, fed), fed, rounds=1, progress=False, draws=3)
    run.shared["encoder.4.bias"][:] = value  # means and log variances
    run = replace(run, tested=None)
    write_results(tmp_path, run, "pfedv")
    written = {path.name for path in tmp_path.iterdir()}
    assert {"clients.csv", "metrics.csv", "summary.json", "figures"} <= written
    json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    if value != -1e30:  # (there every standard deviation is zero: a point)
        assert "posterior.nc" not in written
        with pytest.raises(NotFinite, match="client c0 says nothing finite"):
            run.posterior()


def test_draws_are_independent_in_every_piece(trained: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    x = pictures((8,), seed=1).x[:1].expand(8, -1, -1, -1)
    monkeypatch.setattr(predictions, "LATENTS", 4 * 5 * trained["fedv"].fitted.method.network.latents)
    for said in (trained["fedv"].predict_new_client(x, draws=5), trained["fedv"].predict(x, 0, draws=5)):
        assert len(said[:, 0].unique()) == 8


def test_methods_that_cannot_be() -> None:
    fed = pictures()
    for make, words in (
        (lambda: PFedV(architecture(SPEC.removesuffix(",z-norm"), fed)), "latent=True"),
        (lambda: architecture("mlp:5,z-norm", fed), "latent features"),
        (lambda: fit(FedAvg(architecture(SPEC, fed, latent=True)), fed, rounds=1), "fedavg has no latent features"),
        (lambda: architecture("linear", fed, latent=True), "no layer"),
        (lambda: architecture("mlp:5,dropout=0.5", fed, latent=True), "no dropout"),
        (lambda: method_of(PFedV, fed, alpha=0), "alpha must be above 0"),
        (lambda: FedBN(architecture("mlp:5", fed)), "network mlp:5 has no batch norm"),
        (lambda: architecture("bncnn:3", fed), "is written bncnn:C,C"),
    ):
        with pytest.raises(UserError, match=words):
            make()


def test_networks_with_latent_features() -> None:
    fed = pictures()
    plain, latent = architecture("bncnn:3,4:8", fed), architecture("bncnn:3,4:8", fed, latent=True)
    assert latent.latents == 4 * 3 * 3
    assert (
        latent.encoder.apply({k[8:]: v for k, v in latent.encoder.init(generator(0)).items()}, fed.batch([0]).x).shape[
            -1
        ]
        == 72
    )
    assert len(plain.base.norm_names) == 12
    assert len(latent.encoder.norm_names) == 4
    assert len(architecture(SPEC, fed, latent=True).encoder.norm_names) == 8
    assert plain.head == latent.head
    assert not any(map(is_statistic, architecture("mlp:4", fed).base.names))


def test_own_batch_norm_stays_with_the_client() -> None:
    fed = pictures((20, 20, 20), contrast=True)
    network = architecture("bncnn:3,4:8", fed)
    run = fit(FedBN(network, lr=0.05), fed, rounds=2, progress=False)
    assert run.personal.keys() == {*network.base.norm_names}
    assert not run.shared.keys() & run.personal.keys()
    statistics = fit(FedBN(network, local_norm="statistics", lr=0.05), fed, rounds=2, progress=False)
    assert all(map(is_statistic, statistics.personal))
    for name, value in run.personal.items():
        assert not torch.allclose(value[0], value[1]), name
    x, y = fed.x[fed.train[0]], fed.y[fed.train[0]]
    with pytest.raises(UserError, match="no global model"):
        run.predict_new_client(x)
    before, after = (run.predict_new_client(x, given=(x, y), draws=0, rounds=r) for r in (0, 30))
    nll = [-said.gather(1, y[:, None].long()).log().mean() for said in (before, after)]
    assert nll[1] < nll[0]  # its own batch norm, from the mean of the others'
    everyone = fit(FedAvg(network, lr=0.05), fed, rounds=2, progress=False)
    assert everyone.shared.keys() == {"w", *network.base.names}


@pytest.mark.parametrize("local_norm", ["statistics", "all"])
@pytest.mark.parametrize("cls", [PFedV, FedV, FedBN])
def test_a_newcomers_own_batch_norm(cls: type[Method], local_norm: str) -> None:
    """Its running statistics become those of its own data: as when torch's own layers are shown it again and again."""
    fed = pictures((40, 40, 40), contrast=True)
    network = architecture("bncnn:3,4:8", fed, latent=cls.latent)
    run = fit(
        cls(network, local_norm=local_norm, lr=0.05, batch=64), fed, rounds=2, dtype=torch.float64, progress=False
    )
    assert not run.fitted.method.has_global_model
    x, y = fed.x[fed.train[0]], fed.y[fed.train[0]]
    served = fit_new_client(run.fitted, x, y, 200)
    first = "encoder.1" if cls.latent else "base.1"
    assert {f"{first}.running_mean", f"{first}.running_var"} <= served.personal.keys()
    assert (f"{first}.weight" in served.personal) == (local_norm == "all")
    weight, bias = (run.shared[f"{first[:-1]}0.{what}"] for what in ("weight", "bias"))
    seen = torch.conv2d(x.double(), weight, bias, padding=network.networks[0].module[0].padding)
    mean, variance = seen.mean((0, 2, 3)), seen.var((0, 2, 3))
    assert torch.allclose(served.personal[f"{first}.running_mean"][0], mean, rtol=1e-6)
    assert torch.allclose(served.personal[f"{first}.running_var"][0], variance, rtol=1e-6)
    others = run.personal[f"{first}.running_mean"].mean(0)
    assert not torch.allclose(others, mean, rtol=1e-2)


@pytest.mark.parametrize("local_norm", ["statistics", "all"])
@pytest.mark.parametrize("cls", [PFedV, FedV, FedBN])
def test_statistics_taken_anew(cls: type[Method], local_norm: str) -> None:
    """After the last round they become those of the averaged weights, in torch's own layers; nothing else moves."""
    fed = pictures((40, 30, 20), contrast=True)
    network = architecture("bncnn:3,4:8,z-norm" if cls.latent else "bncnn:3,4:8", fed, latent=cls.latent)
    settings = {"local_norm": local_norm, "lr": 0.05, "batch": 64}
    plain, anew = (
        fit(cls(network, **settings, bn_refresh_epochs=epochs), fed, rounds=2, dtype=torch.float64, progress=False)
        for epochs in (0, 200)
    )
    assert all(torch.equal(value, anew.shared[name]) for name, value in plain.shared.items())
    for j in range(3):
        module, before = copy.deepcopy(network.networks[0].module).double(), network.networks[0].name
        own = {k: v[j] for k, v in anew.personal.items()}
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if not name.endswith("num_batches_tracked"):
                with torch.no_grad():
                    value.copy_({**anew.shared, **{k: v[j] for k, v in plain.personal.items()}}[f"{before}.{name}"])
        for _ in range(200):
            module.train()(fed.x[fed.train[j]].double())
        for name, value in own.items():
            if not is_statistic(name):
                assert torch.equal(value, plain.personal[name][j])
            elif name.startswith(f"{before}."):
                assert torch.allclose(value, dict(module.named_buffers())[name.removeprefix(f"{before}.")], rtol=1e-9)
                assert not torch.allclose(value, plain.personal[name][j], rtol=1e-2)
    with pytest.raises(UserError, match="bn_refresh_epochs=1 changes nothing with local_norm=nothing"):
        PFedV(architecture(SPEC, fed, latent=True), bn_refresh_epochs=1)


def test_a_least_standard_deviation() -> None:
    """Of guide and prior alike; without one the hierarchical prior's goes to zero, and with it everything."""
    fed = pictures((8, 8)).to(dtype=torch.float64)
    means, sds = [], []
    for least in (0.0, 0.25):
        method = method_of(PFedV, fed, sd_min=least)
        shared, rows = states(method, fed)
        with Restrict(client_view(shared, rows)):
            x = fed.batch([0, 1]).x
            p, q = method.prior(x).base_dist, method.posterior_of(x).base_dist
        means.append(torch.stack([p.loc.expand_as(q.loc), q.loc]))
        sds.append(torch.stack([p.scale.expand_as(q.scale), q.scale]))
    assert torch.equal(*means)
    assert torch.allclose(sds[0] + 0.25, sds[1])
    with pytest.raises(UserError, match="sd_min=0.1 changes nothing with prior=flat"):
        method_of(PFedV, fed, prior="flat", sd_min=0.1)


@pytest.mark.parametrize("prior", ["fixed", "flat"])
def test_what_is_said_of_z(prior: str) -> None:
    """Standard deviations over the data, all clients alike."""
    fed = pictures((20, 6), test=0.2)
    run = fit(method_of(FedV, fed, prior=prior, lr=0.1), fed, rounds=3, dtype=torch.float64, progress=False)
    _, numbers = run.fitted.method.population_summary(run.fitted)
    if prior == "flat":
        assert numbers == {}
        return
    torchs = Torch(run.fitted.method.network).load(run.shared, run.shared["w"]).eval()
    with torch.no_grad():
        x = fed.x[torch.cat(fed.train)].double()
        sd = (0.5 * torchs.encoder(x).chunk(2, -1)[1]).exp()
    assert numbers == pytest.approx({"z_sd_median": float(sd.median()), "z_sd_least": float(sd.min())})


def test_from_the_command_line(hierfl: Call, tmp_path: Path) -> None:
    code, _, err = hierfl(
        "run", "pfedv", "--rounds", 2, "--network", "mlp:16,8", "--out", "o", "--quiet", "--set", "lr=0.1"
    )
    assert code == 0, err
    assert (tmp_path / "o" / "posterior.nc").is_file()
