"""A model that runs with all trained values as rows, and not with those that one rule differentiates by."""

from __future__ import annotations

import pytest
from support.federations import blobs
from support.methods import ROOT

from hierfl import UserError
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.nn.networks.build import architecture

TEXT = (ROOT / "docs" / "student_t.py").read_text()
PRIOR = "StudentT(df, w, rho).to_event"


def begun(prior: str) -> None:
    """A fit of the tutorial's method with another prior, checked and ready to run."""
    prior = f"{prior}.to_event"
    assert TEXT.count(PRIOR) == 1
    names: dict = {"__name__": __name__}
    exec(compile(TEXT.replace(PRIOR, prior), "own.py", "exec"), names)
    fed = blobs([6, 3, 2, 4])
    Fit(names["StudentPopulation"](architecture("mlp:3", fed)), fed, Options(rounds=1, dtype=fed.dtype))


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (
            "StudentT(df, w, rho.expand_as(w))",
            r"does not run in the gradient .* for 'log_rho': .*'log_rho' \(S, 1, 1\) comes as rows .*'w' "
            r"\(\d+,\) does not: RuntimeError.*torch.ones_like",
        ),
        (
            "StudentT(df, w, rho * (1 if w.dim() > 1 else 2))",
            "site 'w_j' is another number while clients train 'mu', 'pi': no shared value",
        ),
    ],
    ids=["shape", "number"],
)
def test_rows_of_one_step_or_rule_alone(prior: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        begun(prior)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_shapes_that_broadcast_pass() -> None:
    begun("StudentT(df, w, rho * w.new_ones(w.shape))")
