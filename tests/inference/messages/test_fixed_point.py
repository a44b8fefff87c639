"""Fixed point: sums of integers are exact, in any order, modulo 2^64, and rounded once."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hierfl.inference.messages.fixed_point import OVERFLOW_VALUE, FixedPoint

DTYPES = [torch.float64, torch.float32, torch.int64]
DOUBLE = FixedPoint.for_dtype(torch.float64)


def exact(value: float, fraction: int) -> Fraction:
    """The nearest multiple of 2^-fraction, the even one of a tie."""
    return Fraction(round(Fraction(value) * 2**fraction), 2**fraction)


def summed(point: FixedPoint, rows: torch.Tensor, sites: int) -> torch.Tensor:
    """Through integers."""
    return point.decode(torch.stack([point.encode(row, sites) for row in rows]).sum(0), sites)


@given(st.lists(st.floats(-1e18, 1e18), min_size=1, max_size=200))
@settings(max_examples=40, deadline=None)
def test_a_sum_of_float64_is_the_exact_one_rounded_once(values: list[float]) -> None:
    total = summed(DOUBLE, torch.tensor(values, dtype=torch.float64)[:, None], 200)
    assert float(total) == float(sum(exact(value, 100) for value in values))


@given(st.lists(st.floats(-1e9, 1e9, width=32), min_size=1, max_size=20))
@settings(max_examples=40, deadline=None)
def test_a_sum_of_float32_is_the_exact_one_rounded_to_it(values: list[float]) -> None:
    total = summed(FixedPoint.for_dtype(torch.float32), torch.tensor(values)[:, None], 20)
    assert total.dtype == torch.float32
    assert float(total) == float(np.float32(float(sum(exact(value, 40) for value in values))))


@pytest.mark.parametrize(
    ("value", "units"),
    [
        (2.0**-101, 0), (3 * 2.0**-101, 2), (5 * 2.0**-101, 2), (2.0**-101 * (1 + 2.0**-40), 1), (2.0**-200, 0),
        (1.0 - 2.0**-53, 2**100 - 2**47), (2.0**59, 2**159), (1e-300, 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("sign", [1, -1])
def test_a_tie_becomes_the_even_integer_whatever_the_sign(value: float, units: int, sign: int) -> None:
    limbs = DOUBLE.encode(torch.tensor(sign * value, dtype=torch.float64), 3)
    assert sum(int(limb) << (40 * position) for position, limb in enumerate(limbs)) == sign * units


@given(st.integers(0, 2**158), st.integers(2, 300))
@settings(max_examples=80, deadline=None)
def test_reading_rounds_to_the_nearest_float64(units: int, cut: int) -> None:
    units >>= min(cut, 150)
    limbs = torch.tensor([units >> (40 * position) & (2**40 - 1) for position in range(3)] + [units >> 120])
    for sign in (1, -1):
        assert float(DOUBLE.decode(sign * limbs[:, None], 3)) == float(Fraction(sign * units, 2**100))


@pytest.mark.parametrize("dtype", DTYPES)
def test_order_and_masks_do_not_matter_though_they_wrap(dtype: torch.dtype) -> None:
    point, made = FixedPoint.for_dtype(dtype), torch.Generator().manual_seed(1)
    values = (torch.randn(200, 50, generator=made, dtype=torch.float64) * 1e6).to(dtype)
    rows = torch.stack([point.encode(row, 200) for row in values])
    masks = torch.randint(-(2**63), 2**63 - 1, rows.shape, generator=made)
    masks[-1] = -masks[:-1].sum(0)  # modulo 2^64
    expected = point.decode(rows.sum(0), 200)
    for order in (torch.randperm(200, generator=made), torch.arange(199, -1, -1)):
        assert torch.equal(point.decode((rows + masks)[order].sum(0), 200), expected)
    exactly = values.double().sum(0)
    assert torch.allclose(expected.double(), exactly, rtol=1e-6 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sites", [3, 4, 200, 1000])
def test_the_range_is_that_of_the_sum(dtype: torch.dtype, sites: int) -> None:
    point = FixedPoint.for_dtype(dtype)
    largest = torch.full((1,), point.largest(sites), dtype=torch.float64)
    most = torch.nextafter(largest, torch.zeros(1, dtype=torch.float64)) if dtype == torch.float64 else 0.99 * largest
    most = most.floor().to(dtype)
    for sign in (1, -1):
        rows = (sign * most).expand(sites, 1)
        assert float(summed(point, rows, sites)) == pytest.approx(sites * float(sign * most), rel=1e-6)
        assert not point.fits((largest * 1.01).to(dtype) * sign, sites)
    with pytest.raises(ValueError, match="range"):
        point.encode((largest * 1.01).to(dtype), sites)


def test_what_is_not_finite_does_not_fit_and_what_is_as_good_as_infinite_is_seen_in_a_sum() -> None:
    for value in (torch.inf, -torch.inf, torch.nan):
        assert not DOUBLE.fits(torch.tensor([0.0, value], dtype=torch.float64), 3)
    assert not FixedPoint.for_dtype(torch.float32).fits(torch.tensor([1e30]), 3)
    for sites in (3, 200):
        others = torch.full((sites - 1, 1), DOUBLE.largest(sites), dtype=torch.float64)
        for bad in (-1e100, 2e100):
            rows = torch.cat([-others * np.sign(bad), torch.tensor([[bad]], dtype=torch.float64)])
            assert float(summed(DOUBLE, rows, sites)) == np.sign(bad) * OVERFLOW_VALUE
        both = torch.tensor([[-1e100]] * 3, dtype=torch.float64)
        assert float(summed(DOUBLE, both, sites)) == -3 * OVERFLOW_VALUE


def test_counts_and_booleans_are_one_limb() -> None:
    for values, total in ((torch.tensor([[True], [True], [False]]), 2), (torch.tensor([[-7], [3], [1]]), -3)):
        point = FixedPoint.for_dtype(values.dtype)
        actual = summed(point, values, 3)
        assert (point.limbs, actual.dtype, int(actual)) == (1, torch.int64, total)
    assert torch.equal(
        DOUBLE.encode(torch.tensor([-0.0], dtype=torch.float64), 3), torch.zeros(4, 1, dtype=torch.int64)
    )
