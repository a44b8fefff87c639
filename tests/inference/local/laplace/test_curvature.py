"""Curvatures of linear heads, beside automatic derivatives and dense algebra."""

import pytest
import torch
from pyro.distributions import Bernoulli, Normal, Poisson
from torch.autograd.functional import hessian, jacobian

from hierfl.errors import UserError
from hierfl.inference.local.laplace.curvature import COVARIANCES, curvature, product_with
from hierfl.inference.local.laplace.forms import blocks_of
from hierfl.nn.head import LinearHead, orthonormal_contrasts
from hierfl.nn.likelihoods import Softmax
from hierfl.nn.output_derivatives import mean_output_curvature, moved_output, output_gradient

ROWS, N, F, C = 3, 11, 4, 5
MAKE = torch.Generator().manual_seed(3)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=MAKE, dtype=torch.float64)


RESPONSES = {
    "softmax": (C, lambda eta: Softmax(eta), lambda: torch.randint(0, C, (ROWS, N), generator=MAKE)),
    "normal": (1, lambda eta: Normal(eta.squeeze(-1), torch.tensor(0.7).double()), lambda: normal(ROWS, N)),
    "bernoulli": (1, lambda eta: Bernoulli(logits=eta.squeeze(-1)), lambda: (normal(ROWS, N) > 0).double()),
    "poisson": (1, lambda eta: Poisson(eta.squeeze(-1).exp()), lambda: normal(ROWS, N).exp().round()),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_derivatives_are_autograds(name):
    outputs, of, responses = RESPONSES[name]
    eta, y = normal(ROWS, N, outputs), responses()
    first, second = output_gradient(of(eta), y), mean_output_curvature(of(eta[None]))
    for row in range(ROWS):
        for i in range(N):

            def height(e, row=row, i=i):
                each = of(eta.index_put((torch.tensor(row), torch.tensor(i)), e))
                return each.log_prob(y)[row, i]

            torch.testing.assert_close(first[row, i], jacobian(height, eta[row, i]), rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(second[row, i], -hessian(height, eta[row, i]), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", RESPONSES)
def test_a_moved_output_is_another_output(name):
    outputs, of, responses = RESPONSES[name]
    eta, by, y = normal(ROWS, N, outputs), normal(4, ROWS, N, outputs), responses()
    fn = moved_output(of(eta), by)
    each = [of(eta + b) for b in by]
    torch.testing.assert_close(fn.log_prob(y), torch.stack([moved.log_prob(y) for moved in each]))
    torch.testing.assert_close(output_gradient(fn, y), torch.stack([output_gradient(moved, y) for moved in each]))
    second = torch.stack([mean_output_curvature(of(e[None])) for e in eta + by])
    torch.testing.assert_close(mean_output_curvature(fn), second.mean(0))
    if name == "softmax":
        along = orthonormal_contrasts(C)
        torch.testing.assert_close(mean_output_curvature(fn, along), along @ second.mean(0) @ along.mT)


def test_an_unknown_likelihood_is_refused():
    fn = torch.distributions.StudentT(torch.full((1, 1, 1), 3.0).double())
    by = torch.zeros(1, 1, 1, 1)
    for function in (lambda: moved_output(fn, by), lambda: output_gradient(fn, by), lambda: mean_output_curvature(fn)):
        with pytest.raises(UserError, match="StudentT is not known"):
            function()


def weights_and_design(q: int, n: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    root = normal(ROWS, n, q, q)
    return normal(ROWS, n, F + 1), root @ root.mT


def dense(z: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    d = z.shape[-1] * weights.shape[-1]
    return torch.einsum("snab,sni,snj->saibj", weights, z, z).reshape(ROWS, d, d)


@pytest.mark.parametrize(
    ("kind", "outputs", "n", "rank"),
    [("full", 3, N, 0), ("kronecker", 1, N, 0), ("low_rank", 3, 2, 6), ("low_rank", 3, N, 15), ("full", 1, 1, 0)],
)
def test_exact_forms_are_the_dense_matrix(kind, outputs, n, rank):
    z, weights = weights_and_design(outputs, n)
    h = curvature(kind, z, weights, rank)
    v = normal(4, ROWS, outputs * (F + 1))
    torch.testing.assert_close(h.times(v), torch.einsum("sij,ksj->ksi", dense(z, weights), v), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(product_with(z, weights, v[0]), h.times(v[0]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", COVARIANCES)
def test_every_form_of_b_is_the_inverse_it_says(kind):
    q = 3
    d = q * (F + 1)
    z, weights = weights_and_design(q)
    h = curvature(kind, z, weights, 4)
    r = torch.tensor([0.7, 0.7, 0.7, 0.7, 1.9], dtype=torch.float64).repeat(q).expand(1, d)
    eye = torch.eye(d, dtype=torch.float64)
    matrix = h.times(eye[:, None].expand(d, ROWS, d)).permute(1, 2, 0)
    torch.testing.assert_close(matrix, matrix.mT)
    assert float(torch.linalg.eigvalsh(matrix).min()) > -1e-9
    b = eye + r[..., :, None] * matrix * r[..., None, :]
    inverse, scaled = torch.linalg.inv(b), h.scaled(r)
    v = normal(2, ROWS, d)
    torch.testing.assert_close(scaled.solve(v), torch.einsum("sij,ksj->ksi", inverse, v), rtol=1e-8, atol=1e-9)
    seen = eye - inverse
    torch.testing.assert_close(scaled.data_share_times(v), torch.einsum("sij,ksj->ksi", seen, v), rtol=1e-8, atol=1e-9)
    little = h.scaled(1e-7 * r)  # B - I is of the size of B's rounding errors, and what is seen is r H r
    for number in (1, q, d):
        torch.testing.assert_close(scaled.data_share(number), blocks_of(seen, number), rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(
            little.data_share(number), blocks_of((b - eye) * 1e-14, number), rtol=1e-7, atol=1e-21
        )
    torch.testing.assert_close(scaled.log_det, torch.logdet(b), rtol=1e-9, atol=1e-9)
    root = scaled.root(eye[:, None].expand(d, ROWS, d)).permute(1, 2, 0)
    torch.testing.assert_close(root @ root.mT, inverse, rtol=1e-8, atol=1e-9)


def test_approximations_keep_the_diagonal_or_are_the_nearest_product():
    z, weights = weights_and_design(3)
    whole = dense(z, weights)
    for kind in ("diagonal", "low_rank"):
        approximation = curvature(kind, z, weights, 7)
        eye = torch.eye(15, dtype=torch.float64)[:, None].expand(15, ROWS, 15)
        diagonal = approximation.times(eye).permute(1, 2, 0).diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(diagonal, whole.diagonal(dim1=-2, dim2=-1))
    # the nearest Kronecker product is the first singular pair of the rearranged matrix
    rearranged = whole.view(ROWS, 3, 5, 3, 5).permute(0, 1, 3, 2, 4).reshape(ROWS, 9, 25)
    best = torch.linalg.svdvals(rearranged)[:, 1:].square().sum(-1).sqrt()
    approximation = curvature("kronecker", z, weights)
    product = torch.einsum("sab,sij->saibj", approximation.outputs, approximation.features).reshape(ROWS, 15, 15)
    gap = (product - whole).flatten(1).norm(dim=1)
    assert bool((gap <= best * 1.001).all())


def test_a_kronecker_form_refuses_a_prior_that_differs_by_output():
    h = curvature("kronecker", *weights_and_design(2))
    with pytest.raises(UserError, match="same for each output"):
        h.scaled(torch.arange(1.0, 11.0).double()[None])


def test_a_client_without_examples_says_nothing():
    z, weights = torch.zeros(1, 1, 3).double(), torch.zeros(1, 1, 2, 2).double()
    for kind in COVARIANCES:
        scaled = curvature(kind, z, weights, 3).scaled(torch.full((1, 6), 2.0).double())
        torch.testing.assert_close(scaled.data_share(1)[0, 0], torch.zeros(6, 6, dtype=torch.float64))


@pytest.mark.parametrize("kind", COVARIANCES)
def test_a_client_whose_numbers_are_not_finite_costs_no_other_its_answer(kind):
    z, weights = weights_and_design(2)
    r, v = torch.full((1, 10), 0.8).double(), normal(ROWS, 10)
    sound = curvature(kind, z, weights, 4).scaled(r).solve(v)
    z[1, 3, 2] = torch.nan
    solution = curvature(kind, z, weights, 4).scaled(r).solve(v)
    torch.testing.assert_close(solution[[0, 2]], sound[[0, 2]])
    assert not bool(solution[1].isfinite().all())


def test_contrasts_are_orthonormal_and_leave_isotropic_priors_isotropic():
    q = orthonormal_contrasts(C)
    torch.testing.assert_close(q @ q.T, torch.eye(C - 1, dtype=torch.float64))
    torch.testing.assert_close(q.sum(1), torch.zeros(C - 1, dtype=torch.float64), atol=1e-12, rtol=0)


def test_a_head_of_contrasts_gives_logits_without_a_shift():
    head = LinearHead(F, C, contrasts=True)
    w, z = normal(2, ROWS, 1, head.d), normal(ROWS, N, F)
    logits = head(w, z)
    assert head.d == (C - 1) * (F + 1)
    assert logits.shape == (2, ROWS, N, C)
    torch.testing.assert_close(logits.sum(-1), torch.zeros(2, ROWS, N, dtype=torch.float64), atol=1e-12, rtol=0)
    # the weight matrix in the order of `matrix_order` times design rows, then the contrasts, is the same
    matrix = w[..., head.matrix_order].squeeze(2).unflatten(-1, (C - 1, F + 1))
    torch.testing.assert_close(head.design(z) @ matrix.mT @ orthonormal_contrasts(C), logits)
