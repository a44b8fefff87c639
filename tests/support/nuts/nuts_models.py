"""The gallery's models once more, in NumPyro, of pooled rows: the referee's own reading of what each page states.

A model is a function of a :class:`Pooled`. Sites have the names of the page's, and clients are the first dimension.
Latents that a page enumerates are summed over by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import numpyro
import pandas as pd
from jax import lax, nn
from jax.scipy.special import gammaln, logsumexp
from numpyro import distributions as dist
from numpyro import plate, sample


class Pooled:
    """All clients' rows in one table.

    Attributes:
        frame: the rows, text columns as codes in alphabetical order.
        j: index of the client of each row; names of the clients in order.
    """

    def __init__(self, frame: pd.DataFrame, group: str) -> None:
        self.names = sorted(frame[group].unique())
        self.J = len(self.names)
        self.j = np.array([self.names.index(name) for name in frame[group]])
        self.levels = {c: sorted(frame[c].unique()) for c in frame if not pd.api.types.is_numeric_dtype(frame[c])}
        self.frame = frame.assign(**{c: [names.index(v) for v in frame[c]] for c, names in self.levels.items()})

    def __getitem__(self, column: str) -> np.ndarray:
        return self.frame[column].to_numpy(float if column not in self.levels else int)

    def first(self, column: str) -> np.ndarray:
        """A client's value in its first row, (J,)."""
        return np.array([self[column][self.j == j][0] for j in range(self.J)])

    def matrix(self, column: str) -> np.ndarray:
        """A column of equally many rows a client, (J, n)."""
        return np.stack([self[column][self.j == j] for j in range(self.J)])


def normal(name: str, loc: float, scale: float, *shape: int) -> jnp.ndarray:
    """A site of independent normal numbers."""
    return sample(name, dist.Normal(loc, scale).expand(shape).to_event(len(shape)))


def half(name: str, scale: float, *shape: int) -> jnp.ndarray:
    """A site of independent half-normal numbers."""
    return sample(name, dist.HalfNormal(scale).expand(shape).to_event(len(shape)))


def eight_schools(d: Pooled) -> None:
    mu, tau = normal("mu", 0.0, 5.0), sample("tau", dist.HalfCauchy(5.0))
    with plate("clients", d.J):
        theta = sample("theta", dist.Normal(mu, tau))
    sample("y", dist.Normal(theta[d.j], d["sigma"]), obs=d["y"])


def meta_analysis(d: Pooled) -> None:
    mu, beta, tau = normal("mu", 0.0, 1.0), normal("beta", 0.0, 1.0), half("tau", 0.5)
    with plate("clients", d.J):
        theta = sample("theta", dist.Normal(mu + beta * d.first("latitude"), tau))
    sample("y", dist.Normal(theta[d.j], d["error"]), obs=d["y"])


def radon(d: Pooled) -> None:
    gamma, beta = normal("gamma", 0.0, 2.5, 2), normal("beta", 0.0, 2.5)
    sigma_alpha, sigma_y = half("sigma_alpha", 1.0), half("sigma_y", 1.0)
    with plate("clients", d.J):
        alpha = sample("alpha", dist.Normal(gamma[0] + gamma[1] * d.first("county_uranium"), sigma_alpha))
    sample("y", dist.Normal(alpha[d.j] + beta * d["floor"], sigma_y), obs=d["log_radon"])


def poisson_glmm(d: Pooled) -> None:
    beta, tau = normal("beta", 0.0, 5.0, 2), half("tau", 1.0, 2)
    with plate("clients", d.J):
        u = sample("u", dist.Normal(beta, tau).to_event(1))
    sample("y", dist.Poisson(jnp.exp(u[d.j, 0] + u[d.j, 1] * d["x"])), obs=d["visits"])


def negative_binomial(d: Pooled) -> None:
    mu, beta, tau = normal("mu", 0.0, 2.5), normal("beta", 0.0, 2.5), half("tau", 1.0)
    phi = sample("phi", dist.Gamma(2.0, 0.5))
    with plate("clients", d.J):
        alpha = sample("alpha", dist.Normal(mu, tau))
    m, y = d["weeks"] * jnp.exp(alpha[d.j] + beta * d["treated"]), d["seizures"]
    # By hand: NumPyro's goes by JAX's betaln, which is good to 1e-6 only.
    count = gammaln(y + phi) - gammaln(phi) - gammaln(y + 1)
    numpyro.factor("y", (count + phi * jnp.log(phi / (phi + m)) + y * jnp.log(m / (phi + m))).sum())


def irt_2pl(d: Pooled) -> None:
    items = len(d.levels["item"])
    a = sample("a", dist.LogNormal(0.0, 0.5).expand([items]).to_event(1))
    b = normal("b", 0.0, 1.5, items)
    with plate("clients", d.J):
        theta = sample("theta", dist.Normal(0.0, 1.0))
    k = d["item"]
    sample("y", dist.Bernoulli(logits=a[k] * (theta[d.j] - b[k])), obs=d["correct"])


def emax(d: Pooled) -> None:
    mu = sample("mu", dist.Normal(jnp.zeros(2), jnp.array([5.0, 20.0])).to_event(1))
    tau, sigma = half("tau", 3.0, 2), half("sigma", 3.0)
    ed50 = sample("ed50", dist.LogNormal(jnp.log(20.0), 1.0))
    with plate("clients", d.J):
        u = sample("u", dist.Normal(mu, tau).to_event(1))
    dose = d["dose"]
    sample("y", dist.Normal(u[d.j, 0] + u[d.j, 1] * dose / (ed50 + dose), sigma), obs=d["response"])


def weibull_frailty(d: Pooled) -> None:
    baseline, effect = normal("baseline", -2.0, 2.0), normal("effect", 0.0, 1.0)
    k, v = sample("k", dist.LogNormal(0.0, 0.5)), half("v", 1.0)
    with plate("clients", d.J):
        w = sample("w", dist.Gamma(1 / v, 1 / v))
    rate = w[d.j] * jnp.exp(baseline + effect * d["treated"])
    t, seen = d["months"], d["event"] == 1
    law = dist.Weibull(rate ** (-1 / k), k)
    alive = -rate * t**k
    numpyro.factor("survival", jnp.where(seen, law.log_prob(t), alive).sum())


def gaussian_mixture(d: Pooled) -> None:
    lowest, sigma = normal("lowest", -3.0, 2.0), half("sigma", 2.0)
    gap = sample("gap", dist.LogNormal(1.0, 0.5).expand([2]).to_event(1))
    pi = sample("pi", dist.Dirichlet(2.0 * jnp.ones(3)))
    m = lowest + jnp.concatenate([jnp.zeros(1), jnp.cumsum(gap)])
    with plate("clients", d.J):
        pi_j = sample("pi_j", dist.Dirichlet(10 * pi))
    terms = jnp.log(pi_j[d.j]) + dist.Normal(m, sigma).log_prob(d["y"][:, None])
    numpyro.factor("y", logsumexp(terms, axis=1).sum())


def hidden_markov(d: Pooled) -> None:
    low, sigma = normal("low", 0.0, 2.0), half("sigma", 1.0)
    gap = sample("gap", dist.LogNormal(1.0, 0.5))
    mu, tau = normal("mu", 1.0, 1.0, 2), half("tau", 0.5, 2)
    with plate("clients", d.J):
        eta = sample("eta", dist.Normal(mu, tau).to_event(1))
    stay, go = nn.log_sigmoid(eta), nn.log_sigmoid(-eta)  # (J, 2)
    emission = dist.Normal(low + gap * jnp.arange(2.0), sigma).log_prob(d.matrix("y")[..., None])  # (J, n, 2)
    step = jnp.stack([jnp.stack([stay[:, 0], go[:, 0]], -1), jnp.stack([go[:, 1], stay[:, 1]], -1)], 1)  # (J, 2, 2)

    def forward(alpha: jnp.ndarray, e: jnp.ndarray) -> tuple[jnp.ndarray, None]:
        return logsumexp(alpha[:, :, None] + step, axis=1) + e, None

    alpha, _ = lax.scan(forward, jnp.log(0.5) + emission[:, 0], jnp.swapaxes(emission[:, 1:], 0, 1))
    numpyro.factor("y", logsumexp(alpha, axis=1).sum())


def local_level(d: Pooled) -> None:
    y = d.matrix("flow")
    mu, s = normal("mu", 0.0, 20.0), half("s", 5.0)
    drift, noise = half("drift", 1.0), half("noise", 1.0)
    with plate("clients", d.J):
        start = sample("start", dist.Normal(mu, s))
        step = sample("step", dist.Normal(jnp.zeros(y.shape[1] - 1), drift).to_event(1))
    level = jnp.cumsum(jnp.concatenate([start[:, None], step], axis=1), axis=1)
    numpyro.deterministic("level", level)
    sample("y", dist.Normal(level, noise).to_event(2), obs=y)


def ordinal(d: Pooled) -> None:
    beta, mu, delta = normal("beta", 0.0, 2.0), normal("mu", 0.0, 2.0), normal("delta", 0.0, 1.0, 2)
    tau, s = half("tau", 1.0), half("s", 0.5)
    with plate("clients", d.J):
        first = sample("first", dist.Normal(mu, tau))
        step = sample("step", dist.Normal(delta, s).to_event(1))
    cuts = jnp.cumsum(jnp.concatenate([first[:, None], jnp.exp(step)], axis=1), axis=1)
    sample("pain", dist.OrderedLogistic(beta * d["drug"], cuts[d.j]), obs=d["pain"].astype(int))


def neural_head(d: Pooled) -> None:
    w, rho = normal("w", 0.0, 2.0, 4, 3), half("rho", 1.0)
    h = jnp.column_stack([np.ones(len(d.j)), d["h1"], d["h2"], d["h3"]])
    with plate("clients", d.J):
        w_j = sample("w_j", dist.Normal(w, rho).to_event(2))
    logits = jnp.einsum("ik,ikc->ic", h, w_j[d.j])
    sample("label", dist.Categorical(logits=logits), obs=d["label"].astype(int))


def horseshoe(d: Pooled) -> None:
    tau = sample("tau", dist.HalfCauchy(0.2))
    lam = sample("lam", dist.HalfCauchy(1.0).expand([8]).to_event(1))
    e = normal("e", 0.0, 1.0, 8)
    beta = numpyro.deterministic("beta", tau * lam * e)
    mu, s, sigma = normal("mu", 0.0, 5.0), half("s", 2.0), half("sigma", 2.0)
    with plate("clients", d.J):
        alpha = sample("alpha", dist.Normal(mu, s))
    x = jnp.column_stack([d[f"x{k}"] for k in range(1, 9)])
    sample("y", dist.Normal(alpha[d.j] + x @ beta, sigma), obs=d["y"])


@dataclass(frozen=True)
class Referee:
    """How a model is sampled, and what of it is reported.

    Attributes:
        model: of pooled rows.
        shared: global quantities.
        own: clients' quantities.
        noncentred: sites that are sampled as standardised deviations.
        accept: the target acceptance probability.
        ess: draws are added until all quantities have so many effective ones.
        caveat: why a reference is no yardstick, where that is so.
    """

    model: Callable[[Pooled], None]
    shared: tuple[str, ...]
    own: tuple[str, ...]
    noncentred: tuple[str, ...] = ()
    accept: float = 0.9
    ess: int = 4000
    caveat: str = ""


REFEREES = {
    "eight_schools": Referee(eight_schools, ("mu", "tau"), ("theta",), ("theta",), 0.95, 10_000),
    "meta_analysis": Referee(meta_analysis, ("mu", "beta", "tau"), ("theta",), ("theta",), 0.95),
    "radon": Referee(radon, ("gamma", "beta", "sigma_alpha", "sigma_y"), ("alpha",), ("alpha",)),
    "poisson_glmm": Referee(poisson_glmm, ("beta", "tau"), ("u",), ("u",)),
    "negative_binomial": Referee(negative_binomial, ("mu", "beta", "tau", "phi"), ("alpha",), ("alpha",)),
    "irt_2pl": Referee(irt_2pl, ("a", "b"), ("theta",)),
    "emax": Referee(emax, ("mu", "tau", "ed50", "sigma"), ("u",), ("u",)),
    "weibull_frailty": Referee(weibull_frailty, ("baseline", "effect", "k", "v"), ("w",)),
    "gaussian_mixture": Referee(gaussian_mixture, ("lowest", "gap", "sigma", "pi"), ("pi_j",)),
    "hidden_markov": Referee(hidden_markov, ("low", "gap", "sigma", "mu", "tau"), ("eta",), ("eta",)),
    "local_level": Referee(local_level, ("mu", "s", "drift", "noise"), ("level",), ("start", "step")),
    "ordinal": Referee(ordinal, ("beta", "mu", "delta", "tau", "s"), ("first", "step"), ("first", "step")),
    "neural_head": Referee(neural_head, ("w", "rho"), ("w_j",), ("w_j",)),
    "horseshoe": Referee(
        horseshoe, ("tau", "beta", "mu", "s", "sigma"), ("alpha",), ("alpha",), 0.99,
        caveat="heavy shrinkage: scales of coefficients have tails that chains visit rarely",
    ),
}  # fmt: skip
