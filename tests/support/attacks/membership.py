"""Whether a person was in a study, by what the study published: likelihood ratio with shadow models.

An attacker who has data of the same kind fits shadow models, each on a random half of them. Of each person it has the
confidence of models with and without that person: two normals. A published model's confidence is compared with both
(Carlini et al., Membership inference attacks from first principles, IEEE S&P 2022). Every model is the target once, and
the others are its shadows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import norm
from sklearn.datasets import load_digits

from hierfl import Federation, fit, mixed_model
from hierfl.experiments import methods
from hierfl.inference.run.result import Run
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture

#: from which rows are members (N,), and a seed: the confidence of the fitted model for each row, (N,)
Fitted = Callable[[np.ndarray, int], np.ndarray]


class Attack(NamedTuple):
    """How well members are told from others, mean over targets.

    Attributes:
        auc: area under the ROC curve; 0.5 is a coin's.
        se: its standard error over targets.
        tpr: share of members that are named while 1 % of the others are.
        gap: mean confidence of members less that of others, in logits.
    """

    auc: float
    se: float
    tpr: float
    gap: float


def halves(models: int, rows: int, seed: int = 0) -> np.ndarray:
    """Which rows are members of which model, (models, rows): every row of half of the models."""
    rng = np.random.default_rng(seed)
    return np.argsort(rng.random((models, rows)), 0) < models // 2


def area(score: np.ndarray, member: np.ndarray) -> float:
    """Under the ROC curve; ties count half."""
    ranks = pd.Series(score).rank().to_numpy()
    n, m = member.sum(), (~member).sum()
    return float((ranks[member].sum() - n * (n + 1) / 2) / (n * m))


def likelihood_ratio(scores: np.ndarray, member: np.ndarray) -> Attack:
    """The attack on each model by all others.

    Args:
        scores: confidences, (models, rows).
        member: likewise.
    """
    areas, tprs = [], []
    for target in range(len(scores)):
        others = np.arange(len(scores)) != target
        inside, outside = (np.where(which[others], scores[others], np.nan) for which in (member, ~member))
        # With few shadows one width for all rows is steadier than one for each.
        means = np.nanmean(inside, 0), np.nanmean(outside, 0)
        widths = [np.sqrt(np.nanmean((x - mean) ** 2)) + 1e-9 for x, mean in zip((inside, outside), means, strict=True)]
        ratio = norm.logpdf(scores[target], means[0], widths[0]) - norm.logpdf(scores[target], means[1], widths[1])
        areas.append(area(ratio, member[target]))
        limit = np.quantile(ratio[~member[target]], 0.99)
        tprs.append(float((ratio[member[target]] > limit).mean()))
    gap = scores[member].mean() - scores[~member].mean()
    return Attack(float(np.mean(areas)), float(np.std(areas) / np.sqrt(len(areas))), float(np.mean(tprs)), float(gap))


def run(fitted: Fitted, models: int, rows: int, seed: int = 0) -> Attack:
    """Fits all models, and attacks each."""
    member = halves(models, rows, seed)
    return likelihood_ratio(np.stack([fitted(which, k) for k, which in enumerate(member)]), member)


def network(name: str, x: np.ndarray, y: np.ndarray, clients: int, **options: object) -> Fitted:
    """The published global model of a method with a network.

    Args:
        name: of the method.
        x, y: (M, 8, 8) uint8 and (M,); of these the last N are members or not, and those before are always.
        clients: rows go to them in turn.
        **options: ``network``, ``settings`` of the method, others of the fit.
    """
    who = np.arange(len(y)) % clients
    how = dict(options)
    shape, settings = str(how.pop("network", "mlp:32")), dict(how.pop("settings", {}))  # type: ignore[call-overload]

    def fitted(member: np.ndarray, seed: int) -> np.ndarray:
        which = np.r_[np.ones(len(y) - len(member), bool), member]
        federation = Federation.from_arrays(
            x[which], y[which], who[which], x_test=x[~which], y_test=y[~which], client_test=who[~which]
        )
        net = architecture(shape, federation)
        ran = fit(methods.load(name).cls(net, **settings), federation, seed=seed, progress=False, **how)
        return confidences(ran, net, x, y)[-len(member) :]

    return fitted


def confidences(run: Run, net: Architecture, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the global model for each row's label, in logits, (N,); inputs are standardised as in the fit.

    Args:
        run: the fit.
        net: its network.
        x, y: (N, 8, 8) uint8 and (N,).
    """
    data = run.fitted.federation  # with noise pixels are standardised by constants, not as the data were
    with torch.no_grad():
        inputs = (torch.as_tensor(x).float()[:, None] / 255 - data.mean) / data.std
        logits = global_logits(net, run.shared, inputs).log_softmax(-1)
        own = logits.gather(1, torch.as_tensor(y)[:, None])[:, 0].double()
        return (own - torch.log1p(-own.exp().clamp(max=1 - 1e-7))).numpy()


def digits(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """One digit of each class, and ``rows`` others: (10 + rows, 8, 8) uint8, (10 + rows,)."""
    data = load_digits()
    y = data.target.astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(y))
    first = [int(order[np.flatnonzero(y[order] == label)[0]]) for label in range(10)]
    kept = np.r_[first, [k for k in order if k not in first][:rows]].astype(int)
    return np.clip(data.images[kept] * 15, 0, 255).astype(np.uint8), y[kept]


def global_logits(net: Architecture, shared: State, inputs: torch.Tensor) -> torch.Tensor:
    """Of the model that all clients share, (N, classes)."""
    base = {name: value for name, value in shared.items() if name.startswith("base.")}
    return net(net.vector(base, shared["w"]), inputs[None])[0]


def patients(rows: int, columns: int, clients: int, seed: int = 0) -> pd.DataFrame:
    """A table: site, a whole number of covariates, and an outcome of 0 or 1."""
    rng = np.random.default_rng([seed, 49])
    site = np.arange(rows) % clients
    x = rng.normal(size=(rows, columns))
    eta = x @ (0.5 * rng.normal(size=columns)) + 0.5 * rng.normal(size=clients)[site]
    table = pd.DataFrame(x, columns=[f"x{k}" for k in range(columns)])
    return table.assign(site=[f"s{k}" for k in site], y=rng.binomial(1, 1 / (1 + np.exp(-eta))).astype(float))


def effects(table: pd.DataFrame) -> Fitted:
    """The published effects of a mixed model, and no site's own: a person's confidence is that of these alone."""
    names = [name for name in table if str(name).startswith("x")]

    def fitted(member: np.ndarray, seed: int) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = mixed_model(
                table[member], f"y ~ {' + '.join(map(str, names))} + (1 | site)", family="binomial", draws=0
            )
        beta = model.summary(0.9).table.set_index("effect").estimate
        eta = beta["Intercept"] + table[names].to_numpy() @ beta[names].to_numpy()
        return np.where(table.y == 1, eta, -eta)

    return fitted
