"""Federations of linear heads drawn from the model itself, and what a fit's intervals say of them.

    w ~ N(0, S_W^2 I),    w_j | w ~ N(w, rho^2 I),    y_ij ~ p(y | w_j (x_ij, 1))

Inputs are standard normal; the head's numbers are those of :class:`~hierfl.nn.head.LinearHead`, in contrasts where
there are classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hierfl import Federation
from hierfl.inference import fit
from hierfl.inference.options import Final
from hierfl.inference.run.result import Run
from hierfl.models import PFedEB
from hierfl.nn.architecture import Architecture
from hierfl.nn.head import orthonormal_contrasts
from hierfl.nn.networks.build import architecture

#: standard deviations of w's numbers, and of a Gaussian response
S_W, NOISE = 1.0, 0.5
#: classes of each family; a Gaussian response has none
CLASSES = {"gaussian": 0, "logistic": 2, "softmax": 3}
#: 50 clients of 5 to 500 examples
SIZES = tuple(int(n) for n in np.geomspace(5, 500, 50).round())
#: test examples of a client, intervals' level, draws that they are of
TEST, LEVEL, DRAWS = 40, 0.9, 1000


@dataclass(frozen=True)
class Truth:
    """A federation and the numbers that it was made with: rho, w (d,), w_j (J, d) in the order of the clients."""

    fed: Federation
    net: Architecture
    family: str
    rho: float
    w: Tensor
    w_j: Tensor

    @property
    def n(self) -> np.ndarray:
        """Examples of the clients, (J,)."""
        return np.array([len(index) for index in self.fed.train])


def simulated(
    family: str,
    rho: float,
    seed: int,
    sizes: tuple[int, ...] = SIZES,
    features: int = 3,
    correlation: float = 0.0,
    shuffled: tuple[int, ...] = (),
    s_w: float = S_W,
) -> Truth:
    """A federation of so many examples at each client; those named in ``shuffled`` have their labels in any order."""
    rng = np.random.default_rng([seed, int(1000 * rho), *CLASSES[family].to_bytes(1, "big"), features])
    clients, classes = len(sizes), CLASSES[family]
    rows = max(1, classes - 1)
    w = s_w * rng.normal(size=rows * (features + 1))
    w_j = w + rho * rng.normal(size=(clients, len(w)))
    covariance = (1 - correlation) * np.eye(features) + correlation
    root = np.linalg.cholesky(covariance)

    def drawn(counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        who = np.repeat(np.arange(clients), counts)
        x = rng.normal(size=(len(who), features)) @ root.T
        cut = rows * features
        weight, bias = w_j[:, :cut].reshape(clients, rows, features), w_j[:, cut:]
        eta = np.einsum("nqf,nf->nq", weight[who], x) + bias[who]
        if not classes:
            return x, eta[:, 0] + NOISE * rng.normal(size=len(who)), who
        return x, (eta @ contrasts(classes) + rng.gumbel(size=(len(who), classes))).argmax(1), who

    x, y, who = drawn(sizes)
    for j in shuffled:
        y[who == j] = rng.permutation(y[who == j])
    x_test, y_test, who_test = drawn((TEST,) * clients)
    names = np.array([f"place-{j:03d}" for j in range(clients)])
    task = "classification" if classes else "regression"
    fed = Federation.from_arrays(
        x, y, names[who], x_test=x_test, y_test=y_test, client_test=names[who_test], task=task
    ).to(dtype=torch.float64)  # fmt: skip
    if classes and fed.classes != classes:
        raise ValueError(f"data set {seed} lacks a class")
    net = architecture("linear", fed, noise=NOISE)
    if classes:
        net = replace(net, head=replace(net.head, contrasts=True))
    places = [list(fed.ids).index(name) for name in names]
    back = np.argsort(places)
    return Truth(fed, net, family, rho, torch.tensor(w), torch.tensor(w_j[back]))


def contrasts(classes: int) -> np.ndarray:
    """(classes - 1, classes)."""
    return orthonormal_contrasts(classes).numpy()


def fitted(truth: Truth, rounds: int, seed: int = 0, final: Final = "method", **settings: object) -> Run:
    """PFedEB without a base, w's prior known; final as of :func:`~hierfl.inference.fit`."""
    chosen = {"base_epochs": 0, "w_scale": S_W, "spreads": "pooled", "draws": DRAWS, **settings}
    if not CLASSES[truth.family]:
        chosen.setdefault("points", 2)  # any number is exact
    method = PFedEB(truth.net, **chosen)
    how: dict[str, Any] = {"dtype": torch.float64, "progress": False, "evaluate_every": 10_000, "final": final}
    return fit(method, truth.fed, rounds=rounds, seed=seed, **how)


#: sizes of clients that are told apart: below, and from
SMALL, LARGE = 15, 50


def covered(truth: Truth, run: Run) -> dict[str, float]:
    """Shares of the numbers of w, and of w_j at small, middling and large clients, that their intervals hold."""
    tail = (1 - LEVEL) / 2
    drawn = run.fitted.method.shared_draws(run.shared, DRAWS)["w"].flatten(0, -2)
    heads = run.personal["w_j_draws"].flatten(1, -2).movedim(1, 0)  # (K, J, d)

    def inside(draws: Tensor, true: Tensor) -> np.ndarray:
        low, high = np.quantile(draws.numpy(), [tail, 1 - tail], axis=0)
        return (low <= true.numpy()) & (true.numpy() <= high)

    own, n = inside(heads, truth.w_j), truth.n
    groups = {"small": n < SMALL, "middle": (n >= SMALL) & (n < LARGE), "large": n >= LARGE}
    shares = {name: float(own[which].mean()) if which.any() else np.nan for name, which in groups.items()}
    return {"w": float(inside(drawn, truth.w).mean()), "w_j": float(own.mean()), **shares}


def measured(truth: Truth, run: Run) -> dict[str, float]:
    """What a fit has found, beside :func:`covered`: rho, its posterior's mean, and test NLL."""
    figures = {"rho": float(run.shared["w.log_rho"].exp().mean())}
    if "nodes" in run.shared:
        weight = run.shared["nodes.log_weight"].softmax(-1)[:, None]
        figures["rho_mean"] = float((weight * run.shared["nodes.log_rho"].exp()).sum(0).mean())
    last = run.last("test")
    figures |= {"nll": last["pm_nll"], "draws_nll": last["pm_draws_nll"], "pooled_nll": pooled_nll(truth)}
    return figures | covered(truth, run)


def pooled_nll(truth: Truth) -> float:
    """Test NLL of one model of all clients' data, at its posterior's mode."""
    fed, classes = truth.fed, CLASSES[truth.family]
    index = torch.cat(list(fed.train))
    x, y = fed.examples(index)
    x_test, y_test = fed.examples(torch.cat(list(fed.test)))
    z, z_test = (truth.net.head.design(v) for v in (x, x_test))
    if not classes:
        precision = z.T @ z / NOISE**2 + torch.eye(z.shape[1]).double() / S_W**2
        w = torch.linalg.solve(precision, z.T @ y / NOISE**2)
        return -float(torch.distributions.Normal(z_test @ w, NOISE).log_prob(y_test).mean())
    head, w = truth.net.head, torch.zeros(truth.net.head.d, dtype=torch.float64)

    def height(w: Tensor) -> Tensor:
        return -torch.nn.functional.cross_entropy(head(w, x[None])[0], y, reduction="sum") - w @ w / (2 * S_W**2)

    for _ in range(12):
        gradient = torch.autograd.functional.jacobian(height, w)
        w = w - torch.linalg.solve(torch.autograd.functional.hessian(height, w), gradient)
    return float(torch.nn.functional.cross_entropy(head(w, x_test[None])[0], y_test))


def mean_field(truth: Truth, sigma_0: float = 0.1, rounds: int = 2000) -> dict[str, float]:
    """pFedVEM's fixed point on a linear-Gaussian federation, by its own equations, each in closed form.

    Returns:
        Share of w_j's numbers that 90 % intervals hold, and the median of rho_j.
    """
    parts = [truth.fed.examples(index) for index in truth.fed.train]
    z = [truth.net.head.design(x) for x, _ in parts]
    h = torch.stack([each.T @ each for each in z]) / NOISE**2
    b = torch.stack([each.T @ y for each, (_, y) in zip(z, parts, strict=True)]) / NOISE**2
    rho2, w = torch.full((len(h), 1), sigma_0**2).double(), torch.zeros(h.shape[-1]).double()
    for _ in range(rounds):
        mu = torch.linalg.solve(h + torch.diag_embed(1 / rho2.expand(h.shape[:2])), b + w / rho2)
        variance = 1 / (h.diagonal(dim1=1, dim2=2) + 1 / rho2)
        rho2 = (variance + (mu - w).square()).mean(1, keepdim=True)  # Eq. 8
        w = (mu / rho2).sum(0) / (1 / rho2).sum(0)  # Eq. 9
    order = truth.net.head.matrix_order.argsort()
    inside = (mu[:, order] - truth.w_j).abs() <= NORMAL * variance[:, order].sqrt()
    return {"w_j": float(inside.double().mean()), "rho": float(rho2.sqrt().median())}


#: half an interval of a standard normal's
NORMAL = 1.6449
