"""Regressions whose responses are tiny, huge, or far from zero: the same fit in other units."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hierfl import Federation, Method, UserError
from hierfl.data.response_units import ResponseUnits
from hierfl.inference import fit
from hierfl.models import FedAvg, Local, PFedVEM
from hierfl.nn.networks.build import architecture

RNG = np.random.default_rng(0)
X, NOISE, WHO = RNG.normal(size=(90, 2)), RNG.normal(size=90), np.repeat(list("abc"), 30)
Y = X[:, 0] + 0.3 * NOISE


@pytest.mark.cpu(4, "five fits")
@pytest.mark.parametrize("cls", [PFedVEM, FedAvg, Local])
def test_units_and_offsets_change_nothing_in_single_precision(cls: type[Method]) -> None:
    fits = []
    for scale, offset in ((1.0, 0.0), (1e-6, 0.0), (1e9, 0.0), (1.0, 1e6), (1.0, 1e9)):
        fed = Federation.from_arrays(X, Y * scale + offset, WHO)
        run = fit(cls(architecture("linear", fed)), fed, rounds=3, progress=False)
        predicted, last = run.predict(X[:9], "a"), run.last()
        assert predicted.dtype == torch.float64
        numbers = [last["pm_rmse"] / scale, last["pm_crps"] / scale, last["pm_nll"] - np.log(scale)]
        fits.append((((predicted - torch.tensor([offset, 0.0])) / scale).numpy(), numbers, last["pm_coverage90"]))
    for predictions, numbers, coverage in fits[1:]:
        np.testing.assert_allclose(predictions, fits[0][0], atol=1e-6)
        np.testing.assert_allclose(numbers, fits[0][1], atol=1e-5)
        assert coverage == fits[0][2]


def test_inputs_far_from_zero_are_standardised_before_they_are_rounded() -> None:
    shifted, plain = (Federation.from_arrays(X + far, Y, WHO, standardise=True).batch([0]).x for far in (1e9, 0.0))
    torch.testing.assert_close(shifted, plain, atol=1e-6, rtol=0)


def test_responses_beyond_all_units_are_refused() -> None:
    for scale in (1e-200, 1e200):
        with pytest.raises(UserError, match="the responses reach .*: give them in another unit"):
            ResponseUnits.from_responses(Y * scale)
    assert ResponseUnits.from_responses(np.full(3, 0.1)) == (0.1, 1.0)


def test_inputs_beyond_single_precision_are_refused() -> None:
    with pytest.raises(UserError, match="arrays: inputs reach .*e\\+39: give them in another unit"):
        Federation.from_arrays(X * 1e39, Y, WHO, standardise=False)
    with pytest.raises(UserError, match="whole numbers up to 1152921504606846976, which floats do not tell apart"):
        Federation.from_arrays(np.full((90, 1), 2**60), Y, WHO)
    fed = Federation.from_arrays(X, Y, WHO)
    run = fit(PFedVEM(architecture("linear", fed)), fed, rounds=0, progress=False)
    with pytest.raises(UserError, match="inputs reach .*, beyond the numbers of float32"):
        run.predict(X * 1e39, "a")
    with pytest.raises(UserError, match="client is the name of one, as in predict.x, client., not bool"):
        run.predict(X, True)
