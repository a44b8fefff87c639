"""Clients' own standard deviations of residuals: of rows that are predicted or compared, and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from scipy import stats
from torch import Tensor

from hierfl.data.formula.design import RESIDUAL
from hierfl.data.formula.parsed import DISPERSION
from hierfl.errors import UserError
from hierfl.inference.run.result import Run
from hierfl.inference.state import State
from hierfl.rng import normals

from ..likelihood.quadrature.nodes import rule
from ..model.equations import MixedModel
from ..model.names import by_short_name
from .printed import check_level

if TYPE_CHECKING:
    import pandas as pd

#: nodes of the quadrature over e beside those over a row's linear predictor
NODES = 9


def at_draws(method: MixedModel, population: State, own: State, owner: Tensor | None, level: str, seed: int) -> State:
    """The spreads of rows at D draws, (D, n) or (D, 1), as :meth:`..model.equations.MixedModel.response` takes it.

    Args:
        method: whose model.
        population: draws {name: (D, *shape)}.
        own: effects of clients, b (J, D, q).
        owner: the client of each row, (n,); None for a new one, or for none.
        level: "client", "population" or "new".
        seed: of a new client's effects.
    """
    if not method.network.spread or level == "population":
        return {}
    if owner is not None:
        return method.spread(own["b"][owner].transpose(0, 1))
    root = method.covariance.matrix(population["root"])
    noise = normals(torch.Size(root.shape[:2]), seed, "new root", dtype=torch.float64)
    return method.spread((root @ noise[..., None]).squeeze(-1)[:, None])


def beside_nodes(
    method: MixedModel, nodes: tuple[Tensor, Tensor], population: State, own: State, owner: Tensor | None, level: str
) -> tuple[Tensor, Tensor, State]:
    """Nodes of rows' linear predictors, each with all nodes of e: (K, n), weights (K,), and e there.

    Given the estimates e is taken for normal, and for independent of the other effects.

    Args:
        method: whose model.
        nodes: of :func:`.estimates_only.at_nodes`.
        population, own, owner, level: as there.
    """
    eta, weights = nodes
    if not method.network.spread or level == "population":
        return eta, weights, {}
    if owner is None:
        mean, sd = eta.new_zeros(1), population["root"][..., -1].abs()
    else:
        mean, sd = own["b_mean"][owner][:, -1], own["b_root"][owner][:, -1].norm(dim=-1)
    at, log_weight = rule(NODES, 1, eta)
    share = (log_weight - 0.5 * at[:, 0].square()).softmax(0)
    e = method.spread((mean + sd * at).repeat_interleave(len(eta), 0)[..., None])
    return eta.repeat(NODES, 1), torch.outer(share, weights).flatten(), e


def residual_sds(run: Run, level: float) -> pd.DataFrame:
    """See :meth:`..fitted_model.FittedMixedModel.residual_sds`."""
    import pandas as pd

    check_level(level)
    method, federation = run.fitted.method, run.fitted.federation
    assert isinstance(method, MixedModel)
    if not method.network.spread:
        raise UserError(
            f"clients have one residual deviation in this model: {DISPERSION}='~ (1 | site)' gives each its own"
        )
    table = pd.DataFrame({"client": list(federation.ids), "n": federation.sizes()})
    draws, (grouping, tails) = (
        run.shared["effects.draws"],
        (method.network.dispersion, [(1 - level) / 2, (1 + level) / 2]),
    )
    assert grouping is not None
    if len(draws):
        gamma = method.parts(draws)[RESIDUAL]
        b = run.personal["b_draws"].flatten(1, 2)
    else:
        gamma, b = by_short_name(run.shared)[RESIDUAL][None], run.personal["b_mean"][:, None]
    base = (gamma @ grouping.to_users(gamma).T)[:, 0]  # (D,)
    logs = base + b[..., -1] / method.network.scale  # (J, D)
    if len(draws):
        ends = torch.quantile(logs, logs.new_tensor(tails), dim=1)
    else:
        sd = run.personal["b_root"][:, -1].norm(dim=-1) / method.network.scale
        ends = logs[:, 0] + sd * logs.new_tensor(stats.norm.ppf(tails))[:, None]
    middle = logs.quantile(0.5, dim=1)
    return table.assign(sd=middle.exp().numpy(), lower=ends[0].exp().numpy(), upper=ends[1].exp().numpy())
