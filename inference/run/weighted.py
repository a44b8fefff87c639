"""Whether a fit takes weights of training rows.

A weight is a factor of a row's log likelihood, and n_j is the sum of a client's weights. So a row of weight two is two
rows, in full-batch steps exactly. That holds where local steps see rows only through the ELBO, and messages only
through n_j. Whatever else counts rows, or looks at their inputs, would count each once.
"""

from __future__ import annotations

from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.nn.layers.batch_norm import is_statistic

from ..local.closed_form import ClosedForm
from ..local.response_sd import OwnResponseSd
from ..local.svi import SVI
from ..method.base import Method
from ..options import Options
from ..server.rules.means import PrecisionWeightedMean, SampleWeighted, UniformMean
from ..server.rules.response_sd import PooledResponseSd
from ..state import State

#: rules that see rows by n_j alone
RULES = (SampleWeighted, UniformMean, PrecisionWeightedMean, PooledResponseSd)


def check_weighted(method: Method, federation: Federation, options: Options, values: State) -> None:
    """Refuses weights of rows where each row would count once.

    Args:
        method: as it is fitted.
        federation: the data.
        options: of the fit.
        values: what server and clients begin with.

    Raises:
        UserError: for a method or an option that does not go with weights.
    """
    if federation.weights is None:
        return
    reasons = {
        "final='chains'": options.final == "chains", "masked": options.masked,
        f"dp={options.dp!r}": options.dp != "none", f"robust={options.robust!r}": options.robust != "none",
    }  # fmt: skip
    if named := [name for name, chosen in reasons.items() if chosen]:
        raise UserError(f"{named[0]} does not go with weights of rows")
    name = method.name or type(method).__name__
    if any(map(is_statistic, values)):
        raise UserError("batch norm counts every row once, and weights say otherwise: use a network without it")
    steps = [*method.local(), *method.schedule().final_steps]
    strange: list[object] = [step for step in steps if not _of_likelihood(step)]
    strange += [rule for rule in method.exchange().values() if type(rule) not in RULES]
    if method.conditions or method.latent or strange:
        why = f" (its {type(strange[0]).__name__})" if strange else ""
        raise UserError(
            f"{name} counts rows{why}, and takes no weights: fedavg, fedprox, fedper, fedrep, ditto, local, pfedvem do"
        )


def _of_likelihood(step: object) -> bool:
    """Whether a local step sees rows through the ELBO, or not at all."""
    if isinstance(step, SVI):
        plain = all(block.transform is None for block in step.blocks)
        return type(step) is SVI and plain and step.watch is None and step.predicts is None
    return type(step) in (ClosedForm, OwnResponseSd)
