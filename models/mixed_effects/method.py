"""Mixed effects: maximum likelihood of a mixed model whose rows stay with their clients.

    b_j | L ~ N(0, L L^T),    eta_ij = x_ij^T beta + z_ij^T b_j,    y_ij ~ p(y | eta_ij)          (model, families)

    maximised: sum_j log integral p(D_j | b, beta, sigma) N(b | 0, L L^T) db     (maximum likelihood, not REML)

Gaussian: the guide is the exact conditional p(b_j | D_j, beta, L, sigma), so that each client's ELBO *is* its marginal
log likelihood, and the ELBO's gradient its score (Fisher's identity); expectations of quadratics are taken at sigma
points, without Monte-Carlo error. Others: the guide is what Metropolis-adjusted chains have kept of it, and when the
shared values move, the chains are moved along with its mode and curvature. Clients send scores and their outer
products; the server takes Newton steps. After the last round chains draw every client's posterior, whatever the family.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from pyro.distributions import MultivariateNormal

from hierfl.data.batch import Batch
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.langevin.step import Langevin
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.newton import NewtonScoring
from hierfl.inference.state import State
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.plates import clients, param, sample

from .model import SD_FLOOR, MixedModel
from .newton import PosteriorMode
from .shrinkage import shrinkage_table
from .summary import effects_table, marginal_terms

if TYPE_CHECKING:
    import pandas as pd

    from hierfl.inference.evaluation.fitted import Fitted

#: burn-in of the last chains, and what their step sizes are adapted to accept
FINAL_BURN_IN, FINAL_ACCEPTANCE = 300, 0.574


class MixedEffects(MixedModel):
    """Random intercepts and slopes, by maximum likelihood, with every client's posterior."""

    name = "mixed-effects"
    about = "mixed models of tables, from a formula"
    family = "hierarchical"
    stays = "random effects"
    sent = "gradients, curvature"
    message_size = None
    order = 30
    #: a new client differs from the others: the spread between them belongs to what is said of it (not gaussian: those)
    global_draws = 200

    def personal(self, start: InitialWeights) -> State:
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
        return [PosteriorMode(self), *([] if self.exact else [self.chain(s.steps, s.steps // 2)])]

    def chain(self, steps: int, burn: int, thin: int = 1, target: float | None = None) -> Langevin:
        """In the metric of the posterior's own curvature, where steps have no units."""
        start: Literal["last", "prior"] = "prior" if self.exact else "last"
        return Langevin(
            ["b"], steps, 0.5, metropolis=True, metric="b_root", around="b_mean" if self.exact else None, burn=burn,
            thin=thin, target=target, start=start,
        )  # fmt: skip

    def schedule(self) -> Schedule:
        s = self.settings
        final: list[LocalStep] = [PosteriorMode(self)]
        if s.draws:
            steps = FINAL_BURN_IN + s.draws * s.thin
            final.append(self.chain(steps, FINAL_BURN_IN, s.thin, FINAL_ACCEPTANCE))
        return Schedule(final_steps=final)

    def exchange(self) -> dict[str, AggregationRule]:
        s = self.settings
        how: dict[str, Any] = {"most": {"effects.log_sd": 0.5, "effects.corr": 0.5, "effects.log_noise": 0.5}}
        if s.prior == "hierarchical":
            how["least"] = {"effects.log_sd": (SD_FLOOR * self.first_sd()).log()}

        def rate(t: int) -> float:  # Newton steps; then their average, in effect
            return 1.0 if t <= s.newton_rounds else 1 / (t - s.newton_rounds + 1)

        if self.exact:
            return {"effects": NewtonScoring("b", 0, sigma_points=True, rate=rate, **how)}
        return {
            "effects": NewtonScoring("b", s.chains * (s.steps - s.steps // 2), curvature_decay=0.8, rate=rate, **how)
        }

    @property
    def global_moments(self) -> bool:
        """Of a gaussian response they say all."""
        return self.exact

    def client_summary(self, v: State) -> State:
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

    def summary_terms(self, fitted: Fitted) -> State:
        """Marginal log likelihood at the estimates (height), its slope and curvature, and heights at bounds.

        See :func:`~hierfl.models.mixed_effects.summary.marginal_terms`.
        """
        return marginal_terms(fitted)

    def population_summary(self, fitted: Fitted) -> tuple[pd.DataFrame, dict[str, float]]:
        """See :func:`~hierfl.models.mixed_effects.summary.effects_table`."""
        return effects_table(fitted)

    def shrinkage_table(self, fitted: Fitted) -> pd.DataFrame | None:
        """See :func:`~hierfl.models.mixed_effects.shrinkage.shrinkage_table`; None at a site.

        One site's rows say neither what all rows together would, nor which fixed effects go with a random one: there
        a column may be the same in every row.
        """
        return shrinkage_table(fitted) if fitted.federation.clients > 1 else None
