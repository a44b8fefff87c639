"""Sums over discrete latents inside a client: mixtures, hidden Markov chains, zero inflation.

    log p(y_j, u_j | z) = log sum_k p(k) p(y_j, u_j | k, z)

Every discrete site gets a dimension of its own, left of all plates (Pyro's parallel enumeration, Obermeyer et al.,
2019, "Tensor variable elimination for plated factor graphs"), and the sums are taken one site at a time. All of it is
plain torch, so that :func:`torch.func.vmap` and second derivatives pass through; log 0 has gradient 0.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.ops.contract import contract_to_tensor
from pyro.ops.packed import pack
from pyro.ops.rings import LogRing
from pyro.poutine.enum_messenger import EnumMessenger
from torch import Tensor


class EnumerateDiscrete(EnumMessenger):
    """Pyro's parallel enumeration, in a form that ``vmap`` allows."""

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        if not isinstance(msg["fn"], TorchDistributionMixin) or msg["value"] is None:
            return
        # Pyro reads ``value.data.shape`` here, which vmap refuses.
        value = msg["value"]
        shape = value.shape[: value.dim() - msg["fn"].event_dim]
        dim_to_id = msg["infer"].setdefault("_dim_to_id", {})
        dim_to_id.update(self._param_dims.get(msg["name"], {}))
        self._value_dims[msg["name"]] = {
            dim: id_ for dim, id_ in dim_to_id.items() if len(shape) >= -dim and shape[dim] > 1
        }


class SumsOfLogs(LogRing):
    """Sums of products of densities, in logarithms: dimensions are summed one by one, those of small products first."""

    def sumproduct(self, terms: Sequence[Any], dims: Iterable[str]) -> Any:
        terms, left = list(terms), set(dims)
        while left:
            dim = min(sorted(left), key=lambda dim: _size([term for term in terms if dim in term._pyro_dims]))
            joined = _product([term for term in terms if dim in term._pyro_dims])
            position = joined._pyro_dims.index(dim)
            summed: Any = torch.logsumexp(joined, position)
            summed._pyro_dims = joined._pyro_dims.replace(dim, "")
            terms = [term for term in terms if dim not in term._pyro_dims] + [summed]
            left.remove(dim)
        return _product(terms)


def _size(terms: Sequence[Any]) -> int:
    sizes = {dim: size for term in terms for dim, size in zip(term._pyro_dims, term.shape, strict=True)}
    return math.prod(sizes.values())


def _product(terms: Sequence[Any]) -> Any:
    dims = "".join(sorted(set("".join(term._pyro_dims for term in terms))))
    product: Any = None
    for term in terms:
        order = [term._pyro_dims.index(dim) for dim in dims if dim in term._pyro_dims]
        at = tuple(slice(None) if dim in term._pyro_dims else None for dim in dims)
        aligned = term.permute(order)[at]
        product = aligned if product is None else product + aligned
    product = product.view_as(product)
    product._pyro_dims = dims
    return product


def summed_out(
    trace: Any, sites: Sequence[tuple[dict[str, Any], Tensor]], keep: dict[str, int] | None = None
) -> Tensor:
    """The log density of a trace under :class:`EnumerateDiscrete`, its discrete latents summed out, ().

    Args:
        trace: of a model.
        sites: each with its log density, scaled and masked.
        keep: plates whose densities are kept apart, with their sizes.
    """
    trace.symbolize_dims()
    tree: OrderedDict[frozenset[str], list[Any]] = OrderedDict()
    for site, log_prob in sites:
        frames = frozenset(trace.plate_to_symbol[f.name] for f in site["cond_indep_stack"] if f.vectorized)
        tree.setdefault(frames, []).append(pack(log_prob.view_as(log_prob), site["infer"]["_dim_to_symbol"]))
    dims = set(trace.symbol_to_dim) - set(trace.plate_to_symbol.values())
    kept = {trace.plate_to_symbol[plate]: size for plate, size in (keep or {}).items()}
    return contract_to_tensor(tree, dims, target_ordinal=frozenset(kept), ring=SumsOfLogs(dim_to_size=kept))


def is_enumerated(site: dict[str, Any]) -> bool:
    """Whether a site's values are summed over."""
    return site["infer"].get("_enumerate_dim") is not None


def is_discrete(fn: Any) -> bool:
    """Whether a distribution's values can be listed or counted."""
    return isinstance(fn, TorchDistributionMixin) and (fn.has_enumerate_support or _is_discrete(fn.support))


def _is_discrete(support: Any) -> bool:
    return bool(getattr(support, "is_discrete", False))
