"""The check of a model of a user's own, before its first round."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from pyro.distributions import Delta

from hierfl.data.batch import Batch
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.ppl.restrict import Site

from ..local.svi import SVI
from ..method.base import Method
from ..objective.sites import guide_latents, model_sites
from ..server.exchange import Exchange
from ..state import State
from .comparisons import check_chunks, check_padding, check_repeats, check_weights
from .predicted import check_predictions
from .probe import PARTICLES, ROWS, Probe
from .random_numbers import no_random_numbers, random_numbers_kept
from .site_rules import SiteRules
from .supports import described, kind_of, outside, support_of, unbounded

#: in the errors of Pyro's plates
OF_PLATES = ("Shape mismatch inside plate", "collide at dim", "duplicate plate")
#: how far values are moved to see whether a point stays in its support
FAR = 20.0


def is_shipped(method: Method) -> bool:
    """Whether a method is one of hierfl's own, which the tests have asked."""
    return type(method).__module__.startswith("hierfl.models.")


def check_model(
    method: Method, federation: Federation, shared: State, personal: State, exchange: Exchange, rows: Sequence[str]
) -> None:
    """Refuses a model or guide that would be computed otherwise than it reads.

    Seven clients with three examples each, or fewer where there are fewer: each site and parameter is looked at, and
    then numbers are compared: padded and not, alone and together, in a minibatch, and as predictions. Nothing of the
    fit is changed, and no random number of it is used.

    Args:
        method: whose model and guide.
        federation: the clients that are here, one at least.
        shared: initial shared values, {name: (*shape)}.
        personal: one row, {name: (*shape)}.
        exchange: how shared values are moved.
        rows: shared values that clients train or differentiate by.

    Raises:
        UserError: one line, which names the site or parameter, and what to write.
    """
    steps = [*method.local(), *method.schedule().final_steps]
    known = {**shared, **personal}
    free = {k for step in steps for name in _by_gradients(step) for k in method.expand(name, known)}
    free |= {
        k for name, group in exchange.groups.items() if group.rule.sends_gradients for k in method.expand(name, known)
    }
    with random_numbers_kept(federation.device):
        probe = Probe(method, federation, shared, personal, rows)
        with no_random_numbers(federation.device), torch.no_grad():
            _check_sites(method, probe, free)
        probe.shake()
        together = check_repeats(probe)
        check_chunks(probe, together)
        check_padding(probe)
        check_weights(probe, steps)
        check_predictions(method, probe)


def _by_gradients(step: Any) -> Iterator[str]:
    """Values that steps of SVI move, inside others, too."""
    if isinstance(step, SVI):
        yield from step.trains
    for name in ("step", "descent"):
        if (inner := getattr(step, name, None)) is not None:
            yield from _by_gradients(inner)


class _Ruled:
    """A method whose sites are looked at while its model and guide are run."""

    def __init__(self, method: Method, probe: Probe, free: Collection[str]) -> None:
        self.method, self.network, self.expand = method, method.network, method.expand
        self.how = (probe.batch, probe.shared, probe.personal, free, PARTICLES)
        #: the guide's, once it was run
        self.latents: dict[str, Site] = {}

    def model(self, batch: Batch) -> None:
        with SiteRules("model", *self.how, self.latents):
            self.method.model(batch)

    def guide(self, batch: Batch) -> None:
        with SiteRules("guide", *self.how):
            self.method.guide(batch)


def _check_sites(method: Method, probe: Probe, free: Collection[str]) -> None:
    ruled, values = _Ruled(method, probe, free), probe.start()
    try:
        ruled.latents = guide_latents(ruled, probe.batch, values, probe.noise(range(ROWS), probe.counts))
        sites = model_sites(ruled, probe.batch, values, ruled.latents)
    except ValueError as error:
        if isinstance(error, UserError) or not any(words in str(error) for words in OF_PLATES):
            raise
        raise UserError(
            f"{str(error).splitlines()[0]}: the dimensions of a site are (clients, examples), and all others need "
            ".to_event(...); a plate is 'with clients(batch):' or 'with data(batch):'"
        ) from error
    bounded = [
        name
        for name, site in sites.items()
        if site.kind == "latent" and (support := support_of(site.fn)) is not None and not unbounded(support)
    ]
    for far in (-FAR, FAR) if bounded else ():
        moved = {k: v + far if k in free and k in probe.personal else v for k, v in values.items()}
        for name, drawn in guide_latents(method, probe.batch, moved, None).items():
            if name in bounded and kind_of(drawn.fn) is Delta and outside(sites[name].fn, drawn.value):
                raise UserError(
                    f"guide site {name!r} is a point that leaves the support of the model's "
                    f"({described(support_of(sites[name].fn))}) when gradient steps move it: write its logarithm as a "
                    "param, and Delta(param(...).exp())"
                )
