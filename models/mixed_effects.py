"""Mixed effects: generalised linear models whose coefficients differ between places.

    b_j | L  ~ N(0, L L^T)                 random effects, q numbers; L diagonal, or any lower triangle
    eta_ij   = x_ij^T beta + z_ij^T b_j    beta the fixed effects, p numbers
    y_ij     ~ N(eta_ij, sigma^2)          gaussian (sigma learned, or known for each row)
    y_ij     ~ Bernoulli(logistic(eta_ij)) or Poisson(exp(eta_ij))

    maximised: sum_j log integral p(D_j | b, beta, sigma) N(b | 0, L L^T) db     (maximum likelihood, not REML)

Gaussian: the guide is the exact conditional p(b_j | D_j, beta, L, sigma), so that each place's ELBO *is* its marginal
log likelihood, and the ELBO's gradient its score (Fisher's identity); expectations of quadratics are taken at sigma
points, without Monte-Carlo error. Others: the guide is what Metropolis-adjusted chains have kept of it, and when the
shared values move, the chains are moved along with its mode and curvature. Places send scores and their outer products.
After the last round chains draw every place's posterior, whatever the family.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyro
import torch
from pyro.distributions import Bernoulli, MultivariateNormal, Normal, Poisson
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.formula.design import INTERCEPT, Design
from hierfl.data.padding import buckets
from hierfl.errors import UserError
from hierfl.inference.elbo import elbo, log_joint
from hierfl.inference.exchange import Scoring
from hierfl.inference.langevin import Langevin
from hierfl.inference.method import Local, LocalStep, Method, Rule, Start, State, setting
from hierfl.nn.architecture import Architecture
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.plates import clients, data, param, sample
from hierfl.ppl.restrict import Restrict
from hierfl.ppl.sigma_points import SigmaPoints

if TYPE_CHECKING:
    import pandas as pd

    from hierfl.inference.predict import Fitted
    from hierfl.inference.result import Run

#: random effects' standard deviations stay above this share of where they began: a variance that wants to be zero would
#: drift to minus infinity on the log scale
LEAST = 1e-4
#: a standard deviation is zero where the log likelihood there is lower by no more than this
AS_LIKELY = 1e-3
#: a correlation beyond this stands at its bound
EDGE = 0.999
#: Newton steps to a posterior's mode, at most, and the last one's length on the scale of eta
CLIMB, ARRIVED = 100, 1e-8
#: burn-in of the last chains, and what their step sizes are adapted to accept
BURN, ACCEPTED = 300, 0.574


class MixedEffects(Method):
    """Random intercepts and slopes, by maximum likelihood, with every place's posterior."""

    name = "mixed-effects"
    tabular = True
    #: a new place differs from the others: the spread between them belongs to what is said of it (not gaussian: those)
    global_draws = 200
    network: Design

    @dataclass(frozen=True)
    class Settings:
        """Where to begin, in units of the response's spread."""

        prior: Literal["hierarchical", "fixed"] = setting(
            "hierarchical", "random effects' spread learned | held at sd_0"
        )
        covariance: Literal["full", "diagonal"] = setting("full", "of a place's random effects")
        sd_0: float = setting(
            1.0,
            "initial sd of random effects: times a gaussian response's, over the column's root mean square",
            above=0,
            scale_of=("fixed",),  # (where it begins, otherwise)
        )
        noise_0: float = setting(1.0, "initial sd of the residual, times the response's", above=0)
        chains: int = setting(10, "Metropolis-adjusted Langevin chains per place", at_least=1)
        steps: int = setting(20, "binomial, poisson: steps of each a round, half of them not used", at_least=2)
        settle: int = setting(40, "rounds after which the server's steps shrink as 1/t, to average", at_least=1)
        draws: int = setting(400, "draws of each chain to keep after the last round; 0 for none", at_least=0)
        thin: int = setting(4, "of so many steps", at_least=1)

    def __init__(self, network: Architecture, **settings: Any) -> None:
        if not isinstance(network, Design):
            raise UserError("mixed-effects models are made from a Design (--formula), not from a network")
        super().__init__(network, **settings)
        if network.separate and self.settings.covariance == "full":
            raise UserError("random effects in terms of their own have no correlations: say covariance=diagonal")

    def shared(self, start: Start) -> State:
        s, d, q = self.settings, self.network, len(self.network.random)
        beta = torch.tensor([d.centre if name in INTERCEPT else 0.0 for name in d.fixed], dtype=torch.float64)
        values = {"beta": beta, "log_sd": self.first_sd().log()}
        if s.covariance == "full" and q > 1:
            values["corr"] = torch.zeros(q * (q - 1) // 2)
        if self.network.family == "gaussian" and not self.network.known:
            values["log_noise"] = torch.tensor(s.noise_0 * d.scale, dtype=torch.float64).log()
        learned = {"log_sd", "corr"} if s.prior == "fixed" else set()
        return {f"{'held' if k in learned else 'effects'}.{k}": v.double() for k, v in values.items()}

    def first_sd(self) -> Tensor:
        """The random effects' standard deviations to begin with, (q,)."""
        return self.settings.sd_0 * self.network.scale / torch.tensor(self.network.units, dtype=torch.float64)

    def value(self, name: str) -> Tensor:
        """A shared value by its short name, learned or held."""
        held = self.settings.prior == "fixed" and name in ("log_sd", "corr")
        return param(f"{'held' if held else 'effects'}.{name}")

    def spread(self) -> Tensor:
        """L, (q, q) or rows (S, 1, q, q): standard deviations times the Cholesky factor of the correlations."""
        sd, q = self.value("log_sd").exp(), len(self.network.random)
        if self.settings.covariance == "diagonal" or q == 1:
            return torch.diag_embed(sd)
        below = torch.zeros((q * (q - 1) // 2, q, q), dtype=sd.dtype, device=sd.device)
        for k, (row, column) in enumerate(torch.tril_indices(q, q, -1).T.tolist()):
            below[k, row, column] = 1
        rows = torch.eye(q, dtype=sd.dtype, device=sd.device) + torch.tensordot(self.value("corr"), below, 1)
        return sd[..., None] * rows / rows.norm(dim=-1, keepdim=True)

    def noise(self, known: Tensor | None) -> Tensor:
        """A gaussian response's standard deviation, broadcast to (S, n)."""
        return self.value("log_noise").exp() if known is None else known

    def model(self, batch: Batch) -> None:
        if batch.x.dtype != torch.float64:
            raise UserError("mixed-effects models are fitted in double precision: dtype=torch.float64")
        x, z, known = self.network.split(batch.x)
        q = len(self.network.random)
        prior = MultivariateNormal(x.new_zeros(q), scale_tril=self.spread())
        with clients(batch):
            b = sample("b", prior)  # (K, S, 1, q)
            with data(batch):
                eta = along(x, self.value("beta")) + along(z, b)
                sample("y", self.response(eta, known), obs=batch.y)

    def response(self, eta: Tensor, known: Tensor | None) -> Any:
        """p(y | eta)."""
        if self.network.family == "binomial":
            return Bernoulli(logits=eta)
        return Poisson(eta.exp()) if self.network.family == "poisson" else Normal(eta, self.noise(known))

    @property
    def exact(self) -> bool:
        """Whether a place's posterior is known in closed form."""
        return self.network.family == "gaussian"

    @property
    def global_moments(self) -> bool:
        """Of a gaussian response they say all."""
        return self.exact

    def personal(self, start: Start) -> State:
        s, q = self.settings, len(self.network.random)
        kept = 0 if self.exact else s.steps - s.steps // 2
        draws = torch.randn((s.chains, kept, q), generator=start.rng, dtype=torch.float64) * self.first_sd()
        return {"b_mean": torch.zeros(q).double(), "b_root": self.first_sd().diag(), "b_draws": draws}

    def guide(self, batch: Batch) -> None:
        draws = param("b_draws")  # (S, 1, chains, kept, q); none yet, where the exact posterior is known
        seen = draws.shape[-2] > 0
        with clients(batch):
            sample(
                "b",
                EmpiricalDraws(draws, 1) if seen else MultivariateNormal(param("b_mean"), scale_tril=param("b_root")),
            )

    def local(self) -> list[LocalStep]:
        s = self.settings
        return [Conditional(self), *([] if self.exact else [self.chain(s.steps, s.steps // 2)])]

    def chain(self, steps: int, burn: int, thin: int = 1, target: float | None = None) -> Langevin:
        """In the metric of the posterior's own curvature, where steps have no units."""
        start: Literal["last", "prior"] = "prior" if self.exact else "last"
        return Langevin(
            ["b"], steps, 0.5, metropolis=True, metric="b_root", around="b_mean" if self.exact else None, burn=burn,
            thin=thin, target=target, start=start,
        )  # fmt: skip

    def posterior(self) -> list[LocalStep]:
        s = self.settings
        if not s.draws:
            return [Conditional(self)]
        return [Conditional(self), self.chain(BURN + s.draws * s.thin, BURN, s.thin, ACCEPTED)]

    def exchange(self) -> dict[str, Rule]:
        s = self.settings
        how: dict[str, Any] = {"most": {"effects.log_sd": 0.5, "effects.corr": 0.5, "effects.log_noise": 0.5}}
        if s.prior == "hierarchical":
            how["least"] = {"effects.log_sd": (LEAST * self.first_sd()).log()}

        def rate(t: int) -> float:  # Newton steps; then their average, in effect
            return 1.0 if t <= s.settle else 1 / (t - s.settle + 1)

        if self.exact:
            return {"effects": Scoring("b", 0, sigma_points=True, rate=rate, **how)}
        return {"effects": Scoring("b", s.chains * (s.steps - s.steps // 2), keep=0.8, rate=rate, **how)}

    def per_client(self, v: State) -> State:
        if self.exact:
            mean, root = v["b_mean"].squeeze(1), v["b_root"].squeeze(1)
            spread = root.square().sum(-1).sqrt()
        else:
            draws = v["b_draws"].flatten(2, 3).squeeze(1)
            mean, spread = draws.mean(1), draws.std(1)
        columns: State = {}
        for k, name in enumerate(self.network.random):
            columns |= {f"b[{name}]": mean[:, k], f"sd b[{name}]": spread[:, k]}
        return columns

    @property
    def coordinates(self) -> dict[str, list[str]]:
        """The random effects' names."""
        return {"b_dim_0": list(self.network.random)}

    def report(self, fitted: Fitted) -> tuple[pd.DataFrame, dict[str, float]]:
        """See :func:`effects`."""
        return effects(fitted)

    def estimates(self, fitted: Fitted) -> pd.DataFrame:
        """See :func:`shrunken`."""
        return shrunken(fitted)


def along(columns: Tensor, coefficients: Tensor) -> Tensor:
    """The sum of columns (..., p) times coefficients (..., p), one after the other.

    (Along a last dimension of a few numbers torch sums eight times slower than it adds, measured on a CPU.)
    """
    total = columns[..., 0] * coefficients[..., 0]
    for k in range(1, columns.shape[-1]):
        total = total + columns[..., k] * coefficients[..., k]
    return total


@dataclass(frozen=True)
class Conditional:
    """Mode m_j of a place's posterior and the root of V_j, the inverse of its curvature there, in b = L u.

    For a gaussian response that is the exact posterior, in one Newton step. Others' log likelihoods are generalised
    self-concordant in eta (their third derivative is never above the second), for which steps damped by log(1 + r) / r,
    r how far eta would go, climb from anywhere (Sun and Tran-Dinh, Math. Programming 2019). Their chains move along:
    draws keep their place relative to mode and root, so that they are near the posterior's mass after however large a
    step of the server, and where nothing shared moves they stay what they were.
    """

    method: MixedEffects

    @property
    def trains(self) -> Sequence[str]:
        """Mode, a lower triangle whose square is V_j, and the chains."""
        return ("b_mean", "b_root", "b_draws")

    def run(self, local: Local, phase: object) -> Local:
        """Solves all rows' systems at once."""
        parts = []
        for first, last in buckets(local.sizes):
            part = local.part(first, last)
            with Restrict(part.values):
                parts.append(self.solve(part.batch()))
        mean, root = (torch.cat(found).unsqueeze(1) for found in zip(*parts, strict=True))
        new = {"b_mean": mean, "b_root": root}
        if not self.method.exact:
            old = {k: local.rows[k].flatten(0, 1) for k in self.trains}  # (S, q), (S, q, q), (S, chains, kept, q)
            gap = (old["b_draws"] - old["b_mean"][:, None, None]).flatten(1, 2)
            gap = torch.linalg.solve_triangular(old["b_root"].mT, gap, upper=True, left=False) @ root.squeeze(1).mT
            new["b_draws"] = gap.view_as(local.rows["b_draws"]) + mean[:, :, None, None]
        return local.put(new)

    def solve(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """m_j (S, q) and R_j (S, q, q) with V_j = R_j R_j^T."""
        x, z, known = self.method.network.split(batch.x)
        root, fixed = self.method.spread(), along(x, self.method.value("beta"))
        zl = z @ root  # (S, n, q)
        one = torch.eye(zl.shape[-1], dtype=zl.dtype, device=zl.device)
        u = zl.new_zeros(zl.shape[0], zl.shape[-1])
        for _ in range(1 if self.method.exact else CLIMB):
            slope, weight = self.slopes(fixed + along(zl, u.unsqueeze(1)), batch, known)
            factor, failed = torch.linalg.cholesky_ex(one + (zl * weight[..., None]).mT @ zl)  # of the precision of u
            factor = torch.where((failed == 0)[..., None, None], factor, torch.nan)  # (one row's failure is its own)
            step = torch.cholesky_solve(((zl * slope[..., None]).sum(-2) - u)[..., None], factor).squeeze(-1)
            if self.method.exact:
                u = u + step
                break
            far = (zl @ step[..., None]).abs().amax((1, 2))
            u = u + (torch.log1p(far) / far.clamp_min(ARRIVED))[:, None] * step
            if far.max() < ARRIVED:
                break
        # however small L is, L factor^-T is a root of V_j; its QR decomposition has the lower triangular one
        lower = torch.linalg.qr((root @ torch.linalg.inv_ex(factor).inverse.mT).mT).R.mT
        mode = (root @ u[..., None]).squeeze(-1)
        return mode, lower * lower.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)

    def slopes(self, eta: Tensor, batch: Batch, known: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of each row's log p(y | eta): its derivative and minus its second one, (S, n); 0 for padding."""
        with pyro.validation_enabled(False), torch.enable_grad():  # (numbers that have diverged are told elsewhere)
            eta = eta if eta.requires_grad else eta.detach().requires_grad_()
            heights = self.method.response(eta, known).log_prob(batch.y)
            heights = heights if batch.mask is None else torch.where(batch.mask, heights, 0.0)
            (slope,) = torch.autograd.grad(heights.sum(), eta, create_graph=True)
            (bend,) = torch.autograd.grad(slope.sum(), eta, create_graph=True)
        return (slope, -bend) if torch.is_grad_enabled() else (slope.detach(), -bend.detach())


# -- the marginal likelihood, at the places, and what its curvature says -----------------------------------------------

#: nodes along each axis of a quadrature over so many random effects
NODES = {1: 41, 2: 21, 3: 13, 4: 9, 5: 7}


def marginals(method: MixedEffects, batch: Batch, values: Mapping[str, Tensor]) -> Tensor:
    """log integral p(D_j | b, beta, sigma) N(b | 0, L L^T) db of each row, differentiable in the shared values: (S,).

    Gaussian: the ELBO at the exact posterior, which is its bound with equality. Others: adaptive Gauss-Hermite
    quadrature (Pinheiro and Bates, 1995) around mode and curvature.

    Raises:
        UserError: where a quadrature would need too many nodes.
    """
    q = len(method.network.random)
    if not method.exact and q not in NODES:
        raise UserError(f"the marginal likelihood of {q} random effects is out of a quadrature's reach")
    with Restrict(values), torch.set_grad_enabled(method.exact and torch.is_grad_enabled()):
        mean, root = Conditional(method).solve(batch)
    if method.exact:
        there = {"b_mean": mean.unsqueeze(1), "b_root": root.unsqueeze(1), "b_draws": values["b_draws"][..., :0, :]}
        return elbo(method, batch, {**values, **there}, SigmaPoints(batch.x.dtype))
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES[q])
    u = torch.as_tensor(list(itertools.product(nodes, repeat=q)), dtype=batch.x.dtype)  # (K, q)
    log_weight = torch.as_tensor(list(itertools.product(np.log(weights), repeat=q)), dtype=batch.x.dtype).sum(-1)
    u, log_weight = u.to(batch.x.device), log_weight.to(batch.x.device)
    b = mean + torch.einsum("sij,kj->ksi", root, u)
    heights = log_joint(method, batch, values, {"b": b.unsqueeze(2)})
    heights = heights + (log_weight + 0.5 * u.square().sum(-1)).unsqueeze(1)
    return heights.logsumexp(0) + root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def marginal_log_likelihood(run: Run) -> float:
    """log p(y | beta, L, sigma) of the training data, random effects integrated out; see :func:`marginals`."""
    with torch.no_grad():
        return float(_total(run.fitted, {}))


#: (nodes or sigma points) x examples of a pass, whose second derivatives hold some fifty numbers for each
HELD = 1_000_000
#: places of a pass, whose chains' draws are taken along
TOGETHER = 1000


def _parts(fitted: Fitted) -> Iterator[list[int]]:
    """All clients, largest first, in parts that are padded little and fit into memory."""
    federation, method = fitted.federation, fitted.method
    assert isinstance(method, MixedEffects)
    q = len(method.network.random)
    nodes = 2 * q if method.exact else NODES.get(q, 1) ** q
    order = sorted(range(federation.clients), key=lambda j: -len(federation.train[j]))
    for first, last in buckets([len(federation.train[j]) for j in order], HELD // nodes):
        for row in range(first, last, TOGETHER):
            yield order[row : min(row + TOGETHER, last)]


def _part(fitted: Fitted, rows: list[int], moved: Mapping[str, Tensor]) -> Tensor:
    """The sum of these places' marginals, with some shared values moved."""
    assert isinstance(fitted.method, MixedEffects)
    return marginals(fitted.method, fitted.federation.batch(rows), {**fitted.values(rows), **moved}).sum()


def _total(fitted: Fitted, moved: Mapping[str, Tensor]) -> Tensor:
    """The sum of all places' marginals."""
    return torch.stack([_part(fitted, rows, moved) for rows in _parts(fitted)]).sum()


def effects(fitted: Fitted) -> tuple[pd.DataFrame, dict[str, float]]:
    """What was estimated, with standard errors from the curvature of the marginal log likelihood.

    Returns:
        A row for each fixed effect, standard deviation and correlation: name, estimate, standard error (NaN, with a
        note, for what is held or stands at its bound). And two numbers: marginal_log_likelihood, and off_maximum, the
        length in standard errors of the Newton step that is still to go.
    """
    import pandas as pd

    method, shared = fitted.method, fitted.shared
    assert isinstance(method, MixedEffects)
    names = [k for k in shared if k.startswith("effects.")]
    here = torch.cat([shared[k].flatten() for k in names])

    def unflat(theta: Tensor) -> State:
        parts = theta.split([shared[k].numel() for k in names])
        return {k: part.view_as(shared[k]) for k, part in zip(names, parts, strict=True)}

    height, slope, curvature = here.new_zeros(()), torch.zeros_like(here), here.new_zeros((len(here), len(here)))
    with torch.enable_grad():
        theta = here.clone().requires_grad_()
        for rows in _parts(fitted):  # (a part's derivatives are let go before the next one's)
            part = _part(fitted, rows, unflat(theta))
            (one,) = torch.autograd.grad(part, theta, create_graph=True)
            curvature -= torch.stack([torch.autograd.grad(g, theta, retain_graph=True)[0] for g in one])
            height, slope = height + part.detach(), slope + one.detach()
            del part, one
        labels, wanted = _reported(method, {**shared, **unflat(theta)})
        jacobian = torch.stack([_gradient(value, theta) for value in wanted])
    free, bound = torch.ones_like(here, dtype=torch.bool), (LEAST * method.first_sd()).log().to(here)
    if "effects.log_sd" in names:
        first = sum(shared[k].numel() for k in names[: names.index("effects.log_sd")])
        for k in range(len(bound)):
            lower = here.clone()
            lower[first + k] = bound[k]
            with torch.no_grad():  # near zero the slope of log sd says nothing: is zero as likely?
                free[first + k] = bool(_total(fitted, unflat(lower)) < height - AS_LIKELY)
    index = free.nonzero().flatten()
    kept = curvature[index][:, index]
    scale = kept.diagonal().clamp_min(torch.finfo(kept.dtype).tiny).sqrt()
    inverse = torch.zeros_like(curvature)
    definite = bool((torch.linalg.eigvalsh(kept / (scale[:, None] * scale)) > 1e-10).all())
    if definite:
        inverse[index[:, None], index] = torch.linalg.inv(kept / (scale[:, None] * scale)) / (scale[:, None] * scale)
    variance = ((jacobian @ inverse) * jacobian).sum(1)
    bounded, still = jacobian[:, ~free].abs().sum(1) > 0, jacobian.abs().sum(1) == 0
    notes = []
    for name, value, at_bound, held in zip(labels, wanted, bounded.tolist(), still.tolist(), strict=True):
        edge = name.startswith("corr(") and abs(float(value.detach())) > EDGE
        note = "at its lower bound" if at_bound else "held" if held else "at its bound" if edge else ""
        notes.append(note or ("" if definite else "not identified"))
    known = torch.tensor([not note for note in notes], device=here.device)
    errors = torch.where(known, variance.clamp_min(0).sqrt(), torch.nan)
    rest = slope[index]
    off = float((rest @ inverse[index][:, index] @ rest).sqrt()) if definite else float("nan")
    table = pd.DataFrame(
        {
            "effect": labels,
            "estimate": [float(v.detach()) for v in wanted],
            "standard_error": errors.cpu().numpy(),
            "note": notes,
        }
    )
    return table, {"marginal_log_likelihood": float(height), "off_maximum": off}


def _gradient(value: Tensor, theta: Tensor) -> Tensor:
    found = torch.autograd.grad(value, theta, retain_graph=True, allow_unused=True)[0] if value.requires_grad else None
    return torch.zeros_like(theta) if found is None else found


def _reported(method: MixedEffects, values: State) -> tuple[list[str], list[Tensor]]:
    """Names and values of what a statistician reads: fixed effects, standard deviations, correlations."""
    design = method.network
    with Restrict(values):
        beta, root = method.value("beta"), method.spread()
        residual = None if design.family != "gaussian" or design.known else method.noise(None)
    sd = root.norm(dim=-1)
    labels, wanted = list(design.fixed), list(beta)
    labels += [f"sd({name})" for name in design.random]
    wanted += list(sd)
    if method.settings.covariance == "full":
        for (i, one), (k, other) in itertools.combinations(enumerate(design.random), 2):
            labels.append(f"corr({one}, {other})")
            wanted.append((root[i] * root[k]).sum() / (sd[i] * sd[k]))
    if residual is not None:
        labels.append("sd(residual)")
        wanted.append(residual.squeeze())
    return labels, wanted


# -- shrinkage ---------------------------------------------------------------------------------------------------------

#: so many times the response's spread is the width of a prior that says nothing
WIDE = 1e5


def shrunken(fitted: Fitted) -> pd.DataFrame:
    """Every place's coefficients by its own data alone and by the hierarchical model; the population's; the pooled.

    What a place has alone is the model's limit of an L so wide that it says nothing (fixed effects without a random
    part held); the pooled coefficients are that of L = 0, with all fixed effects fitted anew. The hierarchical ones are
    shrunk to the population's: fixed effects of the fit. (Where places differ in size, or the response is no gaussian,
    pooled data say something else.) A random effect that goes with no fixed one has a population of 0.

    Columns client, n, effect, local, population, pooled, hierarchical; local is NaN for a place whose data do not tell
    its coefficients apart, or put one of them at infinity.
    """
    import pandas as pd

    method, federation = fitted.method, fitted.federation
    assert isinstance(method, MixedEffects)
    design, q = method.network, len(method.network.random)
    width = WIDE * method.first_sd() / method.settings.sd_0
    wide = {"log_sd": width.log(), "corr": torch.zeros(q * (q - 1) // 2, dtype=torch.float64)}
    with Restrict(fitted.values([0])):
        beta = method.value("beta")
    same = _combinations(fitted)
    population, pooled = same @ beta, same @ _pooled(fitted)
    local, hierarchical = beta.new_empty((federation.clients, q)), beta.new_empty((federation.clients, q))
    for rows in _parts(fitted):
        batch, values = federation.batch(rows), fitted.values(rows)
        loose = {k: wide.get(k.rpartition(".")[2], v) for k, v in values.items()}
        with torch.no_grad():
            with Restrict(loose):
                mode, root = Conditional(method).solve(batch)
            with Restrict(values):
                mean = Conditional(method).solve(batch)[0]
        z = design.split(batch.x)[1]
        z = z if batch.mask is None else z * batch.mask[..., None]
        told = torch.linalg.matrix_rank(z * width) == q
        # (a coefficient at infinity has hardly any curvature left where the climb ends)
        told = told & (root.norm(dim=-1) < 1e-2 * width).all(-1)
        if not method.exact and values["b_draws"].numel():
            mean = values["b_draws"].flatten(1, -2).mean(1)
        local[rows] = torch.where(told[:, None], mode, torch.nan) + population
        hierarchical[rows] = mean + population
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "client": list(federation.ids), "n": federation.sizes(), "effect": design.random[k],
                    "local": local[:, k].cpu().numpy(), "population": float(population[k]),
                    "pooled": float(pooled[k]), "hierarchical": hierarchical[:, k].cpu().numpy(),
                }
            )
            for k in range(q)
        ],
        ignore_index=True,
    )  # fmt: skip


def _everything(fitted: Fitted) -> tuple[Batch, Tensor, Tensor]:
    """All training rows as one client's, and their x (1, N, p) and z (1, N, q)."""
    design, federation = fitted.method.network, fitted.federation
    assert isinstance(design, Design)
    index = torch.cat(list(federation.train))[None]
    batch = replace(federation.gather(index, None, [0]), n=index.new_full((1,), index.numel(), dtype=federation.dtype))
    x, z, _ = design.split(batch.x)
    return batch, x, z


def _combinations(fitted: Fitted) -> Tensor:
    """C (q, p) with x = z C for those fixed columns that are combinations of random ones; the others' are 0.

    So x beta is z (C beta), and what is left of it, which has no random part.
    """
    _, x, z = _everything(fitted)
    x, z = x.flatten(0, 1), z.flatten(0, 1)
    scale = z.norm(dim=0).clamp_min(torch.finfo(x.dtype).tiny)
    found = torch.linalg.lstsq(z / scale, x, driver="gelsd").solution
    gap = (z / scale @ found - x).norm(dim=0) / x.norm(dim=0).clamp_min(torch.finfo(x.dtype).tiny)
    return torch.where(gap < 1e-8, found / scale[:, None], 0.0)


def _pooled(fitted: Fitted) -> Tensor:
    """The fixed effects where places do not differ, (p,): climbed as in :class:`Conditional`."""
    method = fitted.method
    assert isinstance(method, MixedEffects)
    batch, x, _ = _everything(fitted)
    _, _, known = method.network.split(batch.x)
    with Restrict(fitted.values([0])), torch.no_grad():
        beta = method.value("beta").clone()
        for _ in range(CLIMB):
            slope, weight = Conditional(method).slopes(along(x, beta), batch, known)
            # least squares of the rows, whose columns may hardly be told apart (a year, and its square)
            root = weight.clamp_min(0).sqrt().flatten()
            root, slope = root[root > 0, None], slope.flatten()[root > 0]
            rows = x.flatten(0, 1)[weight.flatten() > 0] * root
            scale = rows.norm(dim=0).clamp_min(torch.finfo(x.dtype).tiny)
            step = torch.linalg.lstsq(rows / scale, slope[:, None] / root, driver="gelsd").solution[:, 0] / scale
            far = (x @ step).abs().amax()
            beta = beta + (step if method.exact else torch.log1p(far) / far.clamp_min(ARRIVED) * step)
            if method.exact or far < ARRIVED:
                break
    return beta
