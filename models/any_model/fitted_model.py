"""A fitted plain model: draws, summaries, predictions and checks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.calls import checked_call
from hierfl.errors import NoAttribute, UserError
from hierfl.inference.run.result import Run
from hierfl.plurals import counted

from .method import AnyModel
from .own_guide.method import OwnGuide
from .predicted import Predictor, predictive
from .printed import ModelSummary
from .prior import prior_draws
from .results import ModelPosterior
from .values import NO_ROW
from .verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd

#: what other packages call something, and what it is here
NAMES_ELSEWHERE = {
    "get_samples": "fitted.globals and fitted.clients are draws by site",
    "samples": "fitted.globals and fitted.clients are draws by site",
    "sample": "fitted.globals and fitted.clients are draws by site",
    "to_arviz": "fitted.posterior() is an ArviZ InferenceData",
    "params": "fitted.summary() has the globals",
    "coef": "fitted.summary() has the globals",
    "ranef": "fitted.clients are draws of the clients' latents",
    "client_module": "it has no network; fitted.predict(rows) is of a client, and fitted.clients has its draws",
}


@dataclass(frozen=True)
class FittedModel:
    """A fitted plain model.

    Attributes:
        run: the fit.
    """

    run: Run

    @property
    def method(self) -> AnyModel | OwnGuide:
        """The model, and how it was fitted."""
        assert isinstance(self.run.fitted.method, AnyModel | OwnGuide)
        return self.run.fitted.method

    @cached_property
    def joint(self) -> ModelPosterior:
        """Draws of the joint posterior, and tables of them."""
        return ModelPosterior.from_fit(self.run.fitted)

    @property
    def globals(self) -> dict[str, np.ndarray]:
        """Draws of the globals on their supports, {site: (draws, *shape)}; deterministic sites included."""
        return self.joint.globals

    @property
    def clients(self) -> dict[str, np.ndarray]:
        """Draws of the clients' latents on their supports, {site: (draws, J, *shape)}; deterministic sites included.

        Draw d of :attr:`globals` and draw d of these are one draw of the joint posterior.
        """
        return self.joint.clients

    @property
    def arrived(self) -> bool:
        """Whether the fit has converged before its rounds were used up."""
        return self.method.finished(self.run.shared)

    @property
    def verdict(self) -> Verdict:
        """The diagnosis of the globals' exploration."""
        return Verdict.read(self.run.shared)

    @property
    def trace(self) -> pd.DataFrame:
        """A row for each of the last 256 rounds: round, phase, bound, moved (of the guide's step, in standard
        deviations), worth (of the explored points, in independent draws)."""
        return self.joint.trace_table()

    @property
    def client_names(self) -> list[str]:
        """Names of the J clients, in the order of :attr:`clients`."""
        return self.joint.client_names

    # -- tables -------------------------------------------------------------------------------------------------------

    @checked_call
    def summary(self) -> ModelSummary:
        """Mean, sd, 5 % and 95 % quantile of each number of the globals, and warnings about the fit as a whole."""
        federation = self.joint.fitted.federation
        sizes = (federation.clients, "client"), (sum(federation.sizes()), "row"), (self.run.rounds, "round")
        size = ", ".join(counted(number, word) for number, word in sizes)
        notes = self.joint.notes(self.run.rounds)
        return ModelSummary(self.method.name, size, self.joint.globals_table(), tuple(notes))

    def client_table(self) -> pd.DataFrame:
        """Clients: a row for each, its number of rows, and mean and sd of each number of its latents."""
        return self.joint.client_table()

    def __repr__(self) -> str:
        return str(self.summary())

    def __getattr__(self, name: str) -> Any:
        way = NAMES_ELSEWHERE.get(name)
        if way is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise NoAttribute(f"a fitted model has no {name!r}: {way}")

    # -- predictions --------------------------------------------------------------------------------------------------

    @checked_call
    def predictive(
        self, df: pd.DataFrame, *, client: str | None = None, site: str | None = None, draws: int | None = None,
        new: bool = False, given: pd.DataFrame | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Draws of an observed site at the rows of a table; see :meth:`predict`.

        Returns:
            (draws, rows, *shape).
        """
        predictor = Predictor(self.joint.fitted, draws)
        return predictive(predictor, df, client=client, site=predictor.site(site), new=new or given is not None,
                          given=given)[0]  # fmt: skip

    @checked_call
    def predict(
        self, df: pd.DataFrame, *, client: str | None = None, site: str | None = None, draws: int | None = None,
        new: bool = False, given: pd.DataFrame | None = None, interval: float = 0.9,
    ) -> pd.DataFrame:  # fmt: skip
        """The posterior predictive distribution of an observed site at the rows of a table.

        Args:
            df: with the columns that the model reads. A response may be left out if only observed sites depend on it.
            client: name of the rows' client; None to read the clients' column.
            site: the observed site; None for the only one.
            draws: number of posterior draws, at most those that were kept; None for all.
            new: whether the clients are not among those fitted: their latents come from their prior at each draw of
                the globals.
            given: rows of new clients with responses. Draws of their latents and of the globals are weighted by these
                rows' likelihood. Implies ``new``.
            interval: probability of the interval.

        Returns:
            The index of ``df``; columns client, mean, sd, lower, upper.

        Raises:
            UserError: for a client that was not fitted, a column that is lacking, a level that is new, or a site with
                more than one number a row (use :meth:`predictive`).
        """
        import pandas as pd

        if not 0 < interval < 1:
            raise UserError(f"interval is a probability between 0 and 1, not {interval}")
        predictor = Predictor(self.joint.fitted, draws)
        name = predictor.site(site)
        values, clients = predictive(predictor, df, client=client, site=name, new=new or given is not None, given=given)
        if values.ndim > 2:
            raise UserError(f"site {name!r} has several numbers a row: fitted.predictive(df) gives their draws")
        lower, upper = np.quantile(values, [(1 - interval) / 2, (1 + interval) / 2], axis=0)
        columns = {"client": clients, "mean": values.mean(0), "sd": values.std(0), "lower": lower, "upper": upper}
        return pd.DataFrame(columns, index=df.index)

    @checked_call
    def prior_predictive(self, draws: int = 200) -> dict[str, np.ndarray]:
        """Draws from the prior: globals (draws, *shape), clients' sites (draws, J, *shape), rows' (draws, N, *shape).

        Rows are those of the fit, client after client.

        Raises:
            UserError: for a prior that cannot be drawn from.
        """
        return {name: value for of_level in prior_draws(self.joint, draws) for name, value in of_level.items()}

    # -- what is observed ---------------------------------------------------------------------------------------------

    @property
    def log_likelihood(self) -> dict[str, np.ndarray]:
        """Log densities of observed sites, {site: (draws, N)} by row, client after client, or {site: (draws, J)}."""
        by_row, by_client = self.joint.log_densities
        return {**by_row, **by_client}

    @checked_call
    def loo(self, site: str | None = None) -> Any:
        """Leave-one-out cross-validation of rows by Pareto-smoothed importance sampling: an ArviZ ``ELPDData``.

        Args:
            site: the observed site; None for the only one.

        Raises:
            UserError: where the model observes several sites and ``site`` is None; where it observes no site of rows.
        """
        from hierfl.arviz_io import loo

        if not self.joint.log_densities[0]:
            raise UserError(NO_ROW)
        return loo(self.posterior(prior=0, predictive=False), site)

    @checked_call
    def posterior(
        self, *, prior: int | None = None, predictive: bool = True, rows: bool = True, observed: bool = True
    ) -> Any:
        """The joint posterior for ArviZ.

        Groups: posterior and prior, globals (chain, draw, ...) and clients' (chain, draw, client, ...); log_likelihood
        and posterior_predictive of each observed site; observed_data; constant_data (n).

        Args:
            prior: number of draws from the prior; None for as many as of the posterior, 0 for none. A prior that cannot
                be drawn from has none.
            predictive: whether to draw from the posterior predictive distribution at the rows of the fit.
            rows: whether to include values with an entry for each row.
            observed: whether to include the observed data.
        """
        return self.joint.inference_data(prior=prior, predictive=predictive, rows=rows, observed=observed)
