"""Gaussian factors: products of densities by brute force, cavities, what is absent or badly scaled, the wire."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hierfl import UserError
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.gaussian import GaussianProduct
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.ppl.gaussian_factors import KINDS, Gaussian, Kind, packed_size, sample_factor

D = 2


def factor(kind: Kind, seed: int, *shape: int, d: int = D) -> Gaussian:
    """A proper factor, or several."""
    rng = torch.Generator().manual_seed(seed)
    draw = {"generator": rng, "dtype": torch.float64}
    mean = torch.randn(*shape, d, **draw)
    if kind == "full":
        a = torch.randn(*shape, d, d, **draw)
        return Gaussian.from_mean(mean, a @ a.mT + 0.3 * torch.eye(d), kind)
    return Gaussian.from_mean(mean, torch.rand(*shape, d if kind == "diagonal" else 1, **draw) + 0.5, kind)


def dense(g: Gaussian) -> Tensor:
    return g.precision if g.kind == "full" else torch.diag_embed(g.precision.expand(g.linear.shape))


def on_a_grid(*factors: Gaussian) -> tuple[Tensor, Tensor]:
    """Mean and precision of a product of densities, each written out, by summing over a grid."""
    axis = torch.linspace(-9, 9, 901, dtype=torch.float64)
    z = torch.cartesian_prod(axis, axis)
    log = torch.zeros(len(z), dtype=torch.float64)
    for g in factors:
        precision = dense(g)
        mean = torch.linalg.solve(precision, g.linear)
        log += torch.distributions.MultivariateNormal(mean, precision_matrix=precision).log_prob(z)
    p = (log - log.max()).exp()
    p = p / p.sum()
    mean = p @ z
    return mean, torch.linalg.inv((p[:, None] * (z - mean)).mT @ (z - mean))


@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_a_product_is_the_product_of_the_densities(first: Kind, second: Kind) -> None:
    a, b, c = factor(first, 1), factor(second, 2), factor(first, 3)
    product = a * b * c
    assert product.kind == KINDS[max(KINDS.index(first), KINDS.index(second))]
    mean, precision = on_a_grid(a, b, c)
    assert torch.allclose(product.mean(torch.full((D,), 7.0, dtype=torch.float64)), mean, atol=1e-8)
    assert torch.allclose(dense(product), precision, rtol=1e-6)
    cavity = product / b
    assert torch.allclose(cavity.linear, (a * c).linear)
    assert torch.allclose(dense(cavity), dense(a * c))


@pytest.mark.parametrize("kind", KINDS)
def test_what_factors_say_nothing_of_stays(kind: Kind) -> None:
    point = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, 6.0]], dtype=torch.float64)
    absent = factor(kind, 0, 2, d=3)
    absent = absent / absent
    assert torch.equal(absent.mean(point), point)
    single = factor(kind, 1, 2, d=3)
    alone = (absent * single).mean(point)
    assert torch.allclose(alone, torch.linalg.solve(dense(single), single.linear), rtol=1e-10)
    only = single.precision.clone()
    only[1] = 0
    half = Gaussian(torch.where(torch.tensor([[True], [False]]), single.linear, 0.0), only, kind)  # the first alone
    assert torch.allclose(half.mean(point), torch.stack([alone[0], point[1]]), rtol=1e-10)


def test_a_direction_that_nobody_speaks_of_stays() -> None:
    """Rank two of three, in turned axes."""
    q, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    precision = q @ torch.diag(torch.tensor([5.0, 0.2, 0.0], dtype=torch.float64)) @ q.mT
    target, point = (torch.tensor(v, dtype=torch.float64) for v in ([1.0, 2.0, 3.0], [-1.0, 0.5, 4.0]))
    mean = Gaussian.from_mean(target, precision, "full").mean(point)
    assert torch.allclose(q.mT @ mean, torch.cat([(q.mT @ target)[:2], (q.mT @ point)[2:]]), atol=1e-9)


def test_badly_scaled_precisions() -> None:
    """Ten orders of magnitude between directions, and between factors."""
    d, rng = 40, torch.Generator().manual_seed(1)
    q, _ = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=rng))
    scales = torch.logspace(-3, 7, d, dtype=torch.float64)
    means = torch.randn(3, d, dtype=torch.float64, generator=rng)
    parts = [Gaussian.from_mean(q @ m, q @ torch.diag(scales.roll(7 * k)) @ q.mT, "full") for k, m in enumerate(means)]
    weights = torch.stack([scales.roll(7 * k) for k in range(3)])
    mean = q.mT @ (parts[0] * parts[1] * parts[2]).mean(torch.zeros(d, dtype=torch.float64))
    assert torch.allclose(mean, (weights * means).sum(0) / weights.sum(0), atol=1e-6)


def test_what_is_no_precision_moves_nothing() -> None:
    point = torch.tensor([1.0, 2.0])
    improper = Gaussian(torch.ones(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]]), "full")
    assert torch.equal(improper.mean(point), point)
    for precision in ([-1.0, 2.0], [1e-17, 2.0], [-1e-17, 2.0]):  # however it is written
        gaussian = Gaussian(torch.ones(2), torch.tensor(precision), "diagonal")
        wanted = torch.tensor([1.0, 2.0 if precision[0] == -1 else 0.5])
        assert torch.equal(gaussian.mean(point), wanted)
        assert torch.equal(Gaussian(gaussian.linear, gaussian.precision.diag(), "full").mean(point), wanted)
    for precision, kind in ((torch.ones(3), "diagonal"), (torch.ones(2), "scalar"), (torch.ones(2), "full")):
        with pytest.raises(UserError, match="precision of factors"):
            Gaussian(torch.ones(2), precision, kind)
    with pytest.raises(UserError, match="unknown kind of precision"):
        Gaussian(torch.ones(2), torch.ones(2), "square")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_the_wire(kind: Kind) -> None:
    """Half of a symmetric matrix is enough, and sums of what is sent are products."""
    many = factor(kind, 4, 3, 5, d=6)
    packed = many.packed()
    assert packed.shape == (3, 5, packed_size(6, kind))
    again = Gaussian.unpacked(many.linear, packed, kind)
    assert torch.allclose(again.precision, many.precision, rtol=1e-12)
    whole = Gaussian.unpacked(many.linear.sum(0), packed.sum(0), kind)
    one_by_one = Gaussian(many.linear[0], many.precision[0], kind)
    for j in (1, 2):
        one_by_one = one_by_one * Gaussian(many.linear[j], many.precision[j], kind)
    start = torch.zeros(5, 6, dtype=torch.float64)
    assert torch.allclose(whole.mean(start), one_by_one.mean(start), rtol=1e-10)


@pytest.mark.parametrize("z", [1, 2, 5, 30])
@pytest.mark.parametrize("cutoff", [1e-12, 0.2])
def test_a_samples_factor(z: int, cutoff: float) -> None:
    """The pseudo-inverse of its covariance by torch's own, whichever Gram matrix is smaller."""
    x = torch.randn(z, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(z)) * torch.logspace(0, 1, 8)
    sigma = (x - x.mean(0)).mT @ (x - x.mean(0)) / z
    estimate = sample_factor(x, "full", 0.7, cutoff)
    wanted = torch.linalg.pinv(sigma, rtol=cutoff, hermitian=True) + 0.7 * torch.eye(8)
    assert torch.allclose(estimate.precision, wanted, rtol=1e-7, atol=1e-9)
    assert torch.allclose(estimate.mean(torch.zeros(8, dtype=torch.float64)), x.mean(0), atol=1e-9)
    diagonal = sample_factor(x.float(), "diagonal", 0.7, cutoff)
    variances = sigma.diagonal()
    kept = (variances > cutoff * variances.max()) & (z > 1)
    assert torch.allclose(diagonal.precision, torch.where(kept, 1 / variances, 0.0) + 0.7, rtol=1e-5)
    with pytest.raises(UserError, match="diagonal or full"):
        sample_factor(x, "scalar", 1.0, 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["diagonal", "full"])
@pytest.mark.parametrize("z", [2, 3, 7, 30])
def test_equal_examples_have_no_spread(z: int, kind: Kind, dtype: torch.dtype) -> None:
    """Rounding errors are not inverted: neither those of a mean, nor of features that were computed twice."""
    example = torch.randn(8, dtype=dtype, generator=torch.Generator().manual_seed(z))
    for x in (
        example.expand(z, 8),
        example * (1 + torch.finfo(dtype).eps * (torch.arange(z, dtype=dtype)[:, None] % 2)),
    ):
        precision = sample_factor(x, kind, 0.7, 6e-5).precision
        ones = torch.ones(8, dtype=torch.float64)
        assert torch.equal(precision, 0.7 * (ones.diag() if kind == "full" else ones))


def updated(rule: object, sent: list[dict[str, Tensor]], old: dict[str, Tensor]) -> Tensor:
    total = {k: torch.stack([message[k] for message in sent]).sum(0) for k in sent[0]}
    (value,) = rule.update(old, total, AggregationContext(3, torch.tensor(3.0), 1, dict)).values()  # type: ignore[attr-defined]
    return value


@pytest.mark.parametrize("prior", [0.0, 2.0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_update_is_the_mode_of_the_product(kind: Kind, prior: float) -> None:
    """Found by climbing the sum of the clients' log densities."""
    d, classes = 4, 3
    parts = [factor(kind, seed, classes, d=d) for seed in range(3)]
    rule = GaussianProduct(lambda local: (parts[0].linear, parts[0].packed()), kind, prior)
    sent = [rule.message(["mu"], None), *({"mu": g.linear, "precision": g.packed()} for g in parts[1:])]
    old = {"mu": torch.full((classes, d), 9.0, dtype=torch.float64)}
    assert rule.form(old)["precision"].shape == sent[0]["precision"].shape
    mode = updated(rule, sent, old)
    z = torch.zeros(classes, d, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [z], max_iter=2000, line_search_fn="strong_wolfe", tolerance_grad=1e-10, tolerance_change=0
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = prior * z.square().sum() / 2
        for g in parts:
            mean = torch.linalg.solve(dense(g), g.linear)
            total = total - torch.distributions.MultivariateNormal(mean, precision_matrix=dense(g)).log_prob(z).sum()
        total.backward()
        return total

    optimizer.step(loss)
    assert torch.allclose(mode, z.detach(), atol=1e-6)


@pytest.mark.parametrize("prior", [0.0, 2.0])
@pytest.mark.parametrize("kind", KINDS)
def test_what_nobody_speaks_of_stays_whatever_the_prior(kind: Kind, prior: float) -> None:
    single = factor(kind, 0, 3, d=4)
    silent = torch.tensor([[False], [True], [False]])
    linear, packed = torch.where(silent, 0.0, single.linear), torch.where(silent, 0.0, single.packed())
    old = {"mu": torch.full((3, 4), 9.0, dtype=torch.float64)}
    mode = updated(
        GaussianProduct(lambda local: (local, local), kind, prior), [{"mu": linear, "precision": packed}], old
    )
    assert torch.equal(mode[1], old["mu"][1])
    whole = updated(
        GaussianProduct(lambda local: (local, local), kind, prior),
        [{"mu": single.linear, "precision": single.packed()}],
        old,
    )
    assert torch.equal(mode[0], whole[0])
    assert not torch.allclose(mode[0], old["mu"][0])


def test_isotropic_factors_are_means() -> None:
    """Equal ones the plain mean, those that go by counts the weighted one, which is FedAvg's rule."""
    means = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    n = torch.tensor([2.0, 3.0, 7.0], dtype=torch.float64)
    old = {"mu": torch.zeros(5, 4, dtype=torch.float64)}
    for weights in (torch.full((3,), 0.3, dtype=torch.float64), n):
        for kind in KINDS:
            scalar = [Gaussian.from_mean(m, w.expand(5, 1), "scalar") for m, w in zip(means, weights, strict=True)]
            parts = [g * Gaussian(g.linear * 0, factor(kind, 0, 5, d=4).precision * 0, kind) for g in scalar]
            sent = [{"mu": g.linear, "precision": g.packed()} for g in parts]
            mode = updated(GaussianProduct(lambda local: (local, local), kind), sent, old)
            assert torch.allclose(mode, (weights[:, None, None] * means).sum(0) / weights.sum(), rtol=1e-12)
    theirs = updated(SampleWeighted(), [{"mu": w * m, "weight": w} for m, w in zip(means, n, strict=True)], old)
    assert torch.allclose(mode, theirs, rtol=1e-12)
