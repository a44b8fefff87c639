"""The table of wrong models on the page "Your own model": what is written, and the line that it gets."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from support import wrong_models

from hierfl import UserError, fit_model

#: a model of tests/support/wrong_models.py, and what is wrong of it in words
WRONG = {
    "client_plate_elsewhere": "the plate of clients at another dim",
    "other_size": "a plate of a number, not of `batch.num_clients`",
    "data_outside_of_client": "rows beside clients, not inside",
    "looped": '`for j in pyro.plate("client", ...)`',
    "flat_clients": "a client's column without its second dimension",
    "no_to_event": "several numbers, without `.to_event(1)`",
    "parameter": "a number of each row by `pyro.param`",
    "twice": "two sites of one name",
    "mistyped": "a column that the table lacks",
    "forgotten_obs": "`obs=` is missing",
    "nothing_observed": "nothing is observed",
    "observed_outside": "a sum over all rows is observed",
    "prior_of_data": "a prior that is made from the data",
    "standardised_by_all": '`batch["x"] - batch["x"].mean()`',
    "centred_over_clients": "latents that sum to zero over clients",
    "neighbours": "`pyro.factor` couples neighbours",
    "process_over_clients": "one Gaussian process over all clients",
    "discrete_global": "a discrete latent of everyone",
    "counted_latent": "a discrete latent without a finite list of values",
    "improper": "an improper prior",
    "moving_bounds": "bounds that another latent sets",
    "no_number": "a logarithm of a negative number",
    "no_slope": "a root behind `torch.where`",
    "impossible_data": "data that the distribution cannot give",
    "python_number": "`mu.item()`",
    "python_branch": "`if mu > 0`",
    "float_index": 'rows by `batch["item"]`, which is not integer',
    "noise": "`torch.randn` in the model",
    "subsampled": "`subsample_size`",
}
#: around the table in the page
BEGIN, END = "<!-- wrong models: made by tests/support/wrong_table.py -->", "<!-- end of wrong models -->"


def rows() -> pd.DataFrame:
    """Four clients: numbers x and y, count, and text in item; one client is long."""
    rng = np.random.default_rng(0)
    site = np.repeat(list("abcd"), [5, 5, 5, 120])
    numbers = {name: rng.normal(size=len(site)).round(3) for name in "xy"}
    item = rng.choice(["one", "three", "two"], len(site))
    return pd.DataFrame({"site": site, **numbers, "count": rng.poisson(2.0, len(site)), "item": item})


def line(name: str) -> str:
    """What a user reads who fits a wrong model."""
    try:
        fit_model(getattr(wrong_models, name), rows(), group="site", progress=False)
    except UserError as refused:
        return re.sub(r"\w+\.py, line \d+", "model.py, line 7", str(refused))
    raise AssertionError(f"{name} was fitted")


def table() -> str:
    """The table."""
    return "\n".join(["| what is written | what is printed |", "|---|---|",
                      *(f"| {what} | `` {line(name)} `` |" for name, what in WRONG.items())])  # fmt: skip


def replaced(page: str) -> str:
    """A page with its table as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"
