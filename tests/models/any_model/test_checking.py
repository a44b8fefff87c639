"""Models that no sum over clients can fit: each is one line that names the site; and right ones, which pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pyro
import pytest
import torch
from pyro.distributions import (
    Bernoulli,
    Categorical,
    Dirichlet,
    HalfNormal,
    LKJCholesky,
    Multinomial,
    MultivariateNormal,
    Normal,
)
from pyro.nn import PyroModule, PyroSample
from support import wrong_models
from support.wrong_models import flat_clients, latents_of_rows, observe

from hierfl.data.batch import Batch
from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.models.any_model.checking import check_model
from hierfl.models.any_model.densities import log_prob
from hierfl.models.any_model.look import Look


def rows(clients: int = 4, width: int = 5, ragged: bool = False) -> Batch:
    """Clients with columns x, y (numbers), count (0, 1, ...) and item (three texts)."""
    generator = torch.Generator().manual_seed(0)
    site = [f"s{j}" for j in range(clients) for _ in range(width - (j if ragged else 0))]
    frame = pd.DataFrame({"site": site, "target": 0.0})
    for name in ("x", "y"):
        frame[name] = torch.randn(len(site), generator=generator).double().numpy()
    frame["count"] = torch.poisson(torch.full((len(site),), 2.0), generator=generator).numpy()
    frame["item"] = [float(i % 3) for i in range(len(site))]
    federation = Federation.from_frame(
        frame, client="site", y="target", x=["x", "y", "count", "item"], test=0.0, task="regression",
        standardise=False, spellings="keep",
    )  # fmt: skip
    batch = federation.batch(range(clients))
    return replace(batch, x=batch.x.double(), y=batch.y.double())


DESIGN = ColumnDesign.from_columns(["x", "y", "count", "item"], {"item": ("a", "b", "c")})


#: name of a wrong model -> its line
WRONG = {
    "no_slope": "site 'y' has no finite gradient where the fit starts: bound a logarithm, root or division",
    "float_index": "wrong_models.py, line {line}: takes rows by a column of floating numbers: write batch['NAME']",
    "point_mass": "site 'u' is a latent with one possible value: write pyro.deterministic('u', ...)",
    "forgotten_obs": "site 'count' is a discrete latent without a finite list of values (Poisson): write its sum out",
    "other_rows": "site 'y' has no log density (Normal): The size of tensor",
    "no_argument": "the model: TypeError: no_argument() takes 0 positional arguments but 1 was given",
    "no_client_plate": "no site is within the plate of clients: put it within pyro.plate",
    "client_plate_elsewhere": "plate 'client' at site 'u' is at dim -3: give it dim=-2",
    "data_outside_of_client": "site 'y' is within plate 'data' and outside of plate 'client'",
    "other_size": "plate 'client' at site 'u' has size 7, where batch.num_clients is 1: write batch.num_clients",
    "latents_of_rows": "site 'e' has shape (3, 5) here and (3, 1) where the model was read: if it depends",
    "discrete_global": "site 'k' is a discrete latent of everyone",
    "counted_latent": "site 'k' is a discrete latent without a finite list of values (Poisson)",
    "prior_of_data": "site 'mu' is outside of the plate of clients, and its log density moves with the rows",
    "centred_over_clients": "site 'y' couples clients: the log density of one moves with the latents of another",
    "walk_over_clients": "site 'y' couples clients: the log density of one moves with the latents of another",
    "neighbours": "site 'car' is outside of the plate of clients, and its log density moves with the latents",
    "process_over_clients": "site 'f' has shape (3,) here and (1,) where the model was read: a latent of everyone",
    "standardised_by_all": "site 'y' couples clients: the log density of one moves with the rows of another",
    "nothing_observed": "no site is observed",
    "data_from_elsewhere": "no site moves with the rows: give a site of the rows obs=batch[...]",
    "improper": "site 'mu' has an improper prior: give it a proper one",
    "no_number": "site 'y' has the log density nan where the fit starts",
    "impossible_data": "site 'y' is observed at a value that is missing, or impossible under LogNormal",
    "subsampled": "plate 'data' takes a subsample: every client uses all of its rows",
    "python_number": "wrong_models.py, line {line}: takes a Python number or a branch from a tensor",
    "python_branch": "wrong_models.py, line {line}: takes a Python number or a branch from a tensor",
    "flat_clients": "site 'y' has 3 at dim -1, where plate 'data' has 5: is .to_event(1), [..., None] or a squeeze",
    "no_to_event": "site 'u' has 2 densities at dim -1, where it has no plate: is .to_event(1), or a plate, missing?",
    "no_to_event_global": "site 'beta' has 2 densities at dim -1, where it has no plate",
    "twice": "site 'u' is there twice: name each site once",
    "sites_of_data": "site 'u' is a latent of some batches only: its number may not depend on the data",
    "noise": "site 'y' has two log densities at the same latents: draw random numbers by pyro.sample alone",
    "mistyped": "unknown column 'dose'; known: x, y, count, item",
    "parameter": "pyro.param 'w' has a number for each row, and no prior: write it as pyro.sample with one",
    "vector_of_clients": "pyro.param 'w' of each client has shape (2,) where the number of clients is 1: give it "
    "torch.zeros(batch.num_clients, 1, 2), or leave event_dim out",
    "parameters_of_clients": "pyro.param 'w' has shape (1, 1) for one client and (3, 1) for more: it is everyone's, "
    "and may depend neither on their number nor on rows; give it event_dim=",
    "moving_bounds": "site 'u' has bounds that other sites or the data set",
    "looped": "plate 'client' at site 'u0' is a loop: write 'with pyro.plate(...)', dim=-2",
    "observed_outside": "observed site 'total' is outside of the plate of clients",
    "single_precision": "wrong_models.py, line {line}: mixes float32 and float64",
    "raising": "wrong_models.py, line {line}: KeyError: 'nothing'",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_line(name: str) -> None:
    model = getattr(wrong_models, name)
    with pytest.raises(UserError) as refused:
        check_model(model, DESIGN, rows())
    line = str(refused.value)
    expected = WRONG[name]
    if "{line}" in expected:
        source, first = inspect.getsourcelines(model)
        number = int(line.split("line ")[1].split(":")[0])
        assert first < number <= first + len(source)
        expected = expected.format(line=number)
    assert expected in line
    assert "\n" not in line
    assert len(line) < 230


@pytest.mark.parametrize("unit", [1e-10, 1e-6, 1e6, 1e10])
def test_units_of_the_data_hide_no_coupling_and_make_none(unit: float) -> None:
    """Data far smaller, or far larger, than the model expects move its density by the last of its digits alone."""
    batch = rows()
    other = replace(batch, x=unit * (batch.x if unit < 1 else 100 + batch.x))
    check_model(many_rows, DESIGN, other)
    with pytest.raises(UserError, match="site 'y' couples clients: the log density of one moves with the rows"):
        check_model(wrong_models.standardised_by_all, DESIGN, other)


def many_rows(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", Normal(0.0, 1.0))
    with batch.clients():
        u = pyro.sample("u", Normal(mu, 1.0))
        observe(batch, u + 0.0 * batch["x"])


def labels(batch: ColumnBatch) -> None:
    """Two labels of a row, and counts of three kinds: values of one site."""
    with batch.clients():
        u = pyro.sample("u", Normal(0.0, 1.0).expand([3]).to_event(1))
        with batch.data():
            both = torch.stack([batch["item"], batch["item"]], -1)
            pyro.sample("two", Categorical(logits=u[..., None, :].expand(*both.shape, 3)).to_event(1), obs=both)
            counts = torch.stack([batch["count"], batch["item"], 0 * batch["x"]], -1)
            pyro.sample("kinds", Multinomial(9, logits=u, validate_args=False), obs=counts)


def test_events_of_labels_and_counts_are_fitted() -> None:
    """A label beyond the last is impossible, and says nothing of the model; torch's multinomial density has no vmap."""
    design = ColumnDesign.from_columns(DESIGN.columns)
    batch = rows()
    sites = check_model(labels, design, batch)
    look = Look.for_model(labels, design, sites, batch)
    site = look.run(look.batch, look.v).nodes["kinds"]
    torch.testing.assert_close(log_prob(site), site["fn"].log_prob(site["value"]))
    zero = {
        **site,
        "fn": Multinomial(3, logits=torch.tensor([0.0, 0.0, -torch.inf])),
        "value": torch.tensor([1.0, 2, 0]),
    }
    assert log_prob(zero).exp() == pytest.approx(3 / 8)


COUPLED = ["centred_over_clients", "walk_over_clients", "neighbours", "process_over_clients", "prior_of_data"]


@pytest.mark.parametrize("name", [*COUPLED, "python_branch"])
def test_rows_that_are_made_up_show_it_too(name: str) -> None:
    model = getattr(wrong_models, name)
    with pytest.raises(UserError):
        check_model(model, DESIGN)


def test_as_many_clients_as_rows_hide_nothing() -> None:
    with pytest.raises(UserError, match="site 'y' has"):
        check_model(flat_clients, DESIGN, rows(3, 3))


def test_single_precision_columns_are_refused() -> None:
    batch = rows()
    with pytest.raises(UserError, match="single precision"):
        check_model(latents_of_rows, DESIGN, replace(batch, x=batch.x.float()))


def test_many_latents_of_rows_that_are_independent_are_none_too_many() -> None:
    design = ColumnDesign.from_columns(DESIGN.columns, DESIGN.level_names, rows=200)
    assert len(check_model(latents_of_rows, design).client_start) == 200


def chain(batch: ColumnBatch) -> None:
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(0.0, 1.0))
        k = torch.tensor(0.0)
        for t in pyro.markov(range(batch.width)):
            k = pyro.sample(f"k{t}", Bernoulli(0.3 + 0.4 * k))
            pyro.sample(f"y{t}", Normal(u + k, 1.0), obs=batch["y"][..., t, None])


def test_rows_outside_of_their_plate_are_masked_by_the_model() -> None:
    check_model(chain, DESIGN, rows())
    with pytest.raises(UserError, match=r"site 'y0' counts rows of padding: put it within plate 'data', or mask it"):
        check_model(chain, DESIGN, rows(ragged=True))


@pytest.mark.parametrize("of_rows", [
    lambda batch: batch["x"].mean(-1, keepdim=True), lambda batch: batch["x"].roll(1, -1),
    lambda batch: batch["x"].flip(-1),
])  # fmt: skip
def test_what_padding_changes_among_rows_is_refused(of_rows: Callable[[ColumnBatch], torch.Tensor]) -> None:
    """A mean that counts padding is a short client's mean times a number that depends on the longest one.

    At the start its slope is 0, so that only latents beside it show it.
    """

    def model(batch: ColumnBatch) -> None:
        slope = pyro.sample("slope", Normal(0.0, 2.0))
        with batch.clients():
            u = pyro.sample("u", Normal(0.0, 1.0))
            with batch.data():
                pyro.sample("y", Normal(u + slope * of_rows(batch), 1.0), obs=batch["y"])

    check_model(model, DESIGN, rows())
    with pytest.raises(UserError, match=r"counts rows of padding.*sums and means over rows are of batch\.present"):
        check_model(model, DESIGN, rows(ragged=True))


def test_a_mean_over_rows_that_are_there_is_none_of_padding() -> None:
    def model(batch: ColumnBatch) -> None:
        slope = pyro.sample("slope", Normal(0.0, 2.0))
        present = batch.present.double()
        mean = (batch["x"] * present).sum(-1, keepdim=True) / present.sum(-1, keepdim=True)
        with batch.clients():
            u = pyro.sample("u", Normal(0.0, 1.0))
            with batch.data():
                pyro.sample("y", Normal(u + slope * mean, 1.0), obs=batch["y"])

    check_model(model, DESIGN, rows(ragged=True))


def many_shapes(batch: ColumnBatch) -> None:
    """Plates of items outside and inside of clients, matrices, simplices, ordered numbers, factors, scales."""
    with pyro.plate("items", len(batch.levels("item")), dim=-1):
        hard = pyro.sample("hard", Normal(0.0, 1.0))
    root = pyro.sample("root", LKJCholesky(2, 1.0))
    shape = pyro.sample("shape", Dirichlet(torch.ones(3)))
    tau = pyro.sample("tau", HalfNormal(1.0).expand([2]).to_event(1))
    spread = pyro.deterministic("spread", tau.sum())
    pyro.factor("soft", -hard.sum().square())
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", MultivariateNormal(torch.zeros(2), scale_tril=tau[:, None] * root))
        p = pyro.sample("p", Dirichlet(5 * shape))
        with pyro.plate("of items", 3, dim=-1):
            own = pyro.sample("own", Normal(hard, spread))
        pyro.sample("seen", Normal(u[..., 0], 1.0), obs=batch["x"][..., :1])
        with pyro.plate("data", batch.width, dim=-1), pyro.poutine.scale(scale=0.5):
            at = own.expand(batch.num_clients, 3).gather(-1, batch["item"].long())
            pyro.sample("y", Normal(u[..., 0] + u[..., 1] * batch["x"] + at + p[..., 0], 1.0), obs=batch["y"])
            pyro.factor("more", -at.square())


class Random(PyroModule):
    """A module whose weights have priors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = PyroSample(Normal(0.0, 1.0))

    def forward(self, batch: ColumnBatch) -> None:
        weight = self.weight
        with pyro.plate("client", batch.num_clients, dim=-2):
            observe(batch, weight * batch["x"])


@pytest.mark.parametrize("model", [many_shapes, chain, Random()], ids=["shapes", "chain", "module"])
@pytest.mark.parametrize("made_up", [False, True])
def test_right_models_pass(model: Callable, made_up: bool) -> None:
    check_model(model, DESIGN, None if made_up else rows())


def test_latents_of_rows_pass_where_the_most_rows_are_known() -> None:
    design = ColumnDesign.from_columns(DESIGN.columns, DESIGN.level_names, rows=5)
    sites = check_model(latents_of_rows, design, rows(ragged=True))
    assert [(of.name, of.shape, of.level) for of in sites.clients] == [("e", (1, 5), "data")]
