"""Responses and values of a model of a user's own that would be scored or moved otherwise than they read."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from support.federations import blobs, slopes

from hierfl import Federation, Method, UserError
from hierfl.inference import SVI, SampleWeighted, fit
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.nn.networks.build import architecture
from hierfl.ppl.plates import clients, data, param, sample


class Own(Method):
    """A network whose last layer is each client's own."""

    def shared(self, start):
        return dict(start.base)

    def personal(self, start):
        return {"mu": 0.1 * start.head}

    def output(self, batch, w):
        return self.network.head(w, self.network.base(batch.x))

    def respond(self, batch, w):
        sample("y", self.network.likelihood(self.output(batch, w)), obs=batch.y)

    def model(self, batch):
        with clients(batch):
            w = sample("w_j", dist.Normal(batch.n.new_zeros(self.network.head.d), 1.0).to_event(1))
            with data(batch):
                self.respond(batch, w)

    def guide(self, batch):
        with clients(batch):
            sample("w_j", dist.Normal(param("mu"), 0.1).to_event(1))

    def local(self):
        return [SVI(["mu", "base"], epochs=1, optimizer=sgd(0.1))]

    def exchange(self):
        return {"base": SampleWeighted()}


def normal(self, batch, w):
    return dist.Normal(self.output(batch, w)[..., 0], 1.0)


def observes(values):
    return lambda self, batch, w: sample("y", self.network.likelihood(self.output(batch, w)), obs=values(batch))


def in_place(self, batch, w):
    w.mul_(2.0)
    Own.respond(self, batch, w)


def mask_in_place(self, batch, w):
    if batch.mask is not None:
        batch.mask.fill_(True)
    Own.respond(self, batch, w)


def with_event(self, batch, w):
    sample("y", dist.Normal(self.output(batch, w), 1.0).to_event(1), obs=batch.y[..., None])


def bernoulli(self, batch, w):
    sample("y", dist.Bernoulli(logits=self.output(batch, w)[..., 1]), obs=batch.y.to(w.dtype))


def made(change: dict, fed: Federation) -> Method:
    method: Method = type("Mine", (Own,), change)(architecture("mlp:3", fed))
    return method


@pytest.mark.parametrize(
    ("change", "regression", "words"),
    [
        ({"respond": observes(lambda batch: batch.x[..., 0])}, True, "site 'y' observes other values than batch.y"),
        ({"respond": observes(lambda batch: 2 * batch.y)}, True, "site 'y' observes other values than batch.y"),
        ({"respond": observes(lambda batch: 0 * batch.y)}, False, "site 'y' observes other values than batch.y"),
        ({"respond": with_event}, True, r"site 'y' has event shape \(1,\).*no .to_event"),
        ({"respond": bernoulli}, False, "site 'y' is Bernoulli, and labels are of classes: write Categorical"),
        ({"respond": in_place}, False, "changes latent 'w_j' in place"),
        ({"respond": mask_in_place}, False, "changes batch.mask in place"),
        ({"local": lambda self: None}, False, r"Mine.local\(\) returns nothing"),
        ({"shared": lambda self, start: None}, False, r"Mine.shared\(\) returns .name: tensor., not NoneType"),
        ({"personal": lambda self, start: {"mu": 1.0}}, False, r"Mine.personal\(\) returns .*not float as 'mu'"),
    ],
)
def test_what_is_scored_by_other_targets_or_is_no_value_is_one_line(change: dict, regression: bool, words: str) -> None:
    fed = slopes([6, 3]) if regression else blobs([6, 3], classes=2)
    with pytest.raises(UserError, match=words) as error:
        Fit(made(change, fed), fed, Options(rounds=1, dtype=fed.dtype))
    assert "\n" not in str(error.value)


def test_a_right_model_is_not_refused(caplog: pytest.LogCaptureFixture) -> None:
    own = {"respond": lambda self, batch, w: sample("y", normal(self, batch, w), obs=batch.y)}
    for change, fed in (({}, slopes([6, 3])), ({}, blobs([6, 3])), (own, slopes([6, 3]))):
        Fit(made(change, fed), fed, Options(rounds=1, dtype=fed.dtype))
    assert not caplog.messages


def test_a_personal_value_that_no_step_trains_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    fed = blobs([6, 3])
    more = {"personal": lambda self, start: {"mu": 0.1 * start.head, "c": torch.ones(1)}}
    Fit(made(more, fed), fed, Options(rounds=1, dtype=fed.dtype))
    assert caplog.messages == ["'c' stays as it begins for all clients: no local step trains it"]


def test_a_likelihood_of_its_own_of_responses_in_another_unit_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    own = {"respond": lambda self, batch, w: sample("y", normal(self, batch, w), obs=batch.y)}
    fed = Federation.from_arrays(rng.normal(size=(20, 2)), 1e4 + 300 * rng.normal(size=20), np.repeat(["a", "b"], 10))
    fit(made(own, fed), fed, rounds=1, progress=False)
    assert "the model has a likelihood of its own, which sees the responses as they are, mean 1" in caplog.text
