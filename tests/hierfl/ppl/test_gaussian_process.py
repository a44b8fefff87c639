"""Gaussian processes of many clients at once are those of each alone, exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from torch import Tensor

from hierfl.ppl.gaussian_process import (
    NUGGET,
    Kernel,
    conditional,
    log_logistic,
    logistic_precisions,
    one_after_another,
    similar_rows,
)
from hierfl.rng import ClientNoise, client_keys

SIZES = [6, 9, 1]
NOISE = 0.3


def rows(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features (3, 9, 2), targets, a mask, features elsewhere."""
    rng = torch.Generator().manual_seed(seed)
    x, y, elsewhere = (torch.randn(3, *s, generator=rng, dtype=torch.float64) for s in [(9, 2), (9,), (4, 2)])
    return x, y, torch.arange(9) < torch.tensor(SIZES)[:, None], elsewhere


def test_a_regression_is_scikit_learns() -> None:
    """Mean, standard deviation and marginal likelihood, each client's own, whatever is padded."""
    x, y, mask, elsewhere = rows()
    k = Kernel("rbf", 2.0, 0.7)
    omega = mask.double() / NOISE**2
    mean, variance = conditional(k.matrix(x, mask), k(x, elsewhere), k.variance(elsewhere), omega * y, omega)
    terms = one_after_another(k.matrix(x, mask), y, NOISE).log_prob(y)
    for j, n in enumerate(SIZES):
        kernel = ConstantKernel(2.0, "fixed") * RBF(0.7, "fixed")
        alone = GaussianProcessRegressor(kernel, alpha=NOISE**2, optimizer=None)
        alone.fit(x[j, :n].numpy(), y[j, :n].numpy())
        expected, spread = alone.predict(elsewhere[j].numpy(), return_std=True)
        np.testing.assert_allclose(mean[j], expected, rtol=0, atol=1e-10)
        np.testing.assert_allclose(variance[j].sqrt(), spread, rtol=0, atol=1e-9)
        assert float(terms[j, :n].sum()) == pytest.approx(alone.log_marginal_likelihood_value_, abs=1e-9)


def test_one_after_another_is_the_chain_rule() -> None:
    """Term i is the prediction of y_i from those before it."""
    x, y, mask, _ = rows()
    k = Kernel("rbf", 2.0, 0.7)
    conditionals = one_after_another(k.matrix(x, mask), y, NOISE)
    before, i = slice(0, 4), slice(4, 5)
    omega = torch.full((3, 4), NOISE**-2, dtype=torch.float64)
    mean, variance = conditional(
        k.matrix(x[:, before], None), k(x[:, before], x[:, i]), k.variance(x[:, i]), omega * y[:, before], omega
    )
    torch.testing.assert_close(conditionals.loc[:2, 4], mean[:2, 0])
    torch.testing.assert_close(conditionals.scale[:2, 4], (variance[:2, 0] + NOISE**2).sqrt())


def test_kernels() -> None:
    x, _, _, elsewhere = rows()
    for normalise in (False, True):
        a, b = (z / z.norm(dim=-1, keepdim=True) if normalise else z for z in (x, elsewhere))
        rbf, line = Kernel("rbf", 3.0, 0.5, normalise), Kernel("linear", 3.0, normalise=normalise)
        torch.testing.assert_close(rbf(x, elsewhere), 3 * (-(torch.cdist(a, b) ** 2) / 0.5).exp())
        torch.testing.assert_close(line(x, elsewhere), 3 * (1 + torch.einsum("sid,sjd->sij", a, b)))
        for k in (rbf, line):
            torch.testing.assert_close(k.variance(x), k(x, x).diagonal(dim1=1, dim2=2))


def test_padded_examples_are_independent_of_all_others() -> None:
    x, _, mask, _ = rows()
    k = Kernel("linear", 3.0)
    padded, whole = k.matrix(x, mask, 0.1), k(x, x)
    for j, n in enumerate(SIZES):
        torch.testing.assert_close(padded[j, :n, :n], whole[j, :n, :n] + 0.3 * torch.eye(n, dtype=x.dtype))
        assert torch.equal(padded[j, n:, n:], 3.0 * torch.eye(9 - n, dtype=x.dtype))
        assert (padded[j, :n, n:] == 0).all()
        assert (padded[j, n:, :n] == 0).all()


def test_gradients_are_finite_where_inputs_coincide() -> None:
    x = torch.ones(1, 3, 2, dtype=torch.float64, requires_grad=True)
    for kind in ("rbf", "linear"):
        k = Kernel(kind, 1.0, 1.0, True)  # type: ignore[arg-type]
        (slope,) = torch.autograd.grad(one_after_another(k.matrix(x, None), x[..., 0], 0.1).loc.sum(), x)
        assert slope.isfinite().all()


#: points and weights of quadrature under N(0, 1)
X, W = np.polynomial.hermite_e.hermegauss(80)
W = W / W.sum()


def posterior(k: np.ndarray, sign: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Two values of f and their weights, by quadrature over both, given their labels."""
    a, b = np.meshgrid(X, X, indexing="ij")
    f = np.stack([a.ravel(), b.ravel()], 1) @ np.linalg.cholesky(k).T
    weight = np.outer(W, W).ravel() * np.prod(1 / (1 + np.exp(-f * np.array(sign))), 1)
    return f, weight / weight.sum()


def exact(k: np.ndarray, sign: list[int], cross: np.ndarray, prior: float) -> float:
    """p(y* = 1) given two labels, by quadrature over both values of f, and over f elsewhere."""
    f, weight = posterior(k, sign)
    solved = np.linalg.solve(k, cross)
    mean, sd = f @ solved, np.sqrt(max(prior - cross @ solved, 0))
    probabilities = (1 / (1 + np.exp(-(mean[:, None] + sd * X)))) @ W
    return float(weight @ probabilities)


@pytest.mark.parametrize("sign", [[1, -1], pytest.param([1, 1], marks=pytest.mark.slow)])
def test_gibbs_draws_predict_as_quadrature_does(sign: list[int]) -> None:
    """Of two examples in a row of four: the first is padded, or says nothing of this node."""
    x, _, _, elsewhere = rows()
    x, labels = x[:1, :4], torch.tensor([[*sign, 0, 0]])
    mask = torch.tensor([[True, True, True, False]])
    k = Kernel("rbf", 8.0, 1.0)
    noise = ClientNoise(client_keys("a"), (0,), 20_000, dtype=torch.float64)
    omega = logistic_precisions(k.matrix(x, mask, NUGGET), labels, noise, "node", 25)
    assert (omega[..., 2:] == 0).all()
    moments = conditional(k.matrix(x, mask, NUGGET), k(x, elsewhere[:1]), k.variance(elsewhere[:1]), labels / 2, omega)
    up, down = log_logistic(*moments)
    torch.testing.assert_close(up.exp() + down.exp(), torch.ones_like(up))
    two = k.matrix(x[:, :2], None, NUGGET)[0].numpy()
    for i in range(4):
        cross = k(x[:, :2], elsewhere[:1, i : i + 1])[0, :, 0].numpy()
        assert float(up[0, i].exp()) == pytest.approx(exact(two, sign, cross, 8.0), abs=4e-3)


@pytest.mark.parametrize("sign", [[1, -1], pytest.param([1, 1], marks=pytest.mark.slow)])
def test_gibbs_draws_have_the_posteriors_mean(sign: list[int]) -> None:
    """Of omega, E tanh(f / 2) / (2 f): of two examples whose values of f are nearly the same."""
    k = Kernel("rbf", 8.0, 1.0).matrix(torch.tensor([[[0.0], [0.5]]]).double(), None, NUGGET)
    noise = ClientNoise(client_keys("a"), (0,), 20_000, dtype=torch.float64)
    omega = logistic_precisions(k, torch.tensor([sign]), noise, "node", 25)[:, 0].numpy()
    f, weight = posterior(k[0].numpy(), sign)
    wanted = weight @ (np.tanh(f / 2) / (2 * f))
    error = omega.std(0) / len(omega) ** 0.5
    assert (np.abs(omega.mean(0) - wanted) < 4 * error).all()


def test_draws_of_a_row_are_its_own() -> None:
    """Whoever is beside it, and however long the rows are."""
    x, _, mask, _ = rows()
    k, sign = Kernel("rbf", 8.0, 1.0), torch.tensor([1, -1, 1, 1, -1, 1, -1, 1, 1]) * mask
    together = logistic_precisions(
        k.matrix(x, mask, NUGGET), sign, ClientNoise(client_keys("abc"), (0,), 3, dtype=torch.float64), "node", 3
    )
    for j, n in enumerate(SIZES):
        noise = ClientNoise(client_keys("abc"[j]), (0,), 3, dtype=torch.float64)
        alone = logistic_precisions(k.matrix(x[j : j + 1, :n], None, NUGGET), sign[j : j + 1, :n], noise, "node", 3)
        torch.testing.assert_close(together[:, j, :n], alone[:, 0], rtol=1e-9, atol=1e-12)


def test_where_there_is_no_factor_nothing_is_said() -> None:
    """Of that row alone: nan, and no number that looks like one."""
    k = torch.stack([torch.eye(3), -9 * torch.eye(3)]).double()
    omega, cross = torch.ones(2, 3).double(), torch.ones(2, 3, 4).double()
    mean, variance = conditional(k, cross, torch.full((2, 4), 9.0).double(), omega, omega)
    assert mean[0].isfinite().all()
    assert variance[0].isfinite().all()
    assert mean[1].isnan().all()
    assert variance[1].isnan().all()


def test_similar_rows_are_together() -> None:
    """The largest first, each row once; together where padding costs less than another pass."""
    sizes = [3, 300, 5, 290, 100, 4]
    groups = list(similar_rows(sizes, torch.device("cpu")))
    assert groups == [[1, 3], [4, 2], [5, 0]]  # a third row padded to 100 would cost two passes
    assert list(similar_rows(sizes, torch.device("meta"))) == [[1, 3, 4, 2, 5, 0]]
    assert list(similar_rows([], torch.device("cpu"))) == []
