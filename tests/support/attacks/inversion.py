"""Images from what a site's training has changed, without any touch to what is broadcast.

Of one image and one step, the first layer's gradient is the image times a number, and the bias's gradient that number:
the quotient is the image. Of several images and steps, images are sought whose training would change the weights the
same (Zhu et al., Deep leakage from gradients, NeurIPS 2019; Dimitrov et al., Data leakage in federated averaging, TMLR
2022): the settings, the labels' counts and the order of steps are known to a coordinator.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from hierfl.inference.state import State

from .imprint import first_layer
from .membership import global_logits

#: a pixel's root mean square error, of a range from 0 to 1, up to which one sees what an image is of
SEEN = 0.1


def quotients(moved: State, sent: State) -> np.ndarray:
    """A candidate of each hidden unit that has moved, (K, pixels), standardised."""
    weight = first_layer(sent)
    dw, db = moved[weight].numpy(), moved[weight.replace("weight", "bias")].numpy()
    some = np.abs(db) > 1e-3 * np.abs(db).max(initial=1e-12)
    return dw[some] / db[some, None]


def trained(net: object, sent: State, x: torch.Tensor, y: torch.Tensor, lr: float, steps: int) -> State:
    """What gradient descent on all of these images changes, differentiable in them.

    Args:
        net: the architecture.
        sent: values at the start.
        x: (n, 1, height, width), standardised.
        y: (n,).
        lr, steps: of the site's settings; no momentum.
    """
    values = {name: value.double().requires_grad_() for name, value in sent.items()}
    for _ in range(steps):
        loss = cross_entropy(global_logits(net, values, x), y)  # type: ignore[arg-type]
        slopes = torch.autograd.grad(loss, list(values.values()), create_graph=True)
        values = {name: value - lr * g for (name, value), g in zip(values.items(), slopes, strict=True)}
    return {name: values[name] - sent[name].double() for name in values}


def matched(
    net: object, sent: State, moved: State, labels: np.ndarray, lr: float, steps: int, *, shape: tuple[int, ...],
    mean: float, std: float, iterations: int = 200, starts: int = 3,
) -> np.ndarray:  # fmt: skip
    """Images (n, pixels), standardised, whose training moves the values alike: the best of some starts."""
    y, total = torch.as_tensor(labels), sum(float((v**2).sum()) for v in moved.values())
    likely = torch.as_tensor(quotients(moved, sent) * std + mean).clip(0.02, 0.98)
    best, best_images = np.inf, np.empty((0, 0))
    for start in range(starts):
        rng = torch.Generator().manual_seed(start)
        free = torch.randn((len(labels), *shape), generator=rng, dtype=torch.float64)
        if start and len(likely):
            free = likely[torch.randint(len(likely), (len(labels),), generator=rng)].logit().unflatten(1, shape)
        free.requires_grad_()
        optimiser = torch.optim.LBFGS(
            [free], max_iter=iterations, history_size=20, line_search_fn="strong_wolfe", tolerance_grad=1e-12,
            tolerance_change=1e-14,
        )  # fmt: skip

        def distance(free: torch.Tensor = free, optimiser: torch.optim.Optimizer = optimiser) -> torch.Tensor:
            optimiser.zero_grad()
            tried = trained(net, sent, (free.sigmoid() - mean) / std, y, lr, steps)
            loss = sum((((tried[name] - moved[name]) ** 2).sum() for name in moved), torch.tensor(0.0)) / total
            loss.backward()
            return loss

        optimiser.step(distance)
        if (loss := float(distance().detach())) < best:
            best, best_images = loss, ((free.detach().sigmoid() - mean) / std).flatten(1).numpy()
    return best_images


def errors(candidates: np.ndarray, images: np.ndarray, mean: float, std: float) -> np.ndarray:
    """Of each image (n, pixels) of bytes: the root mean square error of the candidate that is nearest, in 0 to 1."""
    pixels = (candidates * std + mean).clip(0, 1)
    return np.sqrt(((pixels[:, None] - images[None] / 255) ** 2).mean(2)).min(0)
