"""pFedV: the objective and rounds by hand, and its priors."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from support.pfedv import Torch, method_of, pictures, states
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.minibatches import plan
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.objective.sites import guide_latents
from hierfl.inference.state import client_view
from hierfl.models import FedPer, FedV, PFedV
from hierfl.nn.layers.batch_norm import Norms
from hierfl.nn.networks.build import architecture
from hierfl.ppl.restrict import Restrict
from hierfl.rng import generator


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
        sent_j = copy.deepcopy(sent)  # its statistics move
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
    start = InitialWeights.for_network(method.network, 3)
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
            for number, step in enumerate(plan(chunk, 0, 4, 2).for_row(0)):
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
        gaps.append(drawn - exact)  # the same draws: what is left is the KL's Monte-Carlo error
    gap = torch.stack(gaps)
    error = gap.std(0) / many**0.5
    assert (gap.mean(0).abs() < 4 * error).all()
    assert (error < 0.02 * exact.abs()).all()


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
    shared = {k: v.double() for k, v in ours.shared(InitialWeights.for_network(ours.network, 0)).items()}
    weight, bias = shared["encoder.3.weight"][:4], shared["encoder.3.bias"][:4]
    theirs = {"base.1.weight": shared["encoder.1.weight"], "base.1.bias": shared["encoder.1.bias"]}
    theirs |= {"base.3.weight": weight, "base.3.bias": bias}
    mu = torch.randn((2, 1, ours.network.head.d), generator=generator("mu"), dtype=torch.float64)
    fed = fed.to(dtype=torch.float64)
    chunk = ours.local()[0].run(ClientChunk(ours, fed, [0, 1], 1, 0, shared, {"w_j_point": mu}), 0)
    reference = plain.local()[0].run(ClientChunk(plain, fed, [0, 1], 1, 0, theirs, {"mu": mu}), 0)
    assert torch.allclose(chunk.values["w_j_point"], reference.values["mu"], atol=1e-10)
    assert torch.allclose(chunk.values["encoder.3.weight"][:, :, :4], reference.values["base.3.weight"], atol=1e-10)
    assert torch.equal(chunk.values["encoder.3.weight"][:, :, 4:], shared["encoder.3.weight"][4:].expand(2, 1, 4, 9))
