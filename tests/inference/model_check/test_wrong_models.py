"""Models of a user's own that would be computed otherwise than they read: each is one line before the first round."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.commands import Call
from support.federations import blobs, slopes
from support.methods import ROOT

from hierfl import Federation, UserError
from hierfl.inference import Method
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.nn.networks.build import architecture

#: the tutorial's method, into which each mistake is put
GOOD = (ROOT / "docs" / "student_t.py").read_text()
IMPORTS = """import numpy as np
import pyro
import pyro.distributions as dist
from torch.distributions import constraints
"""
CLIENTS, DATA = "with clients(batch):\n            w_j", "with data(batch):"
PRIOR = 'sample("w_j", StudentT(df, w, rho).to_event(1))'
GUIDE = 'sample("w_j", Normal(mu, sigma).to_event(1))'
HEAD, RHO, X = "net.head(w_j, net.base(batch.x))", 'param("log_rho").exp()', "net.base(batch.x)"
GLOBALS = 'w, rho = sample("w", flat(net.head.d)), param("log_rho").exp()'
LIKELIHOOD = f'sample("y", net.likelihood({HEAD}), obs=batch.y)'
DENSITY = f"net.likelihood({HEAD}).log_prob(batch.y)"
SHARED, EXCHANGE = '"log_rho": torch.tensor([self.settings.rho_0]).log()', '"log_rho": rule'
#: a shared scale that is a site of its own
SCALE = [(SHARED, '"rho": torch.ones(1)'), (EXCHANGE, '"rho": rule')]
GRADIENT = 'rho = sample("rho", dist.HalfNormal(torch.ones(1, dtype=batch.n.dtype)).to_event(1))'
WRITE_DATA = "write 'with data.batch.:' in its place"


def made(changes: list[tuple[str, str]], fed: Federation, network: str = "mlp:3") -> Method:
    """The tutorial's method with some of its text replaced."""
    text = GOOD
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    names: dict = {"__name__": __name__}
    with torch.random.fork_rng():
        exec(compile(text.replace("import torch\n", IMPORTS + "import torch\n", 1), "own.py", "exec"), names)
    method: Method = names["StudentPopulation"](architecture(network, fed))
    return method


def begun(changes: list[tuple[str, str]], fed: Federation, network: str = "mlp:3") -> None:
    """A fit, checked and ready to run."""
    Fit(made(changes, fed, network), fed, Options(rounds=1, dtype=fed.dtype))


WRONG = {
    # plates of Pyro's: mask, weight of a minibatch and chunk are lost
    "plate": ([(DATA, 'with pyro.plate("data", batch.width, dim=-1):')], f"site 'y' .*plate.'data'.*{WRITE_DATA}"),
    "plate-named-otherwise": (
        [(DATA, 'with pyro.plate("examples", batch.width, dim=-1):')], f"site 'y' .*plate.'examples'.*{WRITE_DATA}",
    ),
    "plate-with-subsample": (
        [(DATA, 'with pyro.plate("data", 100, subsample_size=batch.width, dim=-1):')], f"site 'y' .*{WRITE_DATA}",
    ),
    "plate-with-indices": (
        [(DATA, 'with pyro.plate("data", 100, subsample=batch.column_numbers, dim=-1):')], f"site 'y' .*{WRITE_DATA}",
    ),
    "plate-of-clients": (
        [(CLIENTS, 'with pyro.plate("clients", len(batch.x), dim=-2):\n            w_j')],
        "site 'w_j' of the model .*write 'with clients.batch.:'",
    ),
    "plate-of-clients-in-the-wrong-dimension": (
        [(CLIENTS, 'with pyro.plate("clients", len(batch.x), dim=-1):\n            w_j')],
        "plate.*'with clients.batch.:'",
    ),
    "plate-one-after-another": (
        [(DATA, 'for i in pyro.plate("data", batch.width):'),
         (LIKELIHOOD, f'sample(f"y_{{i}}", net.likelihood({HEAD}[:, i:i+1]), obs=batch.y[:, i:i+1])')],
        "site 'y_0' .*pyro.plate.'data'",
    ),
    "no-plate-of-clients": ([(CLIENTS, "if True:\n            w_j")], "'w_j' is in the guide's client plate"),
    "data-outside-clients": (
        [(CLIENTS, "if True:\n            w_j"), (PRIOR, "w"), (f"with clients(batch):\n            {GUIDE}", "pass")],
        "site 'y' .*in no client's",
    ),
    # parameters that Pyro would treat otherwise
    "constraint": (
        [(RHO, 'param("rho", constraint=constraints.positive)'), *SCALE],
        "param 'rho' has a constraint .positive.*log_rho.*exp",
    ),
    "constraint-in-the-guide": (
        [('softplus(param("pi"))', 'param("pi", constraint=dist.constraints.softplus_positive)')],
        "param 'pi' has a constraint",
    ),
    "own-initial-value": (
        [('param("log_rho")', 'param("log_rho", torch.zeros(1))')], r"param 'log_rho' .*not used.*shared\(\)",
    ),
    # rows and padding
    "number-of-rows": (
        [(PRIOR, PRIOR.replace("rho)", "rho / len(batch.x))"))], "site 'w_j' mixes clients.*len.batch.x",
    ),
    "mean-over-rows": (
        [(X, "net.base(batch.x - batch.x.mean((0, 1)))")], "site 'y' mixes clients",
    ),
    "width": ([(HEAD, f"{HEAD} * batch.width")], "site 'y' changes when .*padded to 4.*batch.width"),
    "mean-over-padding": (
        [(X, "net.base(batch.x - batch.x.mean(1, keepdim=True))")], "site 'y' changes when .* padded",
    ),
    "likelihood-without-mask": (
        [(DATA, f'pyro.factor("all", {DENSITY}.sum(-1, keepdim=True))\n            with data(batch):')],
        "site 'all' changes when .* padded",
    ),
    "likelihood-without-weight": (
        [(DATA, f'pyro.factor("all", ({DENSITY} * (1 if batch.mask is None else batch.mask)).sum(-1, keepdim=True))\n'
          "            with data(batch):")],
        "site 'all' is a sum over examples outside the data plate",
    ),
    "scale-undone": (
        [(LIKELIHOOD, f'with pyro.poutine.scale(scale=1 if batch.scale is None else 1 / batch.scale):\n'
          f"                    {LIKELIHOOD}")],
        "site 'y' does not count twice",
    ),
    "mean-over-draws": (
        [(HEAD, "net.head(w_j.mean(0), net.base(batch.x))")], "site 'y' changes with the number of draws",
    ),
    "dimension-from-the-left": (
        [(HEAD, f"{HEAD} - {HEAD}.mean(2, keepdim=True)")], "site 'y' changes with the number of draws.*from the right",
    ),
    # predictions
    "mean-over-examples": (
        [(X, "net.base(batch.x - (batch.x * (m := torch.ones_like(batch.y) if batch.mask is None else batch.mask)"
          "[..., None]).sum(1, keepdim=True) / m.sum(1)[:, None, None])")],
        "in site 'y' depends on the other examples",
    ),
    "first-example": ([(X, "net.base(batch.x - batch.x[:, :1])")], "depends on the other examples"),
    "targets": (
        [(HEAD, f"{HEAD} + torch.nn.functional.one_hot(batch.y, 3)")], "in site 'y' depends on batch.y",
    ),
    "size-of-a-client": (
        [(HEAD, f"{HEAD} * batch.n.log()[:, None, None]")], "the global model .* depends on batch.n.*has_global_model",
    ),
    "prior-without-mean": ([(PRIOR, PRIOR.replace("df", "0.5"))], "the global model .* not finite.*global_draws"),
    # random numbers
    "torch-rand": ([(HEAD, f"{HEAD} + 0.01 * torch.rand(())")], "random numbers outside of its sites .from torch's"),
    "numpy-random": ([(HEAD, f"{HEAD} + np.random.rand()")], "random numbers outside of its sites .from numpy's"),
    "dropout": ([(X, f"torch.nn.functional.dropout({X}, 0.5)")], "random numbers .*give dropout to the network"),
    "own-generator": (
        [(HEAD, f"{HEAD} * GENERATOR.normal()"), ("class Stud", "GENERATOR = np.random.default_rng()\n\n\nclass Stud")],
        "site 'y' changes when the same client is computed again",
    ),
    # what is not trained, or not kept
    "module-of-its-own": (
        [(HEAD, f"MODULE({HEAD})"), ("class Stud", "MODULE = torch.nn.Linear(3, 3).double()\n\n\nclass Stud")],
        "site 'y' depends on weights of a torch module",
    ),
    "in-place": ([(X, "net.base(batch.x.sub_(1.0))")], "changes batch.x in place"),
    "row-of-a-table": (
        [(SHARED, f'{SHARED}, "table": torch.ones(7, 1, 12)'),
         (PRIOR, PRIOR.replace("w,", 'w + param("table")[:len(batch.x)],'))],
        "site 'w_j' mixes clients",
    ),
    "table-of-all-clients": (
        [(SHARED, f'{SHARED}, "table": torch.ones(4, 1, 12)'), (PRIOR, PRIOR.replace("w,", 'w + param("table"),'))],
        "does not run on 7 padded clients.*RuntimeError: The size of tensor.*any number of clients",
    ),
    "shape-of-the-response": (
        [(LIKELIHOOD, 'sample("y", Normal(batch.x[..., 0] + 0 * w_j[..., 0], 1.0), obs=batch.y[..., :1].double())')],
        "site 'y' observes values of shape .7, 1.",
    ),
    # sites and shapes
    "response-outside-the-data-plate": ([(DATA, "if True:")], "site 'y' .* write 'with data.batch.:' around it"),
    "no-event-in-the-model": ([(PRIOR, PRIOR.replace(".to_event(1)", ""))], "site 'w_j' .*to_event"),
    "no-event-in-the-guide": ([(GUIDE, GUIDE.replace(".to_event(1)", ""))], "site 'w_j' .*to_event"),
    "other-event-in-the-guide": (
        [(GUIDE, 'sample("w_j", Normal(mu[..., :1], 1.0).to_event(1))')], "latent site 'w_j' has event shape .1,.",
    ),
    "the-same-site-twice": (
        [(CLIENTS, 'with clients(batch):\n            sample("w_j", Normal(w, 1.0).to_event(1))\n            w_j')],
        "site 'w_j' is there twice in the model",
    ),
    "guide-lacks-a-site": (
        [(CLIENTS, 'with clients(batch):\n            b = sample("b", Normal(0.0, 1.0))\n            w_j')],
        "latent site 'b' of the model is not in the guide",
    ),
    "latent-of-examples-in-the-model-alone": (
        [(f"w_j = {PRIOR}\n            {DATA}", f"{DATA}\n                w_j = {PRIOR}")],
        "'w_j' is in the data plate of the model, but not of the guide",
    ),
    "global-in-the-client-plate": (
        [(GLOBALS, f"rho = {RHO}"),
         (CLIENTS, 'with clients(batch):\n            w = sample("w", flat(net.head.d))\n            w_j')],
        "site 'w' is a shared value, but is sampled in the client plate",
    ),
    "global-in-the-guide": (
        [("with clients(batch):\n            sample", 'sample("w", dist.Delta(param("mu").mean((0, 1))).to_event(1))\n'
          "        with clients(batch):\n            sample")],
        "guide site 'w' is a value that shared.* declares",
    ),
    "factor-in-the-guide": (
        [(GUIDE, f'{GUIDE}\n            pyro.factor("f", mu.sum(-1), has_rsample=True)')], "guide site 'f' is observed",
    ),
    # supports
    "shared-scale-by-gradients": (
        [(GLOBALS, f'w = sample("w", flat(net.head.d))\n        {GRADIENT}'), *SCALE],
        "site 'rho' has a bounded support .not negative.*gradient steps.*logarithm",
    ),
    "shared-scale-starts-outside": (
        [(GLOBALS, f'w = sample("w", flat(net.head.d))\n        {GRADIENT}'), (EXCHANGE, '"base": SampleWeighted()'),
         (', "base": SampleWeighted()}', "}"), (SHARED, '"rho": -torch.ones(1)')],
        "site 'rho' starts at -1, outside the support",
    ),
    "guide-outside-the-support": (
        [(PRIOR, 'sample("w_j", dist.Gamma(1 + 0 * w.exp(), rho).to_event(1))')],
        "guide site 'w_j' draws values outside the support",
    ),
    "point-that-leaves-the-support": (
        [(PRIOR, 'sample("w_j", dist.Gamma(1 + 0 * w.exp(), rho).to_event(1))'),
         (GUIDE, 'sample("w_j", dist.Delta(mu).to_event(1))'), ('"mu": 0.1 * start.head', '"mu": start.head.exp()')],
        "guide site 'w_j' is a point that leaves the support",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_model_is_one_line(name: str) -> None:
    changes, words = WRONG[name]
    with pytest.raises(UserError, match=words) as error:
        begun(changes, blobs([6, 3, 2, 4]))
    assert "\n" not in str(error.value)


def test_responses_outside_their_support_are_named() -> None:
    changes = [(LIKELIHOOD, f'sample("y", dist.Poisson({HEAD}.squeeze(-1).exp()), obs=batch.y)')]
    with pytest.raises(UserError, match="site 'y' observes -?[0-9.]+, outside the support of its distribution, "):
        begun(changes, slopes([6, 3]))


UNTRAINED = {
    "not asked for": ([('softplus(param("pi"))', "torch.tensor(0.1)")], "'pi'"),
    "detached": ([(RHO, f"{RHO}.detach()")], "'log_rho'"),
    "as data": ([(RHO, f"torch.from_numpy({RHO}.detach().numpy())")], "'log_rho'"),
}


@pytest.mark.parametrize("name", UNTRAINED)
def test_values_that_no_gradient_reaches_are_one_warning(name: str, caplog: pytest.LogCaptureFixture) -> None:
    changes, value = UNTRAINED[name]
    begun(changes, blobs([6, 3]))
    (line,) = caplog.messages
    assert line.startswith(f"{value} stays as it is: it is to be trained, but no gradient reaches it")


RIGHT = {
    "as it is": [],
    "dropout of the network": [],
    "weights by hand": [
        (DATA, f'pyro.factor("all", ({DENSITY} * (1 if batch.mask is None else batch.mask)).sum(-1, keepdim=True)'
         " * (1 if batch.scale is None else batch.scale))\n            with data(batch):"),
    ],
    "a tempered likelihood": [(LIKELIHOOD, f"with pyro.poutine.scale(scale=0.5):\n                    {LIKELIHOOD}")],
    "a prior that knows how many examples": [(PRIOR, PRIOR.replace("rho)", "rho * batch.n.rsqrt()[:, None, None])"))],
    "pyro's plate around globals": [
        (GLOBALS, f'rho = {RHO}\n        with pyro.plate("features", net.head.d):\n'
         '            w = sample("w", Normal(0 * rho, 9.0))'),
    ],
    "no constraint": [(RHO, 'param("log_rho", constraint=constraints.real_vector).exp()')],
    "the same initial value": [(RHO, 'param("log_rho", torch.tensor([0.1]).log()).exp()')],
    "a positive latent with a positive guide": [
        (PRIOR, 'sample("w_j", dist.Gamma(1 + 0 * w.exp(), rho).to_event(1))'),
        (GUIDE, 'sample("w_j", dist.LogNormal(mu, sigma).to_event(1))'),
    ],
    "a positive point": [
        (PRIOR, 'sample("w_j", dist.Gamma(1 + 0 * w.exp(), rho).to_event(1))'),
        (GUIDE, 'sample("w_j", dist.Delta(mu.exp() + 0 * sigma).to_event(1))'),
    ],
    "no global model": [
        (HEAD, f"{HEAD} * batch.n.log()[:, None, None]"),
        ("local_copies =", "has_global_model = False\n    local_copies ="),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_model_is_not_refused(name: str, caplog: pytest.LogCaptureFixture) -> None:
    network = "mlp:3,dropout=0.5" if name.startswith("dropout") else "mlp:3"
    begun(RIGHT[name], blobs([6, 3, 2, 4]), network)
    begun(RIGHT[name], blobs([5]).to(dtype=torch.float32), network)  # one client: seven of its rows
    assert not caplog.messages


def test_a_command_shows_the_line(tmp_path: Path, hierfl: Call) -> None:
    """In place of data(batch), of the digits' 97 % of accuracy two thirds were lost, and nothing was said of it."""
    wrong = GOOD.replace(DATA, 'with pyro.plate("data", batch.width, dim=-1):')
    (tmp_path / "my_method.py").write_text(wrong.replace("import torch\n", "import pyro\nimport torch\n", 1))
    code, _, err = hierfl("run", "my_method.py", "--rounds", "1", "--network", "mlp:4", "--out", "run")
    assert code == 2
    assert "site 'y' of the model is in pyro.plate('data')" in err
    assert not (tmp_path / "run").exists()
