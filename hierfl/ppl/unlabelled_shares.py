"""A client's label shares, given inputs whose labels are not known.

    pi           ~ a population of label shares (:mod:`.label_shares`)
    z_i | pi     ~ Categorical(pi)                    the label of an input, not seen
    x_i | z_i    has a density in proportion to p(z_i | x_i) / m_z

p(y | x) is a classifier's probability where the classes have shares m. Saerens, Latinne and Decaestecker (Neural
Computation 2002) take the pi of highest likelihood by EM, for one population. With few inputs that is far from the
truth, and with a prior that leaves classes out its mode is no estimate. So labels and shares are drawn by turns:
z | pi is independent over inputs, pi | z is the population's posterior given counts. Averaged over draws of pi,
softmax(log p(y | x_i) + log pi - log m) is p(z_i | x_1, ..., x_N): an input is used once, though it also says
something of pi. One input alone has the classifier's own probabilities.

An estimate of shares is as biased as the classifier is miscalibrated (Alexandari, Kundaje and Shrikumar, ICML 2020).
Where no data are held out for a temperature, a part of each density is the same for all classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..rng import ClientNoise
from .label_shares import LabelShares

#: sweeps that are left out; the first begins at the population's shares, where every class is there
BURN = 50
#: share of an input's density that is the same for all classes: networks are surer of new inputs than they are right,
#: and a few sure errors would put a class among those of a client that lacks it
DOUBT = 0.1


def shares_given_inputs(
    population: LabelShares, log_densities: Tensor, mask: Tensor | None, noise: ClientNoise, draws: int,
    doubt: float = DOUBT,
) -> Tensor:  # fmt: skip
    """Draws of each client's pi given x_1, ..., x_N, by Gibbs sampling.

    Args:
        population: p(pi).
        log_densities: log p(x_i | z = c) up to a constant of each input, (S, N, C).
        mask: (S, N), False where a row is padded; None where no row is.
        noise: of these S clients.
        draws: K.
        doubt: share of each density that is the same for all classes, from 0 to 1.

    Returns:
        (K, S, C), float64; zero for classes that a draw leaves out.
    """
    rows, width, classes = log_densities.shape
    density = (1 - doubt) * log_densities.double().softmax(-1) + doubt / classes
    pi, kept = population.pooled.double().expand(rows, classes), []
    weight = torch.ones_like(density[..., 0]) if mask is None else mask.double()
    for sweep in range(BURN + draws):
        noise = noise.at(sweep)
        passed = (pi[:, None] * density).cumsum(-1)
        u = noise.uniform("labels", width, torch.Size())[0].double()
        z = (passed < (u * passed[..., -1])[..., None]).sum(-1).clamp_max(classes - 1)
        counts = weight.new_zeros((rows, classes)).scatter_add_(1, z, weight)
        u = noise.uniform("shares", 1, torch.Size([3 * classes + 2]))[0, :, 0].double()
        pi = population.given(counts).draws(u.clamp(1e-12, 1 - 1e-12)[None])[0]
        kept.append(pi)
    return torch.stack(kept[BURN:])
