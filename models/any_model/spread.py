"""Draws of clients' latents that are spread evenly, each set with noise of its own.

    z = s e exp(t e^2 / 2),     e = Phi^-1(u),     u a lattice, shifted,     in each dimension                       (1)
    log q(z) = -e^2 / 2 - log(2 pi) / 2 - t e^2 / 2 - log(1 + t e^2) - log s                                         (2)

(1) is Tukey's h distribution: a normal whose tails fall like the power 1 / t, of which draws and density are explicit.
A lattice is shifted by a number of the client's own (Cranley and Patterson, 1976), and is beside its mirror image:
each draw has exactly the density (2), so that means over the draws are unbiased, and with an even spread their variance
is far below that of independent draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from hierfl import philox
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.rng import key

#: s and t of (1)
SCALE_FACTOR, TAIL_FACTOR = 1.05, 0.25


@dataclass(frozen=True)
class Spread:
    """How many draws of what.

    Attributes:
        draws: I, a multiple of the sets, and of twice the sets where they are mirrored.
        sets: which of them are independent of each other.
        mirrored: whether each draw is beside its mirror image.
    """

    draws: int
    sets: int
    mirrored: bool = True


def spread(
    chunk: ClientChunk, how: Spread, q: int, points: tuple[int, int], purpose: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Draws z (I, M, S, q), one set after the other; log q(z), and log r = log N(z; 0, 1) - log q(z), (I, M, S).

    Args:
        chunk: the clients.
        how: the draws of a point.
        q: numbers of a draw.
        points: number of the first of the points, and how many there are: M.
        purpose: keys the shifts, beside seed and round.
    """
    first, many = points
    per_set = how.draws // how.sets // (2 if how.mirrored else 1)
    if not q:
        nothing = torch.zeros(how.draws, many, len(chunk.clients), dtype=torch.float64, device=chunk.federation.device)
        return nothing[..., None][..., :0], nothing, nothing
    shift = uniforms(chunk, (first * how.sets * q, many * how.sets * q), purpose, "shifts")
    shift = shift.reshape(many, how.sets, q, -1).permute(1, 0, 3, 2)  # (sets, M, S, q)
    lattice = SobolEngine(q, scramble=True, seed=0).draw(per_set, dtype=torch.float64).to(shift)
    u = (lattice[:, None, None] + shift[:, None]).remainder_(1).clamp_(1e-12, 1 - 1e-12)
    e = torch.special.ndtri(u)  # sets, each, M, S, q
    grown = 0.5 * TAIL_FACTOR * e.square()
    z = SCALE_FACTOR * e * grown.exp()
    log_q = -(grown * (1 + 1 / TAIL_FACTOR) + (2 * grown).log1p()).sum(-1)
    log_q = log_q - q * (0.5 * math.log(2 * math.pi) + math.log(SCALE_FACTOR))
    log_ratio = -0.5 * (z.square().sum(-1) + q * math.log(2 * math.pi)) - log_q
    if how.mirrored:
        z, log_q, log_ratio = torch.cat([z, -z], 1), torch.cat([log_q, log_q], 1), torch.cat([log_ratio, log_ratio], 1)
    return z.flatten(0, 1), log_q.flatten(0, 1), log_ratio.flatten(0, 1)


def uniforms(chunk: ClientChunk, numbers: tuple[int, int], *stream: str) -> Tensor:
    """Numbers in (0, 1) of each client, (N, S): those from the first on, by the client's own key.

    Args:
        chunk: the clients.
        numbers: the first, and N.
        stream: which, beside seed and round.
    """
    first, count = numbers
    start, end = first // 4, -(-(first + count) // 4)
    words = philox.rows_of_words(chunk.keys, key(chunk.seed, chunk.round, *stream), start, end - start)
    made = torch.stack([philox.unit(word, torch.float64) for word in words], -1).flatten(1)
    return made[:, first - 4 * start : first - 4 * start + count].T.to(chunk.federation.device)
