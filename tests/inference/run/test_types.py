"""Inputs of every type and layout, by way of predictions: the same numbers have one answer, or there is one line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hierfl import Federation, Run, UserError
from hierfl.inference import fit
from hierfl.models import PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead
from hierfl.nn.networks.build import architecture

#: every type that torch has
TORCH = [*dict.fromkeys(value for value in vars(torch).values() if isinstance(value, torch.dtype))]
#: every type that NumPy has, of both byte orders
NUMPY = [np.dtype(c).newbyteorder(order) for c in "?bBhHiIlLqQefdgFDGSUOMmV" for order in "=>"]


class Words(nn.Module):
    """Means of words' vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x).mean(1)


def fitted(kind: str) -> tuple[Run, np.ndarray]:
    """A fit to pictures of uint8, numbers or ids, and seven inputs."""
    rng, y, who = np.random.default_rng(0), np.arange(60) % 2, np.repeat(list("abc"), 20)
    if kind == "pixels":
        x = rng.integers(0, 256, (60, 6, 5, 3)).astype(np.uint8)
    else:
        x = rng.integers(0, 8, (60, 4)).astype(np.float32)
    fed = Federation.from_arrays(x, y, who, inputs="ids" if kind == "ids" else None)
    net = architecture("mlp:6", fed)
    if kind == "ids":
        with torch.random.fork_rng():
            net = Architecture(Network(Words(), weights="drawn"), LinearHead(5, 2))
    return fit(PFedVEM(net), fed, rounds=1, progress=False), x[:7]


def typed(x: np.ndarray) -> list[tuple[str, object, np.ndarray | None]]:
    """These inputs in every type that can be made of them, and the numbers that they have become."""
    with warnings.catch_warnings(action="ignore"):  # what torch says of its rarer types
        return [*_typed(x)]


def _typed(x: np.ndarray) -> Iterator[tuple[str, object, np.ndarray | None]]:
    for kind in NUMPY:
        try:
            made = x.astype(kind)
        except (TypeError, ValueError):
            continue
        yield f"numpy {kind.str}", made, made.astype(np.float64) if kind.kind in "biuf" else None
    for dtype in TORCH:
        try:
            values = torch.from_numpy(x).to(dtype)
            numbers = None if dtype.is_complex else values.double().numpy()
        except (RuntimeError, NotImplementedError):
            try:
                values, numbers = torch.empty(x.shape, dtype=dtype), None
            except (RuntimeError, NotImplementedError):
                continue
        yield str(dtype), values, numbers


def answer(run: Run, x: object) -> Tensor | str:
    """Its predictions, or its one line."""
    try:
        return run.predict(x, "a")  # type: ignore[arg-type]
    except UserError as error:
        return str(error)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["pixels", "numbers", "ids"])
def test_every_type_has_one_answer_or_one_line(kind: str) -> None:
    run, x = fitted(kind)
    wanted, right = answer(run, x.astype(np.float64)), []
    assert isinstance(wanted, Tensor)
    for name, values, numbers in typed(x):
        actual = answer(run, values)
        if isinstance(actual, str):
            assert "\n" not in actual
            assert numbers is None or not np.array_equal(numbers, x), (name, actual)
            continue
        assert numbers is not None, name
        expected = wanted if np.array_equal(numbers, x) else answer(run, numbers)
        assert torch.equal(actual, expected), name
        right.append(name)
    assert {"numpy >i2", "numpy >f8", "torch.float16", "torch.bfloat16", "torch.uint16", "torch.int64"} <= {*right}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["pixels", "numbers", "ids"])
def test_every_layout_has_the_same_answer(kind: str) -> None:
    run, x = fitted(kind)
    wanted, t, only = answer(run, x), torch.from_numpy(x), x.copy()
    only.flags.writeable = False
    layouts: dict[str, object] = {
        "negative strides": x[::-1].copy()[::-1], "backwards": np.ascontiguousarray(x[:, ::-1])[:, ::-1],
        "read-only": only, "strided": np.repeat(x, 2, 0)[::2], "Fortran": np.asfortranarray(x), "lists": x.tolist(),
        "broadcast": np.broadcast_to(x, x.shape), "tensors": [*t], "strided tensor": torch.stack([t, t], 1)[:, 0],
        "gradient": t.double().requires_grad_(), "sparse": t.float().to_sparse(),
        "negative bit": torch.imag(torch.conj(torch.complex(t.float(), -t.float()))),
        "quantised": torch.quantize_per_tensor(t.float(), 1.0, 0, torch.quint8),
    }  # fmt: skip
    if kind == "pixels":
        layouts["channels first"] = t.movedim(-1, 1)
        layouts["channels last"] = t.movedim(-1, 1).contiguous(memory_format=torch.channels_last)
    for name, values in layouts.items():
        assert torch.equal(answer(run, values), wanted), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_picture_up_to_one_is_the_same_picture(dtype: torch.dtype) -> None:
    run, x = fitted("pixels")
    every = np.resize(np.arange(256, dtype=np.uint8), x.shape)
    for picture in (x, every):
        whole = torch.from_numpy(picture)
        assert torch.equal(answer(run, whole.to(dtype) / 255), answer(run, picture))
        assert torch.equal(answer(run, (whole.double() / 255).to(dtype)), answer(run, picture))
    between = x.astype(np.float64)
    between[0] += 0.25 * (x[0] < 255)
    assert torch.allclose(answer(run, between / 255), answer(run, between), atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("pixels", lambda x: x > 9, "truth values, and pictures are pixels from 0 to 255: multiply by 255"),
        ("pixels", lambda x: (x > 9) * 1.0, "floats of 0 and 1 alone, on a scale to 1 or to 255: give uint8"),
        ("pixels", lambda x: x / 64.0 - 2, "reaches from -2 to .*: give uint8 pixels, not standardised"),
        ("pixels", lambda x: x.astype(int) * 2, "and pixels are 0 to 255"),
        ("pixels", lambda x: np.ma.array(x, mask=x == 7), "masked values: fill or drop"),
        ("numbers", lambda x: x[0], r"expected \(n, 4\) \(one input x is x\[None\]\)"),
        ("numbers", lambda x: x > 3, "truth values, and the training inputs reach from 0 to 7"),
        ("numbers", lambda x: x * 1j, "complex.*, not numbers: give real and imaginary parts"),
        ("numbers", lambda x: [[1, 2], [1]], "its rows have different shapes"),
        ("ids", lambda x: x + 0.5, "not whole, and ids are whole numbers from 0"),
        ("ids", lambda x: x - 8, "ids are whole numbers from 0"),
        ("ids", lambda x: x + 8, "ids reach .*, and nn.Embedding has 8 rows"),
    ],
)
def test_what_is_not_clear_is_one_line(kind: str, change: Callable[[np.ndarray], object], words: str) -> None:
    run, x = fitted(kind)
    with pytest.raises(UserError, match=words):
        run.predict(change(x), "a")  # type: ignore[arg-type]


@pytest.mark.parametrize(("fit_to", "given", "words"), [
    (1, 255, "reach from 0 to 255, and those of the training from 0 to 1: divide them by 255"),
    (255, 1, "from 0 to 255: multiply them by 255"),
])  # fmt: skip
def test_float_pictures_on_another_scale_are_refused(fit_to: int, given: int, words: str) -> None:
    picture = np.resize(np.arange(256), (12, 8, 8)) / 255.0
    fed = Federation.from_arrays(picture * fit_to, np.arange(12) % 2, np.arange(12) % 2, test=0)
    run = fit(PFedVEM(architecture("mlp:3", fed)), fed, rounds=1, progress=False)
    with pytest.raises(UserError, match=words):
        run.predict(picture * given, "0")
    if fit_to == 1:
        with pytest.raises(UserError, match=words):
            run.predict(np.rint(picture * given).astype(np.uint8), "0")
