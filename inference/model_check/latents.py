"""A latent of the guide, and the same of the model."""

from __future__ import annotations

from typing import Any

from pyro.distributions import Delta

from hierfl.errors import UserError
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.restrict import Site

from .supports import described, kind_of, outside, support_of, unbounded


def check_latent(name: str, drawn: Site, fn: Any, per_client: bool, per_example: bool) -> None:
    """Checks that guide and model mean the same latent.

    Args:
        name: the site's.
        drawn: the guide's.
        fn: the model's distribution.
        per_client, per_example: in which plates the model has it.

    Raises:
        UserError: naming the site.
    """
    if not per_client:
        raise UserError(f"model site {name!r} is in the guide's client plate, but not in the model's")
    if drawn.per_example != per_example:
        inside, outside_of = ("guide", "model") if drawn.per_example else ("model", "guide")
        raise UserError(
            f"latent site {name!r} is in the data plate of the {inside}, but not of the {outside_of}: a client's "
            "latent is sampled before 'with data(batch):', an example's inside it, in both"
        )
    if drawn.fn.event_shape != fn.event_shape:
        raise UserError(
            f"latent site {name!r} has event shape {tuple(drawn.fn.event_shape)} in the guide and "
            f"{tuple(fn.event_shape)} in the model: give both the same, by .to_event(...)"
        )
    support, reach = support_of(fn), support_of(drawn.fn)
    if support is None or unbounded(support):
        return
    everywhere = reach is not None and unbounded(reach) and kind_of(drawn.fn) not in (Delta, EmpiricalDraws)
    if everywhere or outside(fn, drawn.value):
        raise UserError(
            f"guide site {name!r} draws values outside the support of the model's ({described(support)}): give the "
            "guide a distribution of the same support, a LogNormal for what is positive, say"
        )
