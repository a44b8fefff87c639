"""What ArviZ takes and gives, in its versions 0.x and 1.x: an InferenceData there, an xarray DataTree here.

Both hold groups, each an xarray Dataset. Nothing else of the project asks which of the two it has.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def import_arviz() -> Any:
    """ArviZ, without the announcement of its next version (it is slow to import: do it late)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module="arviz")
        import arviz

    return arviz


def of_trees() -> bool:
    """Whether this ArviZ takes DataTrees: 1.x."""
    return int(import_arviz().__version__.split(".")[0]) > 0


def gathered(groups: Mapping[str, Any], attrs: Mapping[str, Any]) -> Any:
    """An InferenceData (ArviZ 0.x) or a DataTree (1.x) of Datasets by group; groups without variables are left out."""
    import xarray

    kept = {name: dataset for name, dataset in groups.items() if dataset.data_vars}
    if not of_trees():
        return import_arviz().InferenceData(attrs=dict(attrs), **kept)
    tree = xarray.DataTree.from_dict(kept)
    tree.attrs = dict(attrs)
    return tree


def group_names(data: Any) -> list[str]:
    """Names of its groups."""
    return list(data.children) if hasattr(data, "children") else list(data.groups())


def dataset(data: Any, group: str) -> Any:
    """One group, an xarray Dataset.

    Raises:
        KeyError: where there is none of that name.
    """
    node = data[group]
    return node.to_dataset() if hasattr(node, "to_dataset") else node


def dataset_of(
    arrays: Mapping[str, np.ndarray],
    dims: Mapping[str, Sequence[str]],
    coords: Mapping[str, Sequence[Any]],
    sampled: bool,
) -> Any:
    """A group's Dataset.

    Args:
        arrays: by name.
        dims: by name; of a sampled group those after (chain, draw).
        coords: labels along dimensions; numbers from 0 where there are none.
        sampled: whether arrays have the dimensions chain and draw in front.
    """
    import xarray

    lead = ("chain", "draw") if sampled else ()
    variables = {name: ((*lead, *dims[name]), np.asarray(value)) for name, value in arrays.items()}
    lengths = {
        d: n for names_of_dims, value in variables.values() for d, n in zip(names_of_dims, value.shape, strict=True)
    }
    labels = {d: list(coords[d]) if d in coords else np.arange(n) for d, n in lengths.items()}
    return xarray.Dataset(variables, coords=labels)
