"""The diagonal of the Fisher information in all weights of a network, one client's by itself."""

from __future__ import annotations

from typing import Literal

import pyro
import torch
from pyro.distributions import Normal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.errors import UserError
from hierfl.nn.architecture import Architecture
from hierfl.nn.layers.batch_norm import is_statistic
from hierfl.nn.likelihoods import RESPONSE_SD, Softmax
from hierfl.nn.output_derivatives import output_gradient
from hierfl.nn.squared_gradients import is_layered, squared_gradients
from hierfl.ppl.restrict import Restrict

from ..state import State
from .chunk import ClientChunk

#: labels at which scores are taken: those of the data, as in the empirical Fisher, or the model's own, all of them
Labels = Literal["data", "model"]
#: numbers of gradients, examples times weights, that are held at a time
MAX_NUMBERS_AT_ONCE = 4_000_000
#: examples whose layers' inputs and outputs are held at a time
EXAMPLES_PER_PASS = 256


def mean_squared_scores(chunk: ClientChunk, network: Architecture, name: str, labels: Labels) -> Tensor:
    """Mean over each client's examples of the squared gradients of log p(y | x, w), (S, d).

    With the model's labels that is their expectation under p(y | x, w): the diagonal of the generalised Gauss-Newton
    matrix, which for a linear network is the Hessian's. Each example is squared by itself: a minibatch's mean gradient
    squared is smaller, by up to its size (Kunstner, Balles and Hennig, NeurIPS 2019, for both kinds of labels).

    Networks are as they predict: nothing is dropped, and batch norm goes by its running statistics, the row's own where
    it has some: by a batch's, an example's gradient would be the others', too.

    Args:
        chunk: the rows.
        network: whose weights are one vector.
        name: of that vector, the rows' copies (S, 1, d).
        labels: at which labels.
    """
    w = chunk.values[name].squeeze(1)
    sd = chunk.view.get(RESPONSE_SD)  # () or (S, 1)
    parts, layered = [], is_layered(network)
    with pyro.validation_enabled(False), torch.enable_grad():
        for first, last in buckets(chunk.sizes):
            part = chunk.part(first, last)
            batch, weights = part.batch(), w[first:last].detach()
            sd_of = None if sd is None else sd.expand(len(w), 1)[first:last]
            norms = _running_statistics(network, part)
            if layered and weights.numel() * batch.width > MAX_NUMBERS_AT_ONCE:
                each_row = [
                    _by_layer(network, weights, batch, row, labels, norms, sd_of) for row in range(len(weights))
                ]
                parts.append(torch.stack(each_row))
                continue
            total = torch.zeros_like(weights)
            examples_at_once = max(1, MAX_NUMBERS_AT_ONCE // weights.numel())
            for x, y, mask in zip(
                batch.x.split(examples_at_once, 1),
                batch.y.split(examples_at_once, 1),
                (batch.n.new_ones(batch.y.shape) if batch.mask is None else batch.mask).split(examples_at_once, 1),
                strict=True,
            ):
                total = total + (_squares(network, weights, x, y, labels, norms, sd_of) * mask[..., None]).sum(1)
            parts.append(total / part.n[:, None])
    return torch.cat(parts)


def _running_statistics(network: Architecture, chunk: ClientChunk) -> State:
    """Batch norm's, of each row, {name: (S, 1, C)}."""
    names, view, rows = filter(is_statistic, network.base.norm_names), chunk.view, len(chunk.clients)
    return {k: view[k] if k in chunk.values else view[k].expand(rows, 1, *view[k].shape) for k in names}


def _by_layer(
    network: Architecture, w: Tensor, batch: Batch, row: int, labels: Labels, norms: State, sd: Tensor | None
) -> Tensor:
    """The same of one row, (d,), without the gradients of single examples."""
    n = len(batch.y[row]) if batch.mask is None else int(batch.mask[row].sum())
    own, squares = {k: v[row, 0] for k, v in norms.items()}, torch.zeros_like(w[row])
    for x, y in zip(batch.x[row, :n].split(EXAMPLES_PER_PASS), batch.y[row, :n].split(EXAMPLES_PER_PASS), strict=True):

        def roots(output: Tensor, y: Tensor = y) -> list[Tensor]:
            with Restrict({} if sd is None else {RESPONSE_SD: sd[row]}):
                return score_roots(network.likelihood(output), y, labels)

        squares += squared_gradients(network, w[row], x, roots, own)
    return squares / n


def _squares(
    network: Architecture, w: Tensor, x: Tensor, y: Tensor, labels: Labels, norms: State, sd: Tensor | None
) -> Tensor:
    """Squared scores of each example, (S, n, d), for weights (S, d): every example is a row with weights of its own."""
    rows, n = y.shape
    alone = w[:, None].expand(rows, n, -1).reshape(rows * n, 1, -1).clone().requires_grad_()
    with Restrict({k: v.expand(rows, n, -1).reshape(rows * n, 1, -1) for k, v in norms.items()}):
        output = network(alone, x.reshape(rows * n, 1, *x.shape[2:]))  # (S n, 1, outputs)
    with Restrict({} if sd is None else {RESPONSE_SD: sd.expand(rows, n).reshape(-1, 1)}):
        directions = score_roots(network.likelihood(output.detach()), y.reshape(-1, 1), labels)
    squares = torch.zeros_like(alone)
    for number, direction in enumerate(directions):
        more = number + 1 < len(directions)
        (slope,) = torch.autograd.grad((output * direction).sum(), alone, retain_graph=more)
        squares += slope.square()
    return squares.view(rows, n, -1)


def score_roots(fn: Softmax | Normal, y: Tensor, labels: Labels) -> list[Tensor]:
    """Directions r_k (..., outputs) of an output, with sum_k r_k r_k^T = s s^T of the score s = d log p(y) / d output.

    Args:
        fn: the response's distribution, batch shape (...).
        y: the data, (...).
        labels: "model" takes the expectation of s s^T under ``fn`` instead.
    """
    if labels == "data":
        return [output_gradient(fn, y)]
    if isinstance(fn, Normal):
        return [fn.scale.reciprocal().expand(fn.batch_shape)[..., None]]
    if not isinstance(fn, Softmax):
        raise UserError(f"the Fisher information of {type(fn).__name__} is not known: that of Softmax and Normal is")
    roots = fn.probs.sqrt()
    every = torch.full_like(y, 1)
    return [roots[..., k, None] * output_gradient(fn, k * every) for k in range(roots.shape[-1])]
