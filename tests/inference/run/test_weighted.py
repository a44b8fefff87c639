"""Weights of rows: a row of weight two is two rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from hierfl import Federation, UserError
from hierfl.data.chunk_data import ChunkData
from hierfl.data.row_weights import row_weights
from hierfl.inference.method.base import Method
from hierfl.inference.run.fit import fit
from hierfl.inference.run.weighted import check_weighted
from hierfl.models import METHODS, FedAvg, PFedVEM, class_of
from hierfl.nn.networks.build import architecture

#: settings with which a step is on all of a client's rows
WHOLE: dict[str, dict[str, Any]] = {
    "fedavg": {"batch": 99, "epochs": 3}, "fedper": {"batch": 99, "epochs": 3},
    "pfedvem": {"base_batch": 99, "base_epochs": 2, "head_epochs": 4},
}  # fmt: skip

#: methods that take weights
TAKING = [
    "pfedvem", "local", "fedper", "fedrep", "lg-fedavg", "fedavg", "fedprox", "pfedme", "l2gd", "pfedbayes",
    "fedavg-ft", "ditto", "apfl",
]  # fmt: skip


def table(repeated: bool, *, classes: bool) -> pd.DataFrame:
    """Rows of two clients with weights from 1 to 3; or each row so many times."""
    rng, n = np.random.default_rng(0), 14
    df = pd.DataFrame({"x": rng.normal(size=n), "z": rng.normal(size=n), "site": ["a"] * 9 + ["b"] * 5})
    df["y"] = np.where(df.x > 0, "up", "down") if classes else 1 + df.x + rng.normal(size=n)
    df["w"] = rng.integers(1, 4, n)
    return df.loc[df.index.repeat(df.w)].reset_index(drop=True) if repeated else df


def federation(df: pd.DataFrame, weights: str | None) -> Federation:
    how: dict[str, Any] = {"test": 0.0, "standardise": False, "weights": weights}
    return Federation.from_frame(df, client="site", y="y", x=["x", "z"], **how)


def state(name: str, fed: Federation, **more: Any) -> dict[str, torch.Tensor]:
    """What a fit in full batches has reached."""
    cls: type[Method] = class_of(name)
    method = cls(architecture("mlp:3", fed), **WHOLE[name])
    run = fit(method, fed, rounds=2, progress=False, dtype=torch.float64, splits=(), **more)
    return {**run.shared, **run.personal}


@pytest.mark.cpu(4, "eight small fits")
@pytest.mark.parametrize(
    ("name", "classes"), [("fedavg", True), ("fedper", True), ("pfedvem", True), ("fedavg", False)]
)
def test_a_row_of_weight_two_is_two_rows(name: str, classes: bool) -> None:
    """Full-batch steps, messages weighted by n_j, and a learned sd are those of the repeated rows."""
    weighted = federation(table(False, classes=classes), "w")
    repeated = federation(table(True, classes=classes), None)
    assert list(weighted.amounts) == list(repeated.sizes())
    actual, wanted = state(name, weighted), state(name, repeated)
    for key, value in wanted.items():
        torch.testing.assert_close(actual[key], value, rtol=1e-9, atol=1e-10)
    plain = state(name, federation(table(False, classes=classes), None))
    assert any(not torch.allclose(plain[key], value) for key, value in wanted.items())


def test_minibatches_weigh_their_rows() -> None:
    """A minibatch's likelihood is n_j / b_j times the weighted sum of its rows."""
    fed = federation(table(False, classes=True), "w").to(dtype=torch.float64)
    data = ChunkData(fed, [0, 1])
    batch = data.batch([0])
    assert batch.scale is not None
    assert batch.scale[0].tolist() == fed.weights[fed.train[0]].tolist()  # type: ignore[index]
    assert batch.n.tolist() == [float(batch.scale.sum())]
    places = data.first([1]) + torch.tensor([[1, 3]])
    assert data.weights_at(places)[0].tolist() == fed.weights[fed.train[1]][[1, 3]].tolist()  # type: ignore[index]
    assert fed.digest() != federation(table(False, classes=True), None).digest()


def takes(name: str, fed: Federation) -> bool:
    """Whether a method takes weights of rows."""
    cls = class_of(name)
    method = cls(architecture("mlp:3", fed, latent=cls.latent))
    try:
        fit(method, fed, rounds=0, progress=False, splits=())
    except UserError as error:
        if "counts rows" not in str(error):
            raise
        return False
    return True


def test_what_counts_rows_takes_no_weights() -> None:
    fed = federation(table(False, classes=True), "w")
    taking = [name for name in METHODS if name not in ("fedbn", "mixed-effects") and takes(name, fed)]
    assert taking == TAKING
    net = architecture("mlp:3", fed)
    plain = {"final": "method", "masked": False, "dp": "none", "robust": "none"}
    for how, words in (({"masked": True}, "masked"), ({"final": "chains"}, "final='chains'"),
                       ({"robust": "median"}, "robust='median'"), ({"dp": "site"}, "dp='site'")):  # fmt: skip
        options: Any = SimpleNamespace(**{**plain, **how})
        with pytest.raises(UserError, match=f"{words} does not go with weights"):
            check_weighted(FedAvg(net), fed, options, {})
    with pytest.raises(UserError, match=r"pfedvem counts rows .*takes no weights"):
        fit(PFedVEM(net, shares="on"), fed, rounds=1, progress=False)


def test_weights_are_above_zero() -> None:
    with pytest.raises(UserError, match="w holds 2 values that no row can stand for"):
        row_weights([1.0, 0.0, -1.0], 3, "w")
    with pytest.raises(UserError, match="w has 1 value, and x has 2 rows"):
        row_weights([1.0], 2, "w")
    with pytest.raises(UserError, match="column 'site' has the weights, and cannot be the response or name"):
        federation(table(False, classes=True), "site")
