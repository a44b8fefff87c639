"""Histogram of the responses' quantiles over all clients, in cells of equal probability.

A client counts the quantiles of its own rows (:mod:`.quantiles`), each by the client's own effects given the estimates,
in ten cells. Sums of these counts are all that a server needs: where the model holds they are about equal. Pearson's
statistic is compared with chi-squared on nine degrees of freedom. The effects were estimated from the same rows, which
draws quantiles to the middle: the p value errs upwards.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hierfl.data.client_names import in_words
from hierfl.errors import UserError
from hierfl.inference.evaluation.fitted import Fitted
from hierfl.inference.run.result import Run
from hierfl.inference.state import State
from hierfl.rng import key

from ..model.equations import MixedModel
from ..model.names import RESIDUALS, by_short_name
from ..report.estimates_only import at_nodes
from ..report.own_spreads import beside_nodes
from ..report.same_data import NO_ROWS
from .quantiles import quantiles
from .rowless import needs_rows
from .rows import KEPT, Rows, effects_at_estimates, single_client

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("hierfl")
#: cells of equal probability
CELLS = 10


def counts_of_rows(fitted: Fitted) -> Tensor:
    """Training rows of the clients that are here, by the quantile of their response, (CELLS,).

    A client whose quantiles cannot be computed is not counted, and its log says why.
    """
    counts = torch.zeros(CELLS, dtype=torch.float64)
    federation = fitted.federation
    if not federation.clients or federation.outline or NO_ROWS in federation.about:
        return counts
    own = effects_at_estimates(fitted)
    for j in range(federation.clients):
        try:
            u = client_quantiles(fitted, own, j)
        except UserError as error:
            log.warning("the rows of %s are in no histogram of residuals: %s", in_words(federation.ids[j]), error)
            continue
        cells = (u[u.isfinite()] * CELLS).floor().clamp(0, CELLS - 1).long()
        counts += torch.bincount(cells, minlength=CELLS)
    return counts


def client_quantiles(fitted: Fitted, own: State, j: int) -> Tensor:
    """The quantile of each training row of client j, (n,), between 0 and 1; what is drawn is by the client's name.

    Args:
        fitted: the fit.
        own: of :func:`.rows.effects_at_estimates`.
        j: the client.
    """
    method, federation = fitted.method, fitted.federation
    estimates = {k: v.cpu() for k, v in by_short_name(fitted.shared).items()}
    assert isinstance(method, MixedModel)
    chosen = federation.train[j].cpu()
    if not len(chosen):
        return torch.zeros(0, dtype=torch.float64)
    inputs, y = (values.cpu()[chosen].to(torch.float64) for values in (federation.x, federation.y))
    owner = torch.full((len(chosen),), j)
    columns = Rows(inputs, None, owner, y).columns(method)
    eta, population = method.predictor(columns, estimates["beta"]), {k: v[None] for k, v in estimates.items()}
    at_rows = at_nodes(method, eta, columns, population, own, owner, "client")
    nodes, weights, spread = beside_nodes(method, at_rows, population, own, owner, "client")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key(fitted.seed, "residual histogram", federation.ids[j]) % 2**63)
        noise = torch.rand(len(y), dtype=torch.float64)
        fn = method.response(nodes, {**estimates, **spread}, single_client(columns))
        event = None if columns.event is None else columns.event[0]
        return quantiles(method.response_family, fn, y, weights, event, noise)


def numbers_of(fitted: Fitted) -> dict[str, float]:
    """The numbers of a fit with the setting ``residuals``: residuals_1 to residuals_10, rows in each cell;
    residual_rows,
    residual_chi_squared and residual_p. Empty without it, and of a fit whose rows are nowhere.
    """
    assert isinstance(fitted.method, MixedModel)
    if not fitted.method.settings.residuals or not _known(fitted):
        return {}
    counts = fitted.summary_sums[RESIDUALS]
    rows, statistic, p = uniformity(counts)
    cells = {f"residuals_{k}": float(count) for k, count in enumerate(counts, 1)}
    return {**cells, "residual_rows": rows, "residual_chi_squared": statistic, "residual_p": p}


def uniformity(counts: Tensor) -> tuple[float, float, float]:
    """How many are counted, Pearson's statistic of equal cells, and its p value; not numbers where none is counted."""
    total = float(counts.sum())
    if not total:
        return 0.0, float("nan"), float("nan")
    expected = total / len(counts)
    statistic = (counts - expected).square().sum() / expected
    p = torch.special.gammaincc(statistic.new_tensor((len(counts) - 1) / 2), statistic / 2)
    return total, float(statistic), float(p)


def histogram(run: Run) -> pd.DataFrame:
    """See :meth:`.of_rows.OfRows.residual_histogram`."""
    import pandas as pd

    fitted = run.fitted
    if not _known(fitted):
        if fitted.federation.about.get(KEPT) is None:
            raise UserError("this study has counted no rows by their residuals: [settings] residuals = true")
        raise needs_rows("residual_histogram")
    counts = counts_of_rows(fitted) if fitted.population is None else fitted.population.summary_sums[RESIDUALS]
    rows, statistic, p = uniformity(counts)
    edges = torch.linspace(0, 1, CELLS + 1, dtype=torch.float64)
    table = pd.DataFrame({"lower": edges[:-1].numpy(), "upper": edges[1:].numpy(), "rows": counts.cpu().long().numpy()})
    table["expected"] = rows / CELLS
    table.attrs.update(chi_squared=statistic, df=CELLS - 1, p=p)
    return table


def _known(fitted: Fitted) -> bool:
    """Whether counts are there, or the rows that they are of."""
    if fitted.population is not None and RESIDUALS in fitted.population.summary_sums:
        return True
    # Of a study one site's rows are here, and not all clients'.
    return fitted.population is None and not fitted.federation.outline and NO_ROWS not in fitted.federation.about
