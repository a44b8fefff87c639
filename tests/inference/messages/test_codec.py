"""Compressors: what is decoded is what was meant on average, and costs what it says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hierfl import Federation, UserError
from hierfl.inference import Codec, Quantise, Sparsify, fit
from hierfl.inference.messages.codec import Compressor
from hierfl.inference.messages.form import Field
from hierfl.inference.messages.pipeline import Pipeline
from hierfl.models import PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.rng import generator

COMPRESSORS = [Quantise(1), Quantise(4), Quantise(16), Quantise(100), Sparsify(0.05), Sparsify(0.3), Sparsify(1.0)]


def names(c: Compressor) -> str:
    return repr(c)


def through(c: Compressor, v: torch.Tensor, seed: object = 0) -> torch.Tensor:
    u = torch.rand(v.shape, generator=generator(seed), dtype=v.dtype)
    code = c.encode(v, u)
    assert code.dtype == torch.uint8
    assert code.shape == (len(v), c.length(v.shape[1], v.element_size()))
    return c.decode(code, v.shape[1], v.dtype)


@pytest.mark.parametrize("c", COMPRESSORS, ids=names)
def test_decoded_messages_are_unbiased_and_within_the_variance_bound(c: Compressor) -> None:
    v = torch.randn(37, generator=generator("v"), dtype=torch.float64) ** 3  # some large, many small
    got = through(c, v.expand(40_000, -1))
    if isinstance(c, Quantise):
        step = v.norm() / c.levels
        up = (v.abs() / step).frac()
        error = step * (up * (1 - up)).sqrt() / 200
    else:
        error = v.abs() * (37 / c.kept(37) - 1) ** 0.5 / 200
    assert ((got.mean(0) - v).abs() <= 5 * error + 1e-12).all()
    squared = (got - v).square().sum(1)
    bound = c.omega(37) * v.square().sum()
    assert squared.mean() <= bound + 5 * squared.std() / 200 + 1e-12
    if isinstance(c, Sparsify):  # for which it is no bound but the value
        assert torch.isclose(squared.mean(), bound, rtol=0.05, atol=1e-12)


@given(d=st.integers(1, 70), rows=st.integers(1, 4), which=st.sampled_from(COMPRESSORS), seed=st.integers(0, 10**6))
@settings(max_examples=120, deadline=None)
def test_any_vector_comes_through(d: int, rows: int, which: Compressor, seed: int) -> None:
    for dtype in (torch.float32, torch.float64):
        v = torch.randn((rows, d), generator=generator("any", seed), dtype=dtype)
        got = through(which, v, seed)
        if isinstance(which, Quantise):  # each number is one of its two neighbouring levels
            step = v.norm(dim=1, keepdim=True) / which.levels
            assert ((got - v).abs() <= step * (1 + 1e-5)).all()
            assert ((got * v >= 0) | (got == 0)).all()
        else:
            k = which.kept(d)
            assert ((got != 0).sum(1) <= k).all()
            kept = got != 0
            assert torch.allclose(got[kept], v[kept] * (d / k))


def test_nothing_and_infinity() -> None:
    for c in COMPRESSORS:
        assert torch.equal(through(c, torch.zeros(2, 9)), torch.zeros(2, 9))
    for bad in (float("nan"), float("inf")):
        v = torch.ones(2, 9)
        v[1, 4] = bad
        got = through(Quantise(4), v)
        assert got[0].isfinite().all()
        assert not got[1].isfinite().all()  # so that it is rejected
        assert not through(Sparsify(1.0), v)[1].isfinite().all()


def test_bytes_are_saved() -> None:
    assert Quantise(7).length(1000, 4) == 4 + 500  # fifteen levels: four bits
    assert Sparsify(0.01).length(1024, 4) == 11 * 4 + 14  # eleven places of ten bits
    for c in (Quantise(7), Sparsify(0.01)):
        assert c.length(100_000, 4) < 0.2 * 4 * 100_000


@pytest.mark.parametrize("make", [lambda: Quantise(0), lambda: Sparsify(0.0), lambda: Sparsify(1.5)])
def test_compressors_that_cannot_be(make: object) -> None:
    with pytest.raises(UserError, match=r"needs 1 to|keeps a share"):
        make()  # type: ignore[operator]


class Squeezed(PFedVEM):
    """The same method with the base's messages compressed."""

    compressor: Compressor = Sparsify(1.0)

    def pipeline(self) -> dict:
        return {"base": [Codec(self.compressor)]}


def test_a_compressor_that_loses_nothing_changes_nothing(small: Federation, net: Architecture) -> None:
    plain, squeezed = (
        fit(method(net), small, rounds=3, dtype=torch.float64, progress=False) for method in (PFedVEM, Squeezed)
    )
    for name, value in plain.shared.items():
        assert torch.allclose(value, squeezed.shared[name], rtol=1e-12), name
    # 3 rounds, 7 clients: base 4 * 5 + 5 and its weight, w of (5 + 1) * 3 and tau; eight bytes each
    assert plain.last()["bytes"] == 3 * 7 * 8 * (25 + 1 + 18 + 1)
    places = -(-20 * 5 // 8) + -(-5 * 3 // 8)
    assert squeezed.last()["bytes"] == plain.last()["bytes"] + 3 * 7 * places


def test_what_is_sent_does_not_depend_on_chunks(small: Federation, net: Architecture) -> None:
    class Coarse(Squeezed):
        compressor = Quantise(2)

    runs = [fit(Coarse(net), small, rounds=2, chunk=c, dtype=torch.float64, progress=False) for c in (1, 7)]
    for name, value in runs[0].shared.items():
        assert torch.allclose(value, runs[1].shared[name], rtol=1e-9), name
    assert runs[0].last()["bytes"] == runs[1].last()["bytes"] < 2 * 7 * 8 * (18 + 1 + 25 + 1)


def test_a_message_says_what_it_costs() -> None:
    form = {"w": Field((5, 2), torch.float32), "tau": Field((), torch.float32)}

    def cost(*stages: Codec) -> int:
        return sum(field.nbytes for field in Pipeline(stages, ["w"], form).sent.values())

    assert cost() == 44
    assert cost(Codec(Quantise(1))) == 4 + 3 + 4
