"""How many numbers of everyone, and of a client, are fitted, and by which guide."""

from __future__ import annotations

from torch import Tensor

from hierfl.errors import UserError

from .sites import MOST_BY_ROWS, Sites

#: numbers of everyone of which clients send the whole curvature
MOST_FULL = 300


def refuse_sizes(sites: Sites, guide: str, rank: int, *, by_rows: bool) -> None:
    """What is too large for the guide that is asked for.

    Args:
        sites: of the model.
        guide: as it is asked for.
        rank: of what clients send of the curvature; 0 where they send all of it.
        by_rows: whether a client's latents of rows are apart, since they are many.

    Raises:
        UserError: for it, in one line.
    """
    p, q, own = len(sites.start), len(sites.client_start), sites.own_points
    if p > MOST_FULL and guide == "full":
        raise UserError(
            f"the model has {p} numbers of everyone, and messages for guide='full' take their number squared: "
            f"beyond {MOST_FULL} say guide='low-rank'"
        )
    if not by_rows:
        return
    if own:
        raise UserError(
            f"pyro.param {own[0].name!r} is each client's, and a client has {q} numbers of latents of rows: "
            f"beyond {MOST_BY_ROWS} write it as pyro.sample with a prior"
        )
    if rank:
        raise UserError(
            f"the model has {p} numbers of everyone and {q} of a client, those of its rows among them: "
            f"beyond {MOST_BY_ROWS} of a client, at most {MOST_FULL} of everyone are fitted, by guide='full'"
        )


def refuse_transforms(spread: Tensor, transforms: str, rank: int) -> None:
    """Marginal transforms of a guide that cannot have them, where they are asked for.

    Args:
        spread: which globals are no points, (p,).
        transforms: as they are asked for.
        rank: of what clients send of the curvature; 0 where they send all of it.

    Raises:
        UserError: for it, in one line.
    """
    if transforms != "on":
        return
    if rank:
        raise UserError(
            "transforms='on' is of a guide of full covariance, or of independent numbers, which clients send the whole "
            f"curvature for: leave it out, or say guide='full' with at most {MOST_FULL} numbers of everyone"
        )
    if not bool(spread.any()):
        raise UserError("transforms='on' gives globals' posteriors a shape, and here no global has one: leave it out")
