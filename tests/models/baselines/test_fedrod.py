"""FedROD: a balanced head for all, a residual head of one's own."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from support.baselines import WHOLE, assert_resumed_is_the_same, fitted, linear, rows_of
from support.federations import blobs, pictures
from support.methods import largest_first, order_of
from support.rounds import Rounds
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.inference import SVI
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.class_counts import ClassCounts
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import FedAvg, FedROD
from hierfl.models.baselines.fedrod import log_shares
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture

COMMON = {"epochs": 2, "lr": 0.05, "batch": 4}


class SecondFedAvg(FedAvg):
    """FedAvg whose steps come second, as FedROD's do: the same minibatches."""

    def local(self) -> list:
        return [SVI([], 0, sgd(0.1)), *super().local()]


@pytest.fixture
def skewed() -> Federation:
    """Classes are unequal, the second client has one alone, the third lacks one."""
    fed = blobs([23, 12, 9, 14, 2])
    kept = [
        [t[: 5 + 3 * j] for t in (index[fed.y[index] == k] for k in classes)]
        for j, (index, classes) in enumerate(zip(fed.train, [(0, 1, 2), (2,), (0, 2), (2, 1, 0), (0, 1)], strict=True))
    ]
    kept[0][1] = kept[0][1][:1]  # of a present class a single example
    return dataclasses.replace(fed, train=[torch.cat(parts) for parts in kept])


def counts_of(fed: Federation, j: int) -> list[int]:
    return torch.bincount(fed.y[fed.train[j]], minlength=fed.classes).tolist()


@pytest.mark.parametrize("batch", [4, WHOLE])
def test_with_balanced_clients_the_global_model_is_fedavgs(batch: int) -> None:
    fed = blobs([24, 6, 3, 15, 15, 9])
    net = architecture("mlp:5", fed)
    rod = fitted(FedROD(net, **{**COMMON, "batch": batch}), fed, 3)
    other = FedAvg if batch == WHOLE else SecondFedAvg
    avg = fitted(other(net, **{**COMMON, "batch": batch}), fed, 3)
    assert rod.shared.keys() == avg.shared.keys()
    for name, value in avg.shared.items():
        torch.testing.assert_close(rod.shared[name], value, rtol=1e-12, atol=1e-14)
    a, b = rod.evaluations[-1], avg.evaluations[-1]
    assert a["gm_nll"] == pytest.approx(b["gm_nll"], rel=1e-10)
    assert a["pm_nll"] != pytest.approx(a["gm_nll"], rel=1e-3)


def test_with_unequal_classes_it_is_not(skewed: Federation) -> None:
    net = architecture("mlp:5", skewed)
    rod, avg = fitted(FedROD(net, **COMMON), skewed, 2), fitted(SecondFedAvg(net, **COMMON), skewed, 2)
    assert (rod.shared["w"] - avg.shared["w"]).abs().max() > 1e-2


def test_nothing_global_learns_from_the_personal_head(skewed: Federation) -> None:
    """Neither from its training, nor from where it is: the same bits."""

    class Untrained(FedROD):
        def local(self) -> list:
            return [ClassCounts("class_counts"), self.sgd("w", "base")]

    class Elsewhere(FedROD):
        def personal(self, start: InitialWeights) -> dict:
            return {**super().personal(start), "delta": 5 * start.head}

    net = architecture("mlp:5", skewed)
    runs = [fitted(cls(net, **COMMON), skewed, 3, participation=0.7) for cls in (FedROD, Untrained, Elsewhere)]
    assert (runs[1].personal["delta"] == 0).all()
    assert (runs[0].personal["delta"].abs().amax(1) > 1e-3).all()
    for run in runs[1:]:
        assert all(torch.equal(v, runs[0].shared[k]) for k, v in run.shared.items())


def features(values: dict[str, Tensor], x: Tensor) -> Tensor:
    """mlp:5 by hand."""
    return (x @ values["weight"].T + values["bias"]).relu()


def logits(head: Tensor, z: Tensor, classes: int) -> Tensor:
    cut = classes * z.shape[-1]
    return z @ head[:cut].view(classes, -1).T + head[cut:]


def balanced_loss(h: Tensor, y: Tensor, counts: list[int]) -> Tensor:
    """Mean of -log (n_y exp h_y / sum over the client's classes of n_k exp h_k)."""
    present = [k for k, n in enumerate(counts) if n]
    whole = sum(counts[k] * h[:, k].exp() for k in present)
    own = torch.stack([counts[int(k)] * row[int(k)].exp() for row, k in zip(h, y, strict=True)])
    return -(own / whole).log().mean()


def trained(
    fed: Federation, chunk: ClientChunk, w: Tensor, base: dict[str, Tensor], delta: Tensor
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """What a client makes of a round: each minibatch first for the global loss, then, from before, for its own."""
    (j,) = chunk.clients
    x, y = fed.examples(fed.train[j])
    for epoch in range(2):
        for batch in order_of(chunk, 0, 1, epoch).split(4):
            w, base = w.detach().requires_grad_(), {k: v.detach().requires_grad_() for k, v in base.items()}
            h = logits(w, features(base, x[batch]), 3)
            z = features({k: v.detach() for k, v in base.items()}, x[batch])
            slopes = torch.autograd.grad(balanced_loss(h, y[batch], counts_of(fed, j)), [w, *base.values()])
            delta = delta.detach().requires_grad_()
            p = (h.detach() + logits(delta, z, 3)).softmax(-1)
            own = -p[torch.arange(len(batch)), y[batch]].log().mean()
            delta = delta - 0.05 * torch.autograd.grad(own, delta)[0]
            w = w - 0.05 * slopes[0]
            base = {k: v - 0.05 * g for (k, v), g in zip(base.items(), slopes[1:], strict=True)}
    return w.detach(), {k: v.detach() for k, v in base.items()}, delta.detach()


def test_a_round_is_a_plain_loop_of_the_papers_formulas(skewed: Federation) -> None:
    """Clients of unequal sizes, some of which report; everybody's personal head trains."""
    net = architecture("mlp:5", skewed)
    method = FedROD(net, momentum=0.0, **COMMON)
    ready = Fit(method, skewed, Options(rounds=3, participation=0.5, dtype=torch.float64, evaluate_every=10))
    for _ in range(3):
        shared = {k: v.clone() for k, v in ready.state.shared.items()}
        deltas = ready.fitted().personal["delta"].clone()
        ready.step()
        reported = ready.journal.status[-1].bool()
        assert 0 < reported.sum() < skewed.clients
        base = {k: shared[f"base.1.{k}"] for k in ("weight", "bias")}
        sums: dict[str, Tensor] = {}
        for j in range(skewed.clients):
            chunk = ClientChunk(method, skewed, [j], ready.journal.round, 0, {}, {})
            w_j, base_j, delta = trained(skewed, chunk, shared["w"], base, deltas[j])
            torch.testing.assert_close(ready.fitted().personal["delta"][j], delta, rtol=1e-9, atol=1e-12)
            if reported[j]:
                sent = {"w": w_j, **{f"base.1.{k}": v for k, v in base_j.items()}}
                sums = {k: sums.get(k, 0) + len(skewed.train[j]) * v for k, v in sent.items()}
        total = sum(len(skewed.train[j]) for j in reported.nonzero().flatten().tolist())
        for name, value in sums.items():
            torch.testing.assert_close(ready.state.shared[name], value / total, rtol=1e-9, atol=1e-12)


def test_classes_are_counted_in_all_of_a_clients_training_data(skewed: Federation) -> None:
    """However long the last minibatch, and whoever is in the plate: a loader that drops it may lose a class."""
    for chunk_size in (1, 2, 5):
        run = fitted(FedROD(architecture("mlp:5", skewed), epochs=1, batch=7), skewed, 1, chunk=chunk_size)
        for j, counts in enumerate(run.personal["class_counts"]):
            assert counts.tolist() == counts_of(skewed, j)
            assert sum(counts_of(skewed, j)) == len(skewed.train[j])


def test_class_counts_are_not_sent(skewed: Federation) -> None:
    method = FedROD(architecture("mlp:5", skewed))
    chunk = rows_of(method, skewed)
    server = Rounds(method, skewed, chunk.shared, {k: v[0, 0] for k, v in chunk.values.items()})
    for number, step in enumerate(method.local()):
        chunk = step.run(chunk, number)
    sent = {key for message in server.messages(chunk).values() for key in message}
    assert sent == {"w", "weight", *method.network.base.names}


def test_a_class_that_a_client_lacks_is_absent_from_its_global_softmax(skewed: Federation) -> None:
    """Its logit moves by nothing, forward or backward, and everything is finite; padded rows change nothing."""
    shares = log_shares(torch.tensor([[[2.0, 0.0, 4.0]], [[1.0, 1.0, 1.0]]]))
    assert shares[0, 0].tolist() == [0.0, -math.inf, pytest.approx(math.log(2))]
    assert (shares[1] == 0).all()
    method = FedROD(architecture("linear", skewed), momentum=0.0, **COMMON)
    chunk = rows_of(method, skewed)
    for number, step in enumerate(method.local()):
        chunk = step.run(chunk, number)
    assert all(v.isfinite().all() for v in chunk.values.values())
    weight = chunk.values["w"][:, 0, :12].view(5, 3, 4) - chunk.shared["w"][:12].view(3, 4)
    for row, j in enumerate(chunk.clients):
        present = torch.tensor(counts_of(skewed, j)) > 0
        moved = weight[row].abs().amax(1) > 0
        # One class alone has probability 1 and no gradient.
        assert moved.tolist() == (present & (present.sum() > 1)).tolist()
    assert chunk.clients == largest_first(skewed)


def test_the_two_models_logits(skewed: Federation) -> None:
    run = fitted(FedROD(architecture("mlp:5", skewed), **COMMON), skewed, 2)
    base = {k: run.shared[f"base.1.{k}"] for k in ("weight", "bias")}
    for j, delta in enumerate(run.personal["delta"]):
        x = skewed.examples(skewed.test[j])[0]
        h = logits(run.shared["w"], features(base, x), 3)
        own = h + logits(delta, features(base, x), 3)
        predictions = run.predict(x, client=skewed.ids[j]).double()
        torch.testing.assert_close(predictions, own.softmax(-1), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(run.predict_new_client(x).double(), h.softmax(-1), rtol=1e-9, atol=1e-12)
    x, y = skewed.examples(skewed.global_test)
    h = logits(run.shared["w"], features(base, x), 3)
    nll = -h.log_softmax(-1)[torch.arange(len(y)), y].mean()
    assert run.evaluations[-1]["gm_nll"] == pytest.approx(float(nll), rel=1e-9)


def test_a_new_client_fits_a_residual_head(skewed: Federation) -> None:
    run = fitted(FedROD(architecture("mlp:5", skewed), **COMMON), skewed, 2)
    before = {k: v.clone() for k, v in run.shared.items()}
    x, y = (part.numpy() for part in skewed.examples(skewed.train[1]))
    alone = run.predict_new_client(x)
    known = run.predict_new_client(x, given=(x, y), rounds=5)
    assert (known[:, 2] > alone[:, 2]).all()  # its only class
    assert all(torch.equal(v, before[k]) for k, v in run.shared.items())


def test_a_resumed_run_is_the_same(skewed: Federation, tmp_path: Path) -> None:
    assert_resumed_is_the_same(FedROD(architecture("mlp:5", skewed), **COMMON), skewed, tmp_path, 0.6)


def test_networks_and_data_that_fit(lines: Federation, skewed: Federation) -> None:
    with pytest.raises(UserError, match="fedrod balances classes: data with labels"):
        FedROD(linear(lines))
    run = fitted(FedROD(architecture("mlp:6,dropout=0.5", skewed), **COMMON), skewed, 2)
    assert all(v.isfinite().all() for v in run.shared.values())
    fed = pictures()
    net: Architecture = architecture("bncnn:2:5", fed)
    run, start = fitted(FedROD(net, epochs=1), fed, 1), InitialWeights.for_network(net, 0).base
    assert all((run.shared[k] - start[k]).abs().max() > 1e-6 for k in net.base.names if k.endswith("running_mean"))
