"""Several levels inside clients, nested and crossed: beside dense matrices, at sites, predicted, and refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from support.sites import Sites
from torch import Tensor

from hierfl import mixed_model
from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.federated.study_reader import study_reader
from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.models import MixedEffects
from hierfl.models.mixed_effects.after.rows import effects_at_estimates
from hierfl.models.mixed_effects.likelihood.joint.packed import at_points, polynomial
from hierfl.models.mixed_effects.likelihood.joint.schur import Schur
from hierfl.models.mixed_effects.likelihood.joint.sums import Blocks
from hierfl.models.mixed_effects.model.names import by_short_name

TABLE = pd.read_csv(Path(__file__).parent / "lme4" / "joint_levels.csv")
CROSSED = "~ x + (1 | site) + (1 | site:nurse) + (1 + x | site:item)"
NESTED = "~ x + (1 | site/nurse/item)"


def some(sites: int) -> pd.DataFrame:
    """Rows of the first sites."""
    return TABLE[TABLE.site.isin([f"s{k}" for k in range(1, sites + 1)])].reset_index(drop=True)


def dense(fitted: mixed_model, j: int) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
    """X, Z of each level over all its groups, y, and the offset of one client's rows."""
    method, federation = fitted.method, fitted.run.fitted.federation
    rows = federation.train[j]
    columns = method.network.split(federation.x[None, rows])
    z = []
    for level in method.at_site:
        own, group = columns.for_level(level.kind)
        groups = level.size if level.inside else 1
        index = torch.zeros(len(rows), dtype=torch.long) if group is None else group[0].long()
        indicators = torch.nn.functional.one_hot(index, groups).double()
        z.append((indicators[:, :, None] * own[0][:, None, :]).flatten(1))
    return columns.x[0], z, federation.y[rows], method.network.offset


def roots(fitted: mixed_model, values: dict[str, Tensor]) -> list[Tensor]:
    """L of all groups of each level."""
    factors = []
    for level in fitted.method.at_site:
        identity = torch.eye(level.size if level.inside else 1, dtype=torch.float64)
        factors.append(torch.kron(identity, level.root(values[level.name])))
    return factors


@pytest.mark.parametrize("formula", [CROSSED, NESTED])
def test_sums_and_derivatives_are_a_dense_normals(formula: str) -> None:
    fitted = mixed_model(some(3), f"gaussian {formula}", draws=0, rounds=2)
    method, own = fitted.method, fitted.run.fitted.personal
    blocks = Blocks(*(own[name] for name in Blocks._fields))
    at = torch.linspace(0.4, 0.9, method.k, dtype=torch.float64)
    expansion = polynomial(method, blocks, at)

    for j in range(3):
        x, z, y, offset = dense(fitted, j)
        a = torch.cat([x, (y - offset)[:, None]], 1)

        def packed(numbers: Tensor, x: Tensor = x, z: list[Tensor] = z, a: Tensor = a) -> Tensor:
            values = method.parts(numbers)
            v = (2 * values["log_noise"]).exp() * torch.eye(len(a), dtype=torch.float64)
            for columns, root in zip(z, roots(fitted, values), strict=True):
                v = v + columns @ root @ root.mT @ columns.mT
            m = a.mT @ torch.linalg.solve(v, a)
            up = torch.triu_indices(len(m), len(m))
            return torch.cat([m[up[0], up[1]], (torch.linalg.slogdet(v)[1] + len(a) * np.log(2 * np.pi))[None]])

        def slopes(numbers: Tensor, of: Callable[[Tensor], Tensor] = packed) -> Tensor:
            return torch.autograd.functional.jacobian(of, numbers, create_graph=True).mT

        slope = slopes(at)
        bend = torch.autograd.functional.jacobian(slopes, at).permute(2, 0, 1)
        torch.testing.assert_close(expansion["cross"][j], packed(at), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(expansion["cross_1"][j], slope, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(expansion["cross_2"][j], bend, rtol=1e-8, atol=1e-8)
        points = torch.stack([at, 0.5 * at])
        many = at_points(method, blocks, points)[j]
        torch.testing.assert_close(many, torch.stack([packed(p) for p in points]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("share", [0.02, 0.9])
def test_sparse_and_dense_sums_are_the_same(share: float) -> None:
    rng = np.random.default_rng(0)
    e = torch.as_tensor(rng.normal(size=(2, 40, 1, 12)) * (rng.random((2, 40, 1, 12)) < share))
    p = torch.as_tensor(rng.random((3, 2, 40, 1, 1)))
    schur = Schur.from_blocks(e)
    assert bool(schur.maps) == (share < 0.1)
    wanted = torch.einsum("sgi,dsg,sgj->dsij", e[:, :, 0], p[..., 0, 0], e[:, :, 0])
    torch.testing.assert_close(schur(p), wanted)
    torch.testing.assert_close(Schur(e)(p), wanted)


def test_effects_of_a_gaussian_response_are_a_dense_normals() -> None:
    fitted = mixed_model(some(3), f"gaussian {CROSSED}", draws=400)
    values, own = by_short_name(fitted.run.shared), effects_at_estimates(fitted.run.fitted)
    for j in range(3):
        x, z, y, offset = dense(fitted, j)
        every, root = torch.cat(z, 1), torch.block_diag(*roots(fitted, values))
        sigma = root @ root.mT
        v = (2 * values["log_noise"]).exp() * torch.eye(len(y), dtype=torch.float64) + every @ sigma @ every.mT
        gain = sigma @ every.mT @ torch.linalg.inv(v)
        mean, spread = gain @ (y - offset - x @ values["beta"]), sigma - gain @ every @ sigma
        _compare(fitted, own, j, mean, spread)
    # moments over draws of the population are those of the draws
    kept = fitted.run.personal
    for name in ("b", "c", "c_2"):
        drawn = kept[f"{name}_draws"].flatten(1, 2)
        gap = (drawn.mean(1) - kept[f"{name}_mean"]).abs() / drawn.std(1).clamp_min(1e-12)
        assert float(gap.max()) < 5 / np.sqrt(drawn.shape[1])


def test_a_mode_of_another_response_is_a_dense_searchs() -> None:
    fitted = mixed_model(some(3), f"poisson {CROSSED}", family="poisson", population="ml", draws=0)
    values, own = by_short_name(fitted.run.shared), effects_at_estimates(fitted.run.fitted)
    heights = _heights(fitted, fitted.run.shared["effects.at"])
    for j in range(3):
        x, z, y, offset = dense(fitted, j)
        design = torch.cat([columns @ root for columns, root in zip(z, roots(fitted, values), strict=True)], 1)
        fixed = offset + x @ values["beta"]

        def height(u: Tensor, a: Tensor = design, fixed: Tensor = fixed, y: Tensor = y) -> Tensor:
            eta = fixed + a @ u
            return (y * eta - eta.exp() - torch.lgamma(y + 1)).sum() - 0.5 * u.square().sum()

        u = torch.zeros(design.shape[1], dtype=torch.float64)
        for _ in range(50):
            bend = -torch.autograd.functional.hessian(height, u)
            u = u + torch.linalg.solve(bend, torch.autograd.functional.jacobian(height, u))
        root = torch.block_diag(*roots(fitted, values))
        _compare(fitted, own, j, root @ u, root @ torch.linalg.inv(bend) @ root.mT)
        wanted = height(u) - 0.5 * torch.linalg.slogdet(bend)[1]
        assert float(heights[j]) == pytest.approx(float(wanted), abs=1e-8)


def test_derivatives_of_laplaces_approximation_are_differences_of_heights() -> None:
    fitted = mixed_model(some(2), "p(k, n) " + NESTED[:-1] + ")", family="binomial", population="ml", draws=0, rounds=3)
    method, run = fitted.method, fitted.run
    at = torch.cat([torch.linspace(0.5, 0.9, method.k - 2), torch.tensor([0.2, -0.3])]).double()
    chunk = _chunk(fitted)
    expansion = method.likelihood.around(chunk, {**run.shared, "effects.at": at})
    step = 1e-4 * torch.eye(method.k, dtype=torch.float64)
    ahead, behind = (
        [method.likelihood.around(chunk, {**run.shared, "effects.at": at + sign * e}) for e in step] for sign in (1, -1)
    )
    for name, wanted in (("height", "slope"), ("slope", "curvature")):
        differences = torch.stack([(a[name] - b[name]) / 2e-4 for a, b in zip(ahead, behind, strict=True)], 1)
        sign = 1 if wanted == "slope" else -1
        torch.testing.assert_close(sign * differences, expansion[wanted], rtol=1e-5, atol=1e-5)


def _chunk(fitted: mixed_model) -> ClientChunk:
    run = fitted.run.fitted
    own = {k: v.unsqueeze(1) for k, v in {**run.copies, **run.personal}.items()}
    return ClientChunk(fitted.method, run.federation, list(range(run.federation.clients)), 0, 0, run.shared, own)


def _heights(fitted: mixed_model, at: Tensor) -> Tensor:
    shared = {**fitted.run.shared, "effects.points": at[None]}
    return fitted.method.likelihood.at_points(_chunk(fitted), shared)[:, 0]


def _compare(fitted: mixed_model, own: dict[str, Tensor], j: int, mean: Tensor, spread: Tensor) -> None:
    """Means and each group's covariance beside those of all effects."""
    first = 0
    for level in fitted.method.at_site:
        groups = level.size if level.inside else 1
        for g in range(groups):
            at = slice(first + g * level.q, first + (g + 1) * level.q)
            estimate, root = (own[f"{level.effects}_{part}"][j] for part in ("mean", "root"))
            estimate, root = (estimate[g], root[g]) if level.inside else (estimate, root)
            torch.testing.assert_close(estimate, mean[at], rtol=1e-6, atol=1e-7)
            torch.testing.assert_close(root @ root.mT, spread[at, at], rtol=1e-6, atol=1e-7)
        first += groups * level.q


@pytest.mark.parametrize(
    ("family", "response", "formula"),
    [
        ("gaussian", "gaussian", CROSSED),
        ("gaussian", "gaussian", NESTED),
        pytest.param("poisson", "poisson", CROSSED.replace("1 + x |", "1 |"), marks=pytest.mark.slow),
    ],
)
def test_sites_find_what_the_table_would(family: str, response: str, formula: str, tmp_path: Path) -> None:
    df = some(3).rename(columns={response: "y"})[["site", "nurse", "item", "x", "y"]]
    formula = f"y {formula}"
    how: dict = {"rounds": 6, "draws": 2, "dtype": torch.float64, "evaluate_every": 6, "splits": ("train",)}
    federation, design = from_formula(df, formula, family=family, client="site")  # type: ignore[arg-type]
    whole = fit(MixedEffects(design, draws=8), federation, progress=False, **how)

    kinds = {"y": Column("number"), "x": Column("number", least=-5, most=5), "nurse": Column("name")}
    study = StudyFormula(formula, Dictionary({**kinds, "item": Column("name")}), family)  # type: ignore[arg-type]
    tables = {str(name): rows.drop(columns="site") for name, rows in df.groupby("site")}
    reader = study_reader(study, reduce(add, (study.first(rows) for rows in tables.values())))
    network = reader.design(reduce(add, (reader.second(rows) for rows in tables.values())))
    most = {kind: of.most for kind, of in design.groupings.items() if of.most}
    assert [of.most for of in (network.inner, *network.further)] == [1, 1]  # type: ignore[union-attr]
    network = network.with_most(most)
    own = {name: reader.federation(rows, name) for name, rows in tables.items()}
    run = Sites(MixedEffects(network, draws=8), own["s1"], tmp_path, own, **how).fit()
    effects, numbers = run.fitted.method.population_summary(run.fitted)
    expected, pooled = whole.fitted.method.population_summary(whole.fitted)
    assert effects is not None
    assert expected is not None
    pd.testing.assert_frame_equal(effects, expected, rtol=1e-6)
    assert numbers["log_likelihood"] == pytest.approx(pooled["log_likelihood"], rel=1e-10)
    assert numbers["inner_2_groups"] == pooled["inner_2_groups"]


def test_a_site_counts_each_of_its_levels() -> None:
    kinds = {"poisson": Column("number"), "x": Column("number", least=-5, most=5), "nurse": Column("name")}
    study = StudyFormula("poisson" + CROSSED, Dictionary({**kinds, "item": Column("name")}), "poisson")
    tables = [rows[["poisson", "x", "nurse", "item"]] for _, rows in some(2).groupby("site")]
    tables[1] = tables[1].assign(item="i1")
    reader = study_reader(study, reduce(add, (study.first(rows) for rows in tables)))
    second = [reader.second(rows) for rows in tables]
    assert [sums.several.tolist() for sums in second] == [[1.0, 1.0], [1.0, 0.0]]
    alone = replace(second[1], sites=2)
    with pytest.raises(UserError, match="no site has more than one item"):
        reader.design(alone)


def test_predictions_are_of_whom_a_row_says() -> None:
    fitted = mixed_model(TABLE, f"gaussian {CROSSED}".replace("1 + x |", "1 |"), draws=1000)
    e = fitted.summary().table.set_index("effect").estimate
    row = TABLE[TABLE.site == "s2"].iloc[[0]].drop(columns="gaussian")
    base = e["Intercept"] + e["x"] * row.x.iloc[0]
    site = fitted.ranef().set_index("client")["mean"]["s2"]
    of = {
        name: fitted.ranef(name).set_index(["client", name])["mean"][("s2", row[name].iloc[0])]
        for name in ("nurse", "item")
    }
    for unknown in ((), ("nurse",), ("item",), ("nurse", "item")):
        wanted = base + site + sum(value for name, value in of.items() if name not in unknown)
        predictions = fitted.predict(row.assign(**dict.fromkeys(unknown, "somebody")))
        assert predictions["mean"].iloc[0] == pytest.approx(wanted, abs=0.1)
    known, other = (fitted.predict(row.assign(nurse=name)) for name in (row.nurse.iloc[0], "somebody"))
    assert (known.upper - known.lower).iloc[0] < 0.8 * (other.upper - other.lower).iloc[0]
    new = fitted.predict(row, level="new")
    assert new["mean"].iloc[0] == pytest.approx(base, abs=0.15)
    names = ("sd(Intercept)", "sd(Intercept | nurse)", "sd(Intercept | item)")
    spread = np.sqrt(sum(e[name] ** 2 for name in names))
    assert (new.upper - new.lower).iloc[0] > 2 * float(stats.norm.ppf(0.95)) * 0.9 * spread
    without = mixed_model(TABLE, f"gaussian {CROSSED}".replace("1 + x |", "1 |"), draws=0)
    assert without.predict(row)["mean"].iloc[0] == pytest.approx(base + site + sum(of.values()), abs=0.1)


@pytest.mark.parametrize(
    ("formula", "how", "line"),
    [
        (f"poisson {NESTED}", {"family": "poisson", "nodes": 5}, "Laplace's approximation: leave nodes out"),
        (f"gaussian {CROSSED}", {"one_round": True}, "one_round is of clients without groups inside"),
        ("gaussian ~ x + (1 | site) + (1 | site:nurse) + (1 | item:nurse)", {}, "belong to one column, the client's"),
        ("gaussian ~ x + (1 | site:nurse) + (1 | site:item)", {}, "the clients have no random term"),
        (f"gaussian {CROSSED}", {"client": "nurse"}, "'site' crosses the clients in one random term"),
        ("gaussian ~ x + (1 | site/nurse/row)", {}, "no nurse:row has more rows than the 1 random effect"),
    ],
)
def test_what_is_not_understood_is_one_line(formula: str, how: dict, line: str) -> None:
    with pytest.raises(UserError, match=line) as caught:
        mixed_model(TABLE.assign(row=np.arange(len(TABLE))), formula, **how)
    assert "\n" not in str(caught.value)
