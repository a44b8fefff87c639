"""Numbers of a head are called by class and input, in ArviZ and on pictures."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from hierfl import Federation
from hierfl.inference import fit
from hierfl.models import PFedVEM
from hierfl.nn.head import LinearHead
from hierfl.nn.head_names import head_names
from hierfl.nn.networks.build import architecture
from hierfl.plots.posterior_numbers import most_variable, words

ROWS = pd.DataFrame(
    {
        "ward": np.tile(["a", "b", "c"], 20),
        "age": np.linspace(-1, 1, 60),
        "arm": np.repeat(["drug", "placebo"], 30),
        "y": np.linspace(1, 3, 60),
        "kind": np.where(np.arange(60) % 4, "alive", "died"),
    }
)


def test_a_name_is_of_the_number_that_it_names() -> None:
    """The output of a class for a unit input is the weight that has both names, plus the class's bias."""
    head = LinearHead(features=2, outputs=3)
    w = torch.randn(head.d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    value = dict(zip(head_names(head, ["a", "b", "c"], ["age", "dose"]), w.tolist(), strict=True))
    out = head(w, torch.eye(2, dtype=torch.float64)[None])[0]
    for row, feature in enumerate(("age", "dose")):
        for column, name in enumerate("abc"):
            assert abs(out[row, column].item() - value[f"{name}: {feature}"] - value[f"{name}: bias"]) < 1e-12
    assert head_names(LinearHead(2, 1), [], ["age", "bias"]) == ["age", "bias", "bias (of the head)"]
    assert head_names(LinearHead(1, 3, contrasts=True, bias=False), list("abc"), []) == [
        "contrast 0: feature 0", "contrast 1: feature 0",
    ]  # fmt: skip


def test_arviz_has_the_users_names() -> None:
    fed = Federation.from_frame(ROWS, client="ward", y="kind", x=["age", "arm"], test=0.0)
    run = fit(PFedVEM(architecture("linear", fed)), fed, rounds=1, progress=False)
    data = run.posterior(draws=20)
    names = data.posterior["w_j_dim_0"].values.tolist()
    assert names == [
        "alive: age", "alive: arm=drug", "alive: arm=placebo", "died: age", "died: arm=drug", "died: arm=placebo",
        "alive: bias", "died: bias",
    ]  # fmt: skip
    assert data.constant_data["label"].values.tolist() == ["alive", "died"]
    assert data.constant_data["w"].sel(w_dim_0="died: age").item() == run.shared["w"][3].item()
    assert words(most_variable(data)).removeprefix("w_j[").removesuffix("]") in names
    deep = Federation.from_frame(ROWS, client="ward", y="y", x=["age"], test=0.0)
    run = fit(PFedVEM(architecture("mlp:2", deep)), deep, rounds=1, progress=False)
    assert run.posterior(draws=5).posterior["w_j_dim_0"].values.tolist() == ["feature 0", "feature 1", "bias"]
