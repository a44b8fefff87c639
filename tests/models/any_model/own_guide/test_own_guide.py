"""A user's own guide: the best of its family from sums, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from support.any_models import COLUMNS, counts, federation_of
from support.sites import Sites
from torch.distributions import constraints

import hierfl
from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.inference import Run, fit
from hierfl.models.any_model.names import DRAWS, OWN_DRAWS
from hierfl.models.any_model.own_guide.method import OwnGuide
from hierfl.models.any_model.own_guide.names import OWN_PARAMS, PARAMS

HOW: dict[str, Any] = {"rounds": 3, "splits": (), "dtype": torch.float64}
#: a fit of a second
FEW: dict[str, Any] = {"fit_draws": 4, "last_steps": 3, "points": 16, "inner": 2, "draws": 8, "local_steps": 1}


def model(batch: ColumnBatch) -> None:
    """Gaussian, all variances known."""
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    b = pyro.sample("b", dist.Normal(0.0, 5.0))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(mu, 1.0))
        with batch.data():
            pyro.sample("y", dist.Normal(u + b * batch["x"], 0.5), obs=batch["y"])


def guide(batch: ColumnBatch) -> None:
    """The family of the posterior: globals of full covariance, and clients' latents linear in them."""
    m = pyro.param("m", torch.tensor([3.0, 1.3]))
    root = pyro.param("root", torch.tensor([[0.5, 0.0], [0.0, 0.1]]), constraint=constraints.lower_cholesky)
    z = pyro.sample("z", dist.MultivariateNormal(m, scale_tril=root), infer={"is_auxiliary": True})
    pyro.sample("mu", dist.Delta(z[..., 0]))
    pyro.sample("b", dist.Delta(z[..., 1]))
    with batch.clients():
        a = pyro.param("a", torch.full((batch.num_clients, 1), 3.0))
        c = pyro.param("c", torch.zeros(batch.num_clients, 1, 2))
        s = pyro.param("s", torch.full((batch.num_clients, 1), 0.2), constraint=constraints.positive)
        pyro.sample("u", dist.Normal(a + (c * (z - m)).sum(-1), s))


def frame(clients: int = 3) -> pd.DataFrame:
    rng, parts = np.random.default_rng(0), []
    for j in range(clients):
        x = rng.normal(size=4 + 2 * j)
        parts.append(
            pd.DataFrame({"site": f"c{j}", "x": x, "y": 3 + rng.normal() + 1.5 * x + 0.5 * rng.normal(size=len(x))})
        )
    return pd.concat(parts, ignore_index=True)


def exact(df: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Posterior means and sds of (mu, b, u_1, ..., u_J)."""
    names = sorted(set(df["site"]))
    size = 2 + len(names)
    precision, linear = np.diag([0.01, 0.04] + [0.0] * len(names)), np.zeros(size)
    for j in range(2, size):
        precision[np.ix_([0, j], [0, j])] += [[1, -1], [-1, 1]]
    for site, x, y in df.itertuples(index=False):
        row = np.zeros(size)
        row[1], row[2 + names.index(site)] = x, 1
        precision += np.outer(row, row) / 0.25
        linear += row * y / 0.25
    covariance = np.linalg.inv(precision)
    return covariance @ linear, np.sqrt(covariance.diagonal())


def evidence(df: pd.DataFrame) -> float:
    """log p(y), from its covariance."""
    x, same = df["x"].to_numpy(), df["site"].to_numpy()[:, None] == df["site"].to_numpy()
    covariance = 100.0 + 25 * np.outer(x, x) + same + 0.25 * np.eye(len(df))
    whitened = np.linalg.solve(covariance, df["y"])
    return float(-0.5 * (df["y"] @ whitened + np.linalg.slogdet(2 * np.pi * covariance)[1]))


@pytest.mark.slow
@pytest.mark.cpu(40, "a whole stochastic ascent")
def test_a_full_gaussian_family_reaches_the_exact_posterior() -> None:
    """Where the family has the posterior, gradients have no noise left: means to 0.001 sds, sds to 0.1 %.

    The draws' own means and sds are off by their Monte-Carlo error: of 4,000 draws, 0.016 sds and 1.1 %.
    """
    gaussian = hierfl.fit_model(model, frame(), guide=guide, progress=False, draws=4000, rate=0.1)
    mean, sd = exact(frame())
    assert gaussian.arrived
    family = gaussian.method.users_guide
    params = family.shared.split(gaussian.run.shared[PARAMS])
    root = params["root"]
    np.testing.assert_allclose((params["m"].numpy() - mean[:2]) / sd[:2], 0, atol=1e-3)
    np.testing.assert_allclose((root @ root.T).diagonal().sqrt().numpy(), sd[:2], rtol=1e-3)
    draws = np.c_[gaussian.globals["mu"], gaussian.globals["b"], gaussian.clients["u"]]
    assert np.abs((draws.mean(0) - mean) / sd).max() < 0.06
    assert np.abs(draws.std(0) / sd - 1).max() < 0.05
    text = str(gaussian.summary())
    assert "draws are the guide's" in text
    assert float(gaussian.run.shared["posterior.bound"]) == pytest.approx(evidence(frame()), abs=1e-3)
    assert "k-hat" in text
    assert not gaussian.verdict.warnings
    given = pd.DataFrame({"site": "other", "x": 0.0, "y": [5.0, 5.2, 4.8, 5.1]})
    learned = gaussian.predict(given.iloc[:1], given=given)
    wanted, spread = exact(pd.concat([frame(), given.assign(site="d")]))
    assert learned["mean"][0] == pytest.approx(wanted[-1], abs=0.05)
    assert learned["sd"][0] == pytest.approx(np.sqrt(spread[-1] ** 2 + 0.25), rel=0.08)


def small(own: Callable = guide, program: Callable = model, **settings: Any) -> tuple[OwnGuide, Any]:
    method = OwnGuide(ColumnDesign.from_columns(COLUMNS), program, own, **{**FEW, **settings})
    return method, federation_of(counts((5, 3, 6)))


def fitted(method: OwnGuide, federation: Any, **how: Any) -> Run:
    return fit(method, federation, progress=False, **{**HOW, **how})


def near(values: Any, other: Any, within: float) -> None:
    assert values.keys() == other.keys()
    for name, value in values.items():
        torch.testing.assert_close(
            other[name], value, rtol=within, atol=within, msg=lambda text, at=name: f"{at}: {text}"
        )


@pytest.mark.cpu(8, "fits on plates of two sizes, and at every site")
def test_engines_agree_and_a_fit_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """Shorter clients are padded beside longer ones; the server of sites sees messages alone."""
    method, federation = small()
    reference = fitted(method, federation, chunk=1)
    other = fitted(method, federation, chunk=3)
    near(reference.shared, other.shared, 1e-8)
    near(reference.fitted.personal, other.fitted.personal, 1e-8)
    assert reference.fitted.personal[OWN_DRAWS].shape == (3, 8, 1)
    sites = Sites(method, federation, tmp_path / "sites", **HOW)
    near(reference.shared, sites.fit().shared, 1e-8)
    near(reference.fitted.personal, sites.values("personal"), 1e-8)
    fitted(method, federation, rounds=2, chunk=1, folder=tmp_path / "run")
    again = fitted(method, federation, chunk=1, folder=tmp_path / "run", resume=True)
    near(reference.shared, again.shared, 0.0)
    near(reference.fitted.personal, again.fitted.personal, 0.0)


@pytest.mark.cpu(4, "a stochastic ascent")
def test_the_sum_of_messages_is_the_gradient_of_all_data_together() -> None:
    """By hand: the bound of the pooled model at the same noise, its parameters stopped in log q."""
    from hierfl.inference.clients.chunk import ClientChunk
    from hierfl.models.any_model.own_guide.run import OWN_STREAM, SHARED_STREAM
    from hierfl.models.any_model.own_guide.steps import OwnRows

    method, federation = small()
    federation = federation.to(dtype=torch.float64)
    start = {PARAMS: method.users_guide.shared.start}
    own = method.users_guide.personal.start.expand(3, 1, -1)
    rows = OwnRows.for_chunk(method, ClientChunk(method, federation, [0, 1, 2], 1, 0, start, {OWN_PARAMS: own}))
    bound, gradient = rows.message(own.squeeze(1))
    (eps, each), m = rows.noise("message"), torch.tensor([3.0, 1.3], dtype=torch.float64).requires_grad_()
    root = torch.diag(torch.tensor([0.5, 0.1], dtype=torch.float64))
    z = m + eps @ root.T
    assert method.users_guide.taken == {SHARED_STREAM: 2, OWN_STREAM: 1}
    total = torch.zeros((), dtype=torch.float64)
    for j in range(3):
        batch = federation.batch([j])
        x, y = batch.x[0, :, 0], batch.x[0, :, 1]
        u = 3.0 + 0.2 * each[:, j, 0]
        height = dist.Normal(z[:, 0], 1.0).log_prob(u)
        height = height + dist.Normal(u[:, None] + z[:, 1:] * x, 0.5).log_prob(y).sum(-1)
        total = total + (height - dist.Normal(3.0, torch.tensor(0.2).double()).log_prob(u)).mean()
    torch.testing.assert_close(bound.sum(), total.detach())
    torch.testing.assert_close(gradient.sum(0)[:2], torch.autograd.grad(total, m)[0])


net = torch.nn.Linear(1, 2)


def test_the_end_goes_on_from_where_clients_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last round's steps, and not with the longer ones that a client begins with."""
    from hierfl.inference.clients.chunk import ClientChunk
    from hierfl.models.any_model.own_guide import steps as module
    from hierfl.models.any_model.own_guide.names import OWN_FIRST, OWN_SECOND, OWN_STEPS, RATE
    from hierfl.models.any_model.own_guide.steps import OwnRows

    method, federation = small(last_steps=20, rate=0.5)
    federation = federation.to(dtype=torch.float64)
    own = method.users_guide.personal.start.expand(3, 1, -1)
    shared = {PARAMS: method.users_guide.shared.start, RATE: torch.tensor(1e-9).double()}

    def moved(steps: float) -> float:
        values = {OWN_PARAMS: own, OWN_FIRST: 0 * own, OWN_SECOND: 0 * own + 1.0, OWN_STEPS: own[..., :1] * 0 + steps}
        rows = OwnRows.for_chunk(method, ClientChunk(method, federation, [0, 1, 2], 1, 0, shared, values))
        return float((rows.last_averaged(own.squeeze(1)) - own.squeeze(1)).abs().max())

    assert moved(20) < 1e-6
    assert moved(19) > 0.1
    rows = OwnRows.for_chunk(method, ClientChunk(method, federation, [0, 1, 2], 1, 0, shared, {OWN_PARAMS: own}))
    bound = rows.final_bound(own.squeeze(1))
    monkeypatch.setattr(module, "CELLS", 40)
    torch.testing.assert_close(rows.final_bound(own.squeeze(1)), bound)


def by_rows(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with batch.clients(), batch.data():
        e = pyro.sample("e", dist.Normal(mu, 1.0))
        pyro.sample("y", dist.Poisson((e + batch["x"]).exp()), obs=batch["y"])


def encoder(batch: ColumnBatch) -> None:
    pyro.module("net", net)
    pyro.sample("mu", dist.Normal(pyro.param("m", torch.tensor(0.0)), 0.3))
    with batch.clients(), batch.data():
        out = net(batch["y"][..., None])
        pyro.sample("e", dist.Normal(out[..., 0], out[..., 1].exp()))


@pytest.mark.cpu(4, "two fits")
def test_an_encoder_is_shared_and_padding_counts_for_nothing() -> None:
    """Latents of rows by a module in single precision, whose own weights stay as they are."""
    before = [value.clone() for value in net.parameters()]
    federation = federation_of(counts((5, 3, 6)))
    method = OwnGuide(ColumnDesign.from_columns(COLUMNS, rows=6), by_rows, encoder, **FEW)
    assert [of.name for of in method.users_guide.shared.params] == ["net$$$weight", "net$$$bias", "m"]
    assert not method.users_guide.personal.params
    reference, other = (fitted(method, federation, chunk=chunk) for chunk in (1, 3))
    near(reference.shared, other.shared, 1e-8)
    assert (reference.shared[PARAMS] != method.users_guide.shared.start).all()
    assert reference.shared[DRAWS].shape == (8, 1)
    assert all(torch.equal(value, old) for value, old in zip(net.parameters(), before, strict=True))


def test_a_global_without_a_spread_is_named() -> None:
    def one_value(batch: ColumnBatch) -> None:
        pyro.sample("mu", dist.Normal(pyro.param("m", torch.tensor(3.0)), 0.5))
        pyro.sample("b", dist.Delta(pyro.param("at", torch.tensor(1.0))))
        with batch.clients():
            pyro.sample("u", dist.Normal(pyro.param("a", torch.full((batch.num_clients, 1), 3.0)), 0.2))

    fitted = hierfl.fit_model(model, frame(), group="site", guide=one_value, rounds=2, progress=False, **FEW)
    assert fitted.summary().notes[0] == "no spread, since the guide gives a single value: b"


@pytest.mark.cpu(6, "a fit of a model file")
def test_a_model_file_may_have_a_guide(tmp_path: Path) -> None:
    from hierfl.experiments.configure import usual_of
    from hierfl.experiments.methods import load

    path = tmp_path / "counts.py"
    path.write_text(
        "import pyro, torch\nimport pyro.distributions as dist\n\n\ndef model(batch):\n"
        "    mu = pyro.sample('mu', dist.Normal(0.0, 1.0))\n    with batch.clients(), batch.data():\n"
        "        pyro.sample('y', dist.Poisson(mu.exp()), obs=batch['y'])\n\n\ndef guide(batch):\n"
        "    pyro.sample('mu', dist.Normal(pyro.param('m', torch.tensor(0.0)), 0.1))\n"
    )
    loaded = load(str(path))
    assert issubclass(loaded.cls, OwnGuide)
    assert usual_of(loaded.cls, "t.csv", {"group": "site"})["rounds"] == OwnGuide.usual_rounds == 2000
