"""Preconditioners of Langevin steps, learned during burn-in."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ...state import State
from .layout import columns_of, sum_over_event

Preconditioning = Literal["none", "rms", "fisher", "full"]
#: how much of a preconditioner the newest gradients are, at least
GRADIENT_DECAY = 0.02


class Preconditioner:
    """P, one for each row and latent: learned from the gradients of the row's chains, or 1.

    Everything takes and gives (C, S, 1, *event).
    """

    def __init__(self, kind: Preconditioning) -> None:
        self.kind, self.seen = kind, 0
        self._mean: State = {}  # F = E g^2 or E g g^T: (1, S, 1, *event), or (S, e, e)
        self._diagonal: State = {}  # P, (1, S, 1, *event)
        self._root: dict[str, tuple[Tensor, Tensor]] = {}  # R with P = R R^T, and its inverse, (S, e, e)

    def learn(self, slopes: State) -> None:
        """Takes one more gradient of every chain."""
        if self.kind == "none":
            return
        self.seen += 1
        for k, g in slopes.items():
            if self.kind == "full":
                flat = g.flatten(2)
                new = torch.einsum("csi,csj->sij", flat, flat) / len(g)
            else:
                new = g.square().mean(0, keepdim=True)
            old = self._mean.get(k, torch.zeros_like(new))
            weight = max(GRADIENT_DECAY, 1 / self.seen)  # the way to where the mass lies is forgotten
            mean = self._mean[k] = old + weight * (new - old)
            if self.kind == "full":
                # a few gradients do not span the space: until they do, F is held away from the boundary
                share = 1e-9 + 1 / (self.seen * len(g))
                level = mean.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] * share
                one = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
                inverse = torch.linalg.cholesky_ex(mean + (level + 1e-12) * one).L.mT
                self._root[k] = torch.linalg.solve_triangular(inverse, one, upper=True), inverse
            else:
                self._diagonal[k] = 1 / (1e-5 + mean.pow(0.5 if self.kind == "rms" else 1.0))

    def apply(self, name: str, v: Tensor) -> Tensor:
        """P v."""
        if name in self._root:
            root, _ = self._root[name]
            return (root @ (root.mT @ columns_of(v))).view_as(v)
        return self._diagonal[name] * v if name in self._diagonal else v

    def root(self, name: str, v: Tensor) -> Tensor:
        """A root of P times v: standard normals become N(0, P)."""
        if name in self._root:
            return (self._root[name][0] @ columns_of(v)).view_as(v)
        return self._diagonal[name].sqrt() * v if name in self._diagonal else v

    def square(self, name: str, v: Tensor) -> Tensor:
        """v^T P^-1 v, (C, S)."""
        if name in self._root:
            return sum_over_event((self._root[name][1] @ columns_of(v)).square())
        return sum_over_event(v.square() / self._diagonal[name] if name in self._diagonal else v.square())
