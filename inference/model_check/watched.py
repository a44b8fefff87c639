"""A model and a guide that are run once, under the rules of their sites."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import torch
from pyro.distributions import Delta
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.ppl.restrict import Site

from ..method.base import Method
from ..objective.log_joint import log_density
from ..objective.sites import guide_latents, model_sites
from .probe import PARTICLES, ROWS, Probe
from .site_rules import SiteRules
from .supports import described, kind_of, outside, support_of, unbounded

#: in the errors of Pyro's plates
OF_PLATES = ("Shape mismatch inside plate", "collide at dim", "duplicate plate", "cannot use plate")
#: how far values are moved to see whether a point stays in its support
PROBE_DISTANCE = 20.0


class Watched:
    """A method whose parameters and sites are looked at while its model and guide are run.

    Args:
        method, probe: what is run on what.
        free: values that gradient steps move.
    """

    def __init__(self, method: Method, probe: Probe, free: Collection[str]) -> None:
        self.method, self.network, self.expand = method, method.network, method.expand
        self.how = (probe.batch, probe.shared, probe.personal, free, PARTICLES)
        #: the guide's, once it was run
        self.latents: dict[str, Site] = {}

    def model(self, batch: Batch) -> None:
        """See :class:`~hierfl.inference.method.base.Method`."""
        with SiteRules("model", *self.how, self.latents):
            self.method.model(batch)

    def guide(self, batch: Batch) -> None:
        """See :class:`~hierfl.inference.method.base.Method`."""
        with SiteRules("guide", *self.how):
            self.method.guide(batch)


def check_sites(method: Method, probe: Probe, free: Collection[str]) -> None:
    """Runs guide and model once, at their initial values.

    Args:
        method, probe: what is run on what.
        free: values that gradient steps move.

    Raises:
        UserError: for the first parameter or site that breaks a rule, or a model that does not run.
    """
    watched, values = Watched(method, probe, free), probe.start()
    batch = probe.batch
    tensors = {"batch.x": batch.x, "batch.y": batch.y, "batch.n": batch.n, "batch.mask": probe.mask, **values}
    before = {name: tensor._version for name, tensor in tensors.items()}
    with torch.enable_grad():  # what has a gradient though no value of the method's has one is not trained
        latents = guide_latents(watched, batch, values, probe.noise(range(ROWS), probe.counts))
        watched.latents = latents
        drawn = {f"latent {name!r}": site.value for name, site in latents.items()}
        tensors, before = {**tensors, **drawn}, {**before, **{name: value._version for name, value in drawn.items()}}
        sites = model_sites(watched, batch, values, latents)
        densities = {name: log_density(site.fn, site) for name, site in sites.items()}
    for name, tensor in tensors.items():
        if tensor._version != before[name]:
            raise UserError(
                f"the model or guide changes {name} in place, for whatever is computed next: write x = x - m, not "
                "x -= m"
            )
    for name, density in {**{k: site.value for k, site in latents.items()}, **densities}.items():
        if density.requires_grad:
            raise UserError(
                f"site {name!r} depends on weights of a torch module, or a tensor with requires_grad, that shared() "
                "and personal() do not declare: nothing trains or sends them; put the module into the network, or, for "
                "one that stays as it is, say .requires_grad_(False)"
            )
    _check_points(method, probe, values, sites, free)


def _check_points(
    method: Method, probe: Probe, values: Mapping[str, Tensor], sites: Mapping[str, Site], free: Collection[str]
) -> None:
    """Whether a guide's points stay in their supports wherever their values go."""
    bounded = {
        name: support
        for name, site in sites.items()
        if site.kind == "latent" and (support := support_of(site.fn)) is not None and not unbounded(support)
    }
    for far in (-PROBE_DISTANCE, PROBE_DISTANCE) if bounded else ():
        moved = {k: v + far if k in free and k in probe.personal else v for k, v in values.items()}
        with torch.no_grad():
            latents = guide_latents(method, probe.batch, moved, None)
        for name in bounded.keys() & latents.keys():
            if kind_of(latents[name].fn) is Delta and outside(sites[name].fn, latents[name].value):
                raise UserError(
                    f"guide site {name!r} is a point that leaves the support of the model's "
                    f"({described(bounded[name])}) when gradient steps move it: write its logarithm as a param, and "
                    "Delta(param(...).exp())"
                )


@contextmanager
def errors_as_one_line(method: Method) -> Iterator[None]:
    """Errors of shapes and indices that a model or guide raises, in one line, with the line of the method's file."""
    try:
        yield
    except (RuntimeError, IndexError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        file = getattr(sys.modules.get(type(method).__module__), "__file__", None)
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        line = f" (line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
        words = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}{line}"
        if any(text in str(error) for text in OF_PLATES):
            advice = (
                "the dimensions of a site are (clients, examples), and all others need .to_event(...); a plate is "
                "'with clients(batch):' or 'with data(batch):'"
            )
        else:
            advice = "a batch may have any number of clients S and examples n: x (S, n, ...), y (S, n), n (S,)"
        raise UserError(
            f"model or guide does not run on {ROWS} padded clients, or on one: {words}; {advice}"
        ) from error
