"""What leaves a client, for every method: a page made from the methods' own rules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

import pyro
import torch
from pyro.distributions import HalfNormal, LogNormal, Normal, constraints

from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.data.formula.design import Design
from hierfl.data.outline import outline_of
from hierfl.errors import UserError
from hierfl.inference.method.capabilities import is_tabular
from hierfl.inference.options import Options
from hierfl.models import METHODS
from hierfl.models.any_model.levels import Model
from hierfl.models.any_model.model_file import method_of
from hierfl.nn.networks.build import architecture

from ..methods import Loaded, load
from .leaving import Leaving, answers

#: networks of the example: the first that a method can have
NETWORKS = ("mlp:100", "bncnn:16,32:64")
FORMULA = "y ~ 1 + x + (1 + x | site)"
#: what the page says once, for all methods
SAID_ABOVE = ("hello", "scores")
HEAD = """\
# What leaves a site

`hierfl methods --leaves` makes this page from the methods' own rules, and a test compares the two. For a study of your
own `hierfl federate check` has the same list, with your own columns and shapes.

Every site also sends its name and which of train, validation and test rows it has (`hello`). If columns, images or
responses are standardised, it sends sums before the first round (`prepare`, [more](sites.md#before-the-first-round)).
With every answer it sends the number of the round and whether its computation has failed. Metrics (`scores`) are sums
over its own test examples. Data, personal values and draws are never sent: tests check every byte that a site sends.

Under `sums`, `new` is sent only if the study agrees (`new_clients`). A [calibrated](calibration.md) study ends with
sums on validation data (`calibration`): of likelihoods at a temperature, and of scores counted in cells. A network for
a [regression](data.md#a-regression-in-its-own-unit) whose standard deviation all clients share has one more message:
`response_sd`, a sum of squared residuals, and `weight`, its number of rows.

[Formulas](mixed-effects.md#spread-and-zeros-by-formulas) of dispersion and zero inflation make the messages of
mixed-effects longer, by derivatives in their coefficients. Sums before the first round have their columns, too. With
`dispersion ~ (1 | site)` messages of a gaussian response have the form of other responses: `height`, `slope` and
`curvature` of a log likelihood from which the site's own deviation is integrated out. That deviation stays.

A sum over one site is that site's message: anyone who sees a single answer sees it.

For a mixed model with groups inside its sites, nested or crossed, `counts` also has the number of groups of each level.
Before the first round `several` is whether a level has more than one group. Names, effects and cross-products of the
groups stay.

With a factor that crosses the sites, such as `(1 | item)`, a mixed model's messages have m = groups x effects more
columns. For a gaussian response `cross` has (m + p + 1) (m + p + 2) / 2 + 1 numbers. For others `crossed` has 1 + m + m
(m + 1) / 2 at each point, a log likelihood with two derivatives in the effects. If one site alone has a group, the
group's numbers are that site's own: masked studies refuse groups of fewer than three sites, and `least_cell` counts the
rows of each group at the site.

With the setting `residuals = true` a mixed model's study ends with one more sum (`sums`). It is `residuals`, 10
numbers, which count the site's training rows by the quantile of their response at the estimates. If a cell has rows,
but fewer than `least_cell`, the site sends zeros. Its `policy.toml` allows the counts or not (`residuals`).

Effects of a smooth term, `s(x, k=10)`, are k - 2 such columns, which every row has. Its knots lie between the limits of
the formula, or between limits from the mean and spread of x that sites have sent before: no knot is a row's value. m
counts the columns of all such terms, and of a factor that crosses the sites. With k numbers of the population the
stencil of `crossed` has 1 + k + k^2 points, whatever else the model has.

Restricted estimates have sums for degrees of freedom, too. `squares` has the squares of the p fixed columns. `left` has
the rest of them after a regression on the site's random columns, `left_inner` and others the rest after those of each
level inside. `by_region` has the number of sites of each region, and sums of their means and of the squares of these.
For a factor that crosses the sites it has the rows of each group, and their sums and sums of squares of the fixed
columns.

With `shares`, `heads`, `features`, `confusion`, `outcome` or `adapters` on `auto` messages of pfedhb have a part
`parts` of 4 K + 24 numbers, for K of these: a client's differences of log densities over a third of its rows, functions
of these, and how many rows.
With `heads` on or `auto` beside that `common` is n_j times how far the client's head is from w, as long as w, and n_j.
Messages of `heads` have a client's `gain`, what a head of its own adds to its log evidence. Where rho is integrated
over, `at_nodes` has the same numbers at each of ten rho.
With `features` there are 6 numbers, a score and an information of two spreads. Shifts and scales stay.
With `adapters` there are L + L L numbers, a score and an information of the spread of each of L layers. A client's B
stays; on `auto` `common_adapters` is n_j times its mean, and n_j, in the rounds in which parts are judged.
With `confusion` (`trust` as well) there are 6 numbers: the probability that the client's labels mean other classes, of
how many labels, how many it has, and three sums for two concentrations. `weight` beside w is then n_j, or less of a
flagged client.
Of a regression with `outcome` there are 8 numbers, and none of label shares: the score of the client's log evidence by
the population's two means and two log spreads, and the expected information of each. Its residuals stay.

In a study with [noise](privacy.md) the messages below have noise, and nothing else leaves: no sums before the first
round, metrics, calibration or `sums`.
"""


#: what is said of plain models, which no list of methods has
PLAIN = """\

## A plain Pyro model

A [study](sites.md#the-same-for-a-plain-pyro-model) of a model file asks for no sums before the first round, and for no
metrics. Every round's message has the same form, whatever the model: 7 + p + p (p + 1) / 2 + M numbers of 8 bytes for p
unconstrained numbers of the globals and M = `points`. Entries that a round does not need are zeros. Rounds of the
climb have derivatives, rounds of the exploration have heights. `hierfl federate server study.toml --dry-run` prints
their number. Settings of the study change the size: `points=M`, and `reweigh=false` for no exploration and no heights.
What a derivative reveals about the rows depends on the whole model: read it before you approve it.

Stays: latents of the site, their draws, rows, predictions. Sent, for a model of two globals:
"""


#: the same of one with a guide of its user's own
GUIDED = """\
## A plain Pyro model with a guide of one's own

A model file that has a [guide](running.md#a-guide-of-ones-own) beside its model is fitted by gradients: 3 + P + M
numbers of 8 bytes a round, for P unconstrained numbers of the guide's shared parameters and M = `points`. Without
a weighing of draws (`check=false`) there are no heights.

Stays: parameters of the guide with a dimension of clients, latents of the site, their draws, rows, predictions. Sent,
for the same model and a guide of four shared parameters:
"""


def two_globals(batch: ColumnBatch) -> None:
    """A mean of each client, and their own mean and standard deviation."""
    mean, sd = pyro.sample("mean", Normal(0.0, 1.0)), pyro.sample("sd", HalfNormal(1.0))
    with batch.clients():
        theta = pyro.sample("theta", Normal(mean, sd))
        with batch.data():
            pyro.sample("y", Normal(theta, 1.0), obs=batch["y"])


def four_parameters(batch: ColumnBatch) -> None:
    """A guide of it: a normal mean, a log-normal standard deviation, and what stays with a client."""
    real, positive = constraints.real, constraints.positive

    def at(name: str, constraint: object, *shape: int) -> torch.Tensor:
        return pyro.param(name, torch.ones(shape), constraint=constraint)

    pyro.sample("mean", Normal(at("m", real), at("s", positive)))
    pyro.sample("sd", LogNormal(at("log_m", real), at("log_s", positive)))
    with batch.clients():
        pyro.sample("theta", Normal(at("a", real, batch.num_clients, 1), at("b", positive, batch.num_clients, 1)))


def of_plain_model(guide: Model | None = None) -> list[Leaving]:
    """What a site of a small plain model sends, fitted by a guide of one's own where there is one."""
    outline = outline_of((1,), "regression", dtype=torch.float64)
    made = method_of(two_globals, guide=guide)(ColumnDesign.from_columns(["y"]))
    values = answers(made, outline, Options(dtype=torch.float64, splits=()))
    return [value for value in values if value.request not in SAID_ABOVE]


def example(loaded: Loaded) -> tuple[str, list[Leaving]]:
    """What the example is, and what a client of a method sends in it; metrics are left out.

    Raises:
        UserError: for a method that can have none of :data:`NETWORKS`.
    """
    if is_tabular(loaded.cls):
        outline = outline_of((4,), "regression", dtype=torch.float64)
        made = loaded.cls(Design.from_columns(["Intercept", "x"], ["Intercept", "x"]))
        values = answers(made, outline, Options(dtype=torch.float64), new_clients=True)
        return f"for {FORMULA}", [value for value in values if value.request not in SAID_ABOVE]
    outline = outline_of((1, 28, 28), "classification", 10)
    for spec in NETWORKS:
        try:
            made = loaded.cls(architecture(spec, outline, latent=loaded.cls.latent))
            values = answers(made, outline, Options(), new_clients=True)
        except UserError:
            if spec == NETWORKS[-1]:
                raise
        else:
            break
    return f"for {spec} on 28x28 images of ten classes", [v for v in values if v.request not in SAID_ABOVE]


def page() -> str:
    """The page as markdown."""
    parts = [HEAD]
    for name, entry in METHODS.items():
        where, values = example(load(name))
        parts.append(f"\n## {name}\n\nStays: {entry.stays}. Sent, {where}:\n")
        if not values:
            parts.append("Nothing.\n")
            continue
        parts += _table(values)
    plain, guided = _table(of_plain_model()), _table(of_plain_model(four_parameters))
    return "\n".join([*parts, PLAIN, *plain, GUIDED, *guided])


def _table(values: Sequence[Leaving]) -> list[str]:
    """Lines of a table of values, and an empty one."""
    parts = ["| answers | value | shape | what it is |\n|---|---|---|---|"]
    for request, group in groupby(values, attrgetter("request")):
        last_meaning = ""
        for value in group:
            meaning = "" if value.meaning == last_meaning else value.meaning.replace("|", "\\|")
            last_meaning = value.meaning
            parts.append(f"| {request} | `{value.name}` | {value.dimensions} | {meaning} |")
    return [*parts, ""]
