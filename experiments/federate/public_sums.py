"""What a study with noise knows of all rows before its first round: the dictionary alone, and nothing of any site.

Columns are standardised by made-up rows whose numbers are uniform in their ranges and whose levels are equally
frequent. No site is asked, so nothing is released: these sums are the same for whatever rows the sites have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hierfl.data.federated.array_data import ArrayData
from hierfl.errors import UserError
from hierfl.files import write_whole
from hierfl.inference.engines.remote.preparation import numbered, unnumbered
from hierfl.inference.engines.remote.wire import Unreadable, decode, encode
from hierfl.inference.method.learned_sd import with_learned_sd
from hierfl.inference.method.with_noise import plan_of
from hierfl.inference.noise.networks import with_noise
from hierfl.inference.noise.plan import Plan
from hierfl.inference.state import State

from .made_up import make_up_file
from .study import Study

if TYPE_CHECKING:
    from hierfl.data.federation import Federation
    from hierfl.inference import Method
    from hierfl.nn.architecture import Architecture

#: made-up sites and rows of each: as many as a mean is to have two digits
SITES, ROWS = 10, 200
#: relative distance up to which numbers of two machines are the same
RELATIVE_TOLERANCE = 1e-9
#: of a server's folder
PUBLIC_FILE = "public.safetensors"


def is_public(study: Study) -> bool:
    """Whether a study's first sums are made from its dictionary, and no site sends any."""
    return study.options("cpu").dp != "none"


def public_sums(study: Study) -> list[State]:
    """Sums of the preparation, step by step, float64: they depend on the study alone, not on its roster.

    Args:
        study: with noise.

    Raises:
        UserError: for a response of which no values can be made up.
    """
    if isinstance(study.data, ArrayData):
        return [_uniform_bytes(study.data)] if study.data.images else []
    totals: list[State] = []
    with TemporaryDirectory() as folder:
        sites = []
        for j in range(SITES):
            path = make_up_file(study, Path(folder), f"site{j}", j, ROWS)
            sites.append(study.data.site(path, f"site{j}"))
        for _ in range(study.data.steps):
            before: list[dict[str, np.ndarray]] = [
                {name: value.numpy() for name, value in sums.items()} for sums in totals
            ]
            of_sites = [_tensors(site.sums(before)) for site in sites]
            totals.append(reduce(lambda total, other: {k: v + other[k] for k, v in total.items()}, of_sites))
    return totals


def kept_public_sums(study: Study, folder: Path) -> list[State]:
    """The same, as a server began with them: it may go on elsewhere.

    Args:
        study: with noise.
        folder: the server's.

    Raises:
        UserError: for a damaged file.
    """
    path = folder / PUBLIC_FILE
    if not path.is_file():
        write_whole(path, encode({}, numbered(public_sums(study))))
    try:
        return unnumbered(decode(path.read_bytes())[1])
    except Unreadable as error:
        raise UserError(f"{path} is damaged: {error}") from error


def noisy_plan(study: Study) -> Plan | None:
    """The noise plan of a study, as its server and every site have it; None for a study without noise.

    Raises:
        UserError: in one line, for a method whose messages cannot have noise, or a budget that cannot be met.
    """
    if not is_public(study):
        return None
    totals = [{name: value.numpy() for name, value in sums.items()} for sums in public_sums(study)]
    outline, network = study.data.model(totals, study.loaded.cls.latent)
    return plan_of(noisy_method(study, network, outline), study.options("cpu"))


def noisy_method(study: Study, network: Architecture, outline: Federation) -> Method:
    """The method of a study as its noise changes it; as it is for a study without.

    Args:
        study: what was agreed on.
        network: that the method is made with.
        outline: what is known of the data.
    """
    if not is_public(study):
        return study.method(network)
    method, outline = with_learned_sd(study.method(network), outline, alone=True)
    return with_noise(study.options("cpu"), method, outline, alone=True, everyone=len(study.clients))[0]


def same_sums(first: Sequence[State], other: Sequence[State]) -> bool:
    """Whether two machines' public sums are the same, up to the order of additions."""
    return len(first) == len(other) and all(
        a.keys() == b.keys()
        and all(
            a[k].shape == b[k].shape and torch.allclose(a[k].cpu(), b[k].cpu(), RELATIVE_TOLERANCE, RELATIVE_TOLERANCE)
            for k in a
        )
        for a, b in zip(first, other, strict=True)
    )


def _tensors(sums: Mapping[str, Any]) -> State:
    return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in sorted(sums.items())}


def _uniform_bytes(data: ArrayData) -> State:
    """Moments of channels whose bytes are equally frequent."""
    values = torch.arange(256, dtype=torch.float64)
    ones = torch.ones(data.channels, dtype=torch.float64)
    return _tensors({"n": torch.tensor(256.0), "total": values.sum() * ones, "square": values.square().sum() * ones})
