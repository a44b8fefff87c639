"""Influence where a client alone knows a coefficient, and distances that have no end."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hierfl import mixed_model
from hierfl.inference.run.watched import Watched
from hierfl.inference.server.robust.standing import StandsOut


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_a_level_that_one_client_alone_has_is_not_known_without_it_and_the_rest_is(family: str) -> None:
    rng = np.random.default_rng(1)
    df = pd.DataFrame({"site": np.repeat(list("abcdef"), 12), "x": rng.normal(5, 1, size=72), "arm": ["p", "q"] * 36})
    df["y"] = rng.poisson(np.exp(0.1 * df.x + np.repeat(rng.normal(size=6) * 0.4, 12)))
    df.loc[(df.site == "c") & (df.index % 3 == 0), "arm"] = "z"
    fit = mixed_model(df, "y ~ x + arm + (1 | site)", family=family, draws=0)
    influence = fit.influence().set_index("client")
    assert influence.note.tolist() == ["", "", "without it nothing is known of arm[z]", "", "", ""]
    assert np.isnan(influence.loc["c", ["arm[z]", "cooks_distance"]].astype(float)).all()
    assert influence.drop(index="c").drop(columns="note").notna().all(axis=None)
    # what the others know is as without the level's rows too, whose client has others
    rest = mixed_model(df[df.site != "c"], "y ~ x + arm + (1 | site)", family=family, draws=0).params
    known = influence.loc["c", ["Intercept", "x", "arm[q]"]].astype(float)
    np.testing.assert_allclose(known, rest[known.index], atol=0.1)


def test_a_distance_without_end_is_not_said() -> None:
    watched = Watched(["a", "b"], np.zeros((1, 2, 4)), [])
    row = StandsOut(client=0, round=3, what=0, distance=float("inf"))
    assert watched.line(row) == f"a stands out by {row.words} (round 3)"
