"""FedPop's synthetic regression, with the truth it was made from, and what is identified of it.

    x_ij ~ N(0, I_k),    z_j ~ N(0, I_d),    y_ij ~ N(z_j^T phi^T x_ij, 0.1),    phi (k, d) with orthonormal columns

(Kotelevskii et al., NeurIPS 2022, Section 5; after Collins et al., ICML 2021.) phi and z are identified up to a
rotation, and with a learned population also up to scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from .arrays import natural_pool
from .federation import Federation
from .pool import PooledDataset

#: standard deviation of the response: the paper writes N(., 0.1), which is a variance; its notebook takes 0.1 as this
NOISE = {"paper": 0.1**0.5, "notebook": 0.1}


@dataclass(frozen=True)
class Truth:
    """What the data were made from: phi (k, d), each client's z (J, d), and the response's standard deviation."""

    phi: Tensor
    z: Tensor
    noise: float


def synthetic(seed: int = 0, **how: Any) -> tuple[Federation, Truth]:
    """A federation in float64 with a truth; see :func:`synthetic_pool` for what else may be said."""
    pool, made = synthetic_pool(seed, **how)
    return Federation.from_pool(pool, 0, "natural", validation=0.0, seed=0).to(dtype=torch.float64), made


def synthetic_pool(
    seed: int = 0, *, clients: int = 100, d: int = 2, k: int = 20, small: float = 0.9, sizes: tuple[int, int] = (5, 10),
    test: int = 20, reading: Literal["paper", "notebook"] = "paper",
) -> tuple[PooledDataset, Truth]:  # fmt: skip
    """The data, and what they were made from.

    Args:
        seed: of everything.
        clients: J.
        d, k: of phi.
        small: the share of clients with the smaller size.
        sizes: training rows of a small and of a large client.
        test: test rows of every client.
        reading: "paper": 0.1 is the response's variance; "notebook": its standard deviation, inputs are divided by
            sqrt(n_j), every z_j has length 1, and small clients have two rows, as in the authors' public notebook.

    Raises:
        UserError: for a reading that does not exist.
    """
    if reading not in NOISE:
        raise UserError(f"a reading is paper or notebook, not {reading!r}")
    rng = np.random.default_rng([seed, 2022])
    notebook = reading == "notebook"
    counts = np.where(np.arange(clients) < round(small * clients), 2 if notebook else sizes[0], sizes[1])
    phi = np.linalg.qr(rng.normal(size=(k, d)))[0]
    z = rng.normal(size=(clients, d))
    z = z / np.linalg.norm(z, axis=1, keepdims=True) if notebook else z
    parts = {}
    for name, number in (("train", counts), ("test", np.full(clients, test))):
        who = np.repeat(np.arange(clients), number)
        x = rng.normal(size=(len(who), k)) / (np.sqrt(counts[who])[:, None] if notebook else 1)
        y = np.einsum("nk,kd,nd->n", x, phi, z[who]) + NOISE[reading] * rng.normal(size=len(who))
        parts[name] = x, y, np.char.zfill(who.astype(str), 3)
    pool = natural_pool(*parts["train"], *parts["test"], 0.0, 0, "regression", "fedpop-synthetic", standardise=False)
    return pool, Truth(torch.as_tensor(phi), torch.as_tensor(z), NOISE[reading])


def projector(phi: Tensor) -> Tensor:
    """The orthogonal projector on the span of phi's columns, (k, k)."""
    q = torch.linalg.qr(phi)[0]
    return q @ q.T


def principal_angle_distance(basis: Tensor, other: Tensor) -> float:
    """The sine of the largest principal angle between two spans (Collins et al., 2021, Definition 1), in [0, 1]."""
    rest = torch.eye(len(basis), dtype=basis.dtype) - projector(basis)
    return float(torch.linalg.matrix_norm(rest @ torch.linalg.qr(other)[0], 2))


def effect_error(phi: Tensor, z: Tensor, truth: Truth) -> float:
    """The clients' mean l2 error of z, in the truth's coordinates: |truth.phi^T phi z_j - truth.z_j|.

    Args:
        phi: (k, d).
        z: (J, d).
        truth: as above.
    """
    return float((z @ phi.T @ truth.phi - truth.z).norm(dim=1).mean())


def log_likelihood(federation: Federation, phi: Tensor, mu: Tensor, sigma: Tensor, noise: float) -> Tensor:
    """The exact marginal log likelihood: y_j ~ N(X_j phi mu, sigma^2 X_j phi phi^T X_j^T + noise^2 I)."""
    total = torch.zeros((), dtype=phi.dtype)
    for index in federation.train:
        x, y = federation.examples(index)
        h = x @ phi
        covariance = sigma**2 * h @ h.T + noise**2 * torch.eye(len(y), dtype=phi.dtype)
        total = total + torch.distributions.MultivariateNormal(h @ mu, covariance).log_prob(y)
    return total


def maximise(
    federation: Federation, phi: Tensor, mu: Tensor, sigma: Tensor, noise: float, steps: int = 1000
) -> tuple[Tensor, Tensor, Tensor]:
    """A maximum of :func:`log_likelihood`, by L-BFGS from a start: phi, mu, sigma."""
    leaves = [v.detach().contiguous().clone().double().requires_grad_() for v in (phi, mu, sigma.log())]
    optimizer = torch.optim.LBFGS(
        leaves, max_iter=steps, max_eval=3 * steps, tolerance_grad=1e-9, tolerance_change=1e-14, history_size=30,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -log_likelihood(federation, leaves[0], leaves[1], leaves[2].exp(), noise)
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    phi, mu, log_sigma = (v.detach() for v in leaves)
    return phi, mu, log_sigma.exp()


def identified(phi: Tensor, mu: Tensor, sigma: Tensor) -> dict[str, Tensor]:
    """What the data can say: the projector, phi mu and sigma^2 phi phi^T."""
    return {"projector": projector(phi), "phi mu": phi @ mu, "sigma^2 phi phi^T": sigma**2 * phi @ phi.T}
