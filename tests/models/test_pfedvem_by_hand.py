"""pFedVEM by hand: two rounds in plain torch, one client after another, against the house."""

from __future__ import annotations

import torch
from support.federations import blobs
from torch.nn.functional import cross_entropy, linear, relu, softplus

from hierfl.inference import fit
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.server.participation import draw_participants
from hierfl.models import PFedVEM
from hierfl.nn.networks.build import architecture
from hierfl.rng import ClientNoise, client_keys, permutation

SEED, PARTICIPATION, K, R, E, B = 3, 0.6, 4, 3, 2, 4
SIGMA, HEAD_LR, BASE_LR, MOMENTUM = 0.3, 0.003, 0.05, 0.9
CLASSES, HIDDEN = 3, 5


def draws(round: int, client: str, phase: int, step: int, d: int, streams: dict) -> torch.Tensor:
    """(K, d) standard normals from the client's stream of (seed, round, phase, site)."""
    key = (SEED, round, client, phase)
    if key not in streams:
        streams[key] = ClientNoise(client_keys([client]), (SEED, round, phase), K, dtype=torch.float64)
    return streams[key].at(step).normal("w_j", None, torch.Size([d]))[:, 0, 0]


def log_likelihood(w: torch.Tensor, base: dict, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Sum over examples, mean over the K heads w (K, d)."""
    z = relu(linear(x, base["base.1.weight"], base["base.1.bias"]))
    cut = CLASSES * HIDDEN
    return torch.stack(
        [-cross_entropy(z @ v[:cut].view(CLASSES, HIDDEN).T + v[cut:], y, reduction="sum") for v in w]
    ).mean()


def test_two_rounds_of_pfedvem_by_hand() -> None:
    fed = blobs([23, 7, 2, 14, 9])
    net = architecture(f"mlp:{HIDDEN}", fed)
    method = PFedVEM(
        net, sigma_0=SIGMA, init_scale=0.2, head_epochs=R, head_lr=HEAD_LR, base_epochs=E, base_lr=BASE_LR,
        base_batch=B, momentum=MOMENTUM, particles=K,
    )  # fmt: skip
    run = fit(method, fed, rounds=2, seed=SEED, participation=PARTICIPATION, dtype=torch.float64, progress=False)

    start = InitialWeights.for_network(net, SEED)
    w, theta = 0.2 * start.head.double(), {k: v.double() for k, v in start.base.items()}
    d = len(w)
    mu = {c: w.clone() for c in fed.ids}
    pi = {c: torch.full((d,), SIGMA, dtype=torch.float64).expm1().log() for c in fed.ids}
    rho, own = {}, {}
    for t in (1, 2):
        streams: dict = {}
        for j, c in enumerate(fed.ids):
            x, y = fed.examples(fed.train[j])
            n = len(y)
            rho[c] = (
                (softplus(pi[c]).square().sum() + (mu[c] - w).square().sum()) / d
            ).sqrt()  # Eq. 8, before training
            m, p = mu[c].clone().requires_grad_(), pi[c].clone().requires_grad_()
            optimizer = torch.optim.SGD([m, p], lr=HEAD_LR, momentum=MOMENTUM)
            for step in range(R):  # the head: the whole set, the summed objective
                optimizer.zero_grad()
                sigma = softplus(p)
                sampled = m + sigma * draws(t, c, 1, step, d, streams)
                kl = (rho[c].log() - sigma.log() + (sigma**2 + (m - w) ** 2) / (2 * rho[c] ** 2) - 0.5).sum()
                (kl - log_likelihood(sampled, theta, x, y)).backward()
                optimizer.step()
            mu[c], pi[c] = m.detach(), p.detach()
            base = {k: v.clone().requires_grad_() for k, v in theta.items()}  # from what was broadcast
            optimizer = torch.optim.SGD(list(base.values()), lr=BASE_LR, momentum=MOMENTUM)
            step = 0
            for epoch in range(E):  # the base: minibatches, the mean objective, fresh draws each time
                for batch in permutation(n, c, SEED, t, 2, "epochs", number=epoch).split(B):
                    optimizer.zero_grad()
                    sampled = mu[c] + softplus(pi[c]) * draws(t, c, 2, step, d, streams)
                    (-log_likelihood(sampled, base, x[batch], y[batch]) / len(batch)).backward()
                    optimizer.step()
                    step += 1
            own[c] = {k: v.detach() for k, v in base.items()}
        participants = [fed.ids[j] for j in draw_participants(fed.keys, t, SEED, PARTICIPATION, 1)]
        assert len(participants) < fed.clients
        tau = {c: rho[c] ** -2 for c in participants}
        w = sum(tau[c] * mu[c] for c in participants) / sum(tau.values())  # Eq. 9
        size = {c: len(fed.train[list(fed.ids).index(c)]) for c in participants}
        theta = {k: sum(size[c] * own[c][k] for c in participants) / sum(size.values()) for k in theta}

    assert torch.allclose(run.shared["w"], w, rtol=1e-9)
    for k, v in theta.items():
        assert torch.allclose(run.shared[k], v, rtol=1e-9)
    right = []
    for j, c in enumerate(fed.ids):
        assert torch.allclose(run.personal["mu"][j], mu[c], rtol=1e-9)
        assert torch.allclose(run.personal["pi"][j], pi[c], rtol=1e-9)
        assert torch.allclose(run.personal["rho"][j], rho[c], rtol=1e-9)
        # the personal model: the client's own base after its training, and the posterior mean
        x, y = fed.examples(fed.test[j])
        z = relu(linear(x, own[c]["base.1.weight"], own[c]["base.1.bias"]))
        cut = CLASSES * HIDDEN
        logits = z @ mu[c][:cut].view(CLASSES, HIDDEN).T + mu[c][cut:]
        assert torch.allclose(run.predict(x, c), logits.softmax(-1), rtol=1e-9)
        right.append((logits.argmax(1) == y).double().mean())
    assert abs(run.last()["pm_accuracy"] - torch.stack(right).mean()) < 1e-12
    # the global model: (theta, w) on the whole test set, after aggregation
    x, y = fed.examples(fed.global_test)
    z = relu(linear(x, theta["base.1.weight"], theta["base.1.bias"]))
    logits = z @ w[:cut].view(CLASSES, HIDDEN).T + w[cut:]
    assert abs(run.last()["gm_accuracy"] - (logits.argmax(1) == y).double().mean()) < 1e-12
    assert abs(run.last()["gm_nll"] - cross_entropy(logits, y)) < 1e-9
