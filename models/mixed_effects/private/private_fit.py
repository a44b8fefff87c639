"""What a mixed model's fit with noise inside each client is made with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hierfl.data.federation import Federation
from hierfl.data.formula import gate
from hierfl.data.formula.units import INTERCEPT
from hierfl.errors import UserError
from hierfl.inference.noise.accounting import Mechanism
from hierfl.inference.noise.plan import Plan
from hierfl.inference.noise.sources import noise_sd
from hierfl.inference.options import Options

from .columns import ScaledColumns
from .noise_of_fit import PrivateFit
from .ranges import Range, range_of, read_ranges
from .release import STATISTICS
from .working import SHARES
from .working_release import part_name

if TYPE_CHECKING:
    from ..model.population import Population

#: responses with a mechanism that adds noise
FAMILIES = ("gaussian", "binomial")
#: sums of products of more columns than this have more noise than anything else
MOST_COLUMNS = 24


def private_fit(method: Population, options: Options, federation: Federation) -> PrivateFit:
    """Columns and noise of a fit.

    Raises:
        UserError: for a model that has no noise-aware likelihood here, or ranges that are not declared.
    """
    refuse(method, options)
    network, family = method.network, method.network.family
    reader = federation.about.get("reader")
    ranges = {**federation.about.get("ranges", {}), **read_ranges(method.settings.ranges)}
    formula = None if reader is None else gate.parse(reader.formula)
    if formula is None or len(formula.response or ()) != 1:
        raise UserError("dp='site' is of a response that is one column of a table, as in 'y ~ x + (1 | site)'")
    if functions := gate.of_all_rows(formula):
        raise UserError(
            f"dp='site': {functions[0]}() is made of all rows, so that one of them moves the others: plain columns"
        )
    written = formula.text.partition("~")[0].strip()
    response = Range(0.0, 1.0) if family == "binomial" else range_of(written, ranges)
    columns = ScaledColumns.from_design(network, response, ranges)
    if len(columns.names) > MOST_COLUMNS:
        raise UserError(f"dp='site' is of at most {MOST_COLUMNS} columns, not {len(columns.names)}")
    private = PrivateFit(columns, options.patient_rows, (), family != "gaussian")
    plan = Plan.for_epsilon("site", options.epsilon, options.delta, mechanisms(family))
    return replace(
        private, sds=tuple(noise_sd(private.numbers, private.sensitivity, plan.multiplier(name)) for name in plan.parts)
    )


def mechanisms(family: str = "gaussian") -> tuple[Mechanism, ...]:
    """One release of a gaussian response, and one a round of another."""
    if family == "gaussian":
        return (Mechanism(STATISTICS, 1.0, 1),)
    return tuple(Mechanism(part_name(number), share, 1) for number, share in enumerate(SHARES, 1))


def refuse(method: Population, options: Options) -> None:
    """Refuses what noise inside clients is not of, in one line.

    Raises:
        UserError: for it.
    """
    network, s = method.network, method.settings
    if options.dp != "site":
        raise UserError(
            "mixed-effects: noise is inside each client (dp='site'); a sum over clients has none of its own"
        )
    if options.masked:
        raise UserError("mixed-effects: with dp='site' each client's noisy sums are sent by themselves: masked=False")
    if options.clip != 1.0:
        raise UserError("mixed-effects: rows are bounded by the ranges of their columns, and clip changes nothing")
    if s.residuals:
        raise UserError("mixed-effects: with noise no counts of residuals leave: residuals=False")
    if network.family not in FAMILIES:
        raise UserError(f"dp='site' is of {', '.join(FAMILIES)} responses, not of family {network.family}")
    if len(network.groupings) > 1:
        raise UserError("dp='site' is of random effects of one level, the clients': no groups inside or above them")
    if network.own:
        raise UserError("dp='site' is of responses without formulas of their own numbers, such as a dispersion formula")
    if network.extras:
        raise UserError(f"dp='site' is of rows that count alike: no {network.extras[0]}")
    if not any(name in INTERCEPT for name in network.fixed):
        raise UserError("dp='site' is of formulas with an intercept: 'y ~ 1 + x + (1 | site)'")
    if s.one_round:
        raise UserError("dp='site' sends noisy sums in one round anyway: leave one_round out")
