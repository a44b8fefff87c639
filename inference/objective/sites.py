"""A method's guide and model, run on the rows of a plate: their sites."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.nn.layers.batch_norm import Norms
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.ppl.guide_draws import draw_with
from hierfl.ppl.restrict import Restrict, Site
from hierfl.ppl.sigma_points import Noise
from hierfl.rng import ClientNoise

from .joint_model import JointModel


def guide_latents(
    method: JointModel, batch: Batch, values: Mapping[str, Tensor], noise: Noise | None, norms: Norms | None = None
) -> dict[str, Site]:
    """Runs the guide: each personal latent's distribution and value, (K, S, 1 or n, *event), no K at its centre."""
    with Restrict(values, draw=draw_with(noise), norms=norms) as restricted:
        method.guide(batch)
    for name, site in restricted.sites.items():
        if site.kind == "latent" and not site.per_client:
            raise UserError(
                f"guide site {name!r} is outside the client plate; a global latent is a point: name it in shared()"
            )
    return {name: site for name, site in restricted.sites.items() if site.kind == "latent"}


def model_sites(
    method: JointModel,
    batch: Batch,
    values: Mapping[str, Tensor],
    latents: Mapping[str, Site],
    frozen: FrozenFeatures | None = None,
    noise: Noise | None = None,
    norms: Norms | None = None,
) -> dict[str, Site]:
    """Runs the model with the guide's draws, and dropout where there is noise for it."""
    drawn, drop = {name: site.value for name, site in latents.items()}, None
    if isinstance(noise, ClientNoise):

        def drop(name: str, x: Tensor) -> Tensor:
            return noise.normal(name, x.shape[-2], x.shape[-1:])[0]  # one mask for all particles

    with Restrict(values, latents=drawn, frozen=frozen, drop=drop, norms=norms) as restricted:
        method.model(batch)
    unused = latents.keys() - restricted.sites.keys()
    if unused:
        raise UserError(f"guide site {sorted(unused)[0]!r} is not a latent of the model")
    return restricted.sites
