"""A method and its data as a fit's options have them."""

from __future__ import annotations

from hierfl.data.federation import Federation

from ..noise.networks import with_noise
from ..options import Options
from .base import Method
from .few_rounds import warn_of_few_rounds
from .final_chains import ending_as
from .learned_sd import with_learned_sd


def of_options(
    options: Options, method: Method, federation: Federation, *, alone: bool = False, everyone: int = 0
) -> tuple[Method, Federation]:
    """The method and federation with the learned response sd, the end and the noise of the options and the network.

    Args:
        options: of the fit.
        method: what is fitted.
        federation: to what.
        alone: whether it is one site's of several.
        everyone: clients of the whole fit, where ``alone``; 0 where that is not known.

    Raises:
        UserError: for a method that does not go with the options.
    """
    if not alone:
        warn_of_few_rounds(method, options.rounds)
    method, federation = with_learned_sd(method, federation, alone=alone)
    return with_noise(options, ending_as(options, method, federation), federation, alone=alone, everyone=everyone)
