"""What is checked before a fit: shapes of sites, and that clients do not mix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hierfl.data.federation import Federation
from hierfl.data.index_sets import IndexSets
from hierfl.errors import UserError
from hierfl.ppl.restrict import Site
from hierfl.rng import ClientNoise, client_keys

from ..objective.elbo import elbo
from ..objective.joint_model import JointModel
from ..objective.sites import guide_latents, model_sites
from ..state import State, client_view


def check_rows(method: JointModel, federation: Federation, shared: State, personal: State) -> None:
    """Checks that what a client's ELBO is does not depend on which clients are beside it in the plate.

    Two clients with a few examples each and states that differ, once together and once alone.

    Raises:
        UserError: if it does.
    """
    if federation.clients < 2:
        return
    picked = IndexSets(federation.train[j][:3] for j in (0, 1))
    own = {k: torch.stack([v, v * 1.1]).unsqueeze(1) for k, v in personal.items()}

    def value(rows: list[int]) -> Tensor:
        index, mask = picked.padded(rows)
        batch = federation.gather(index, mask, rows)
        keys, counts = client_keys(rows, federation.device), [picked.sizes[j] for j in rows]
        noise = ClientNoise(keys, ("rows",), 3, counts=counts, dtype=federation.dtype)
        return elbo(method, batch, client_view(shared, {k: v[rows] for k, v in own.items()}), noise)

    with torch.no_grad():
        together, alone = value([0, 1]), torch.cat([value([0]), value([1])])
    if together.isfinite().all() and not torch.allclose(together, alone, rtol=1e-3, atol=1e-3):
        raise UserError(
            "the model or guide mixes clients: a client's ELBO changes with which clients are beside it in the plate "
            f"({together.tolist()} together, {alone.tolist()} alone)"
        )


def check_shapes(
    method: JointModel, federation: Federation, shared: State, personal: State, rows: Sequence[str]
) -> dict[str, Site]:
    """Runs guide and model once on empty data and checks that every site has its plates' shape.

    A parameter with one dimension too few or too many broadcasts clients against data or particles without a word,
    and biases everything. Two clients, three particles and five examples leave it nowhere to hide.

    Args:
        method: whose model and guide.
        federation: for the shape of the data.
        shared: {name: (*shape)}.
        personal: one row, {name: (*shape)}.
        rows: shared values that clients train or differentiate by.

    Returns:
        The model's sites.

    Raises:
        UserError: naming the site.
    """
    clients, particles, width = 2, 3, 5
    own = {k: v.expand(clients, 1, *v.shape) for k, v in {**{k: shared[k] for k in rows}, **personal}.items()}
    batch, values = federation.template(clients, width), client_view(shared, own)
    noise = ClientNoise(client_keys(range(clients), batch.x.device), ("shapes",), particles, dtype=batch.n.dtype)
    with torch.no_grad():
        latents = guide_latents(method, batch, values, noise)
        sites = model_sites(method, batch, values, latents)
    for name, site in [*latents.items(), *sites.items()]:
        if site.kind == "latent" and not site.per_client:
            raise UserError(f"model site {name!r} is in the guide's client plate, but not in the model's")
        if site.per_client:
            check_site_shape(name, site.fn, site.per_example, clients, width, particles)
    return sites


def check_site_shape(name: str, fn: Any, per_example: bool, clients: int, width: int, particles: int) -> None:
    """Checks that a site's distribution has the shape of its plates, draws of latents before it.

    Args:
        name: the site's.
        fn: its distribution, broadcast to its plates.
        per_example: whether it is in the data plate.
        clients, width, particles: the sizes of the dimensions.

    Raises:
        UserError: naming the site.
    """
    expected, shape = (clients, width if per_example else 1), tuple(fn.batch_shape)
    if shape[-2:] != expected or shape[:-2] not in ((), (1,), (particles,)):
        if not per_example and shape[-2:] == (clients, width):
            raise UserError(
                f"site {name!r} has a value for each example, but is not in the data plate: write 'with data(batch):' "
                "around it"
            )
        raise UserError(
            f"site {name!r} has batch shape {shape} for {clients} clients, {width} examples and {particles} "
            f"particles, expected {expected}: a parameter has one dimension too few or too many (a scalar beside a "
            "vector needs shape (1,), one beside the data shape ()), or the site lacks .to_event"
        )
