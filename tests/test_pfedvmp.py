"""pFedVMP: Eq. 9, a round by hand, what is sent of classes that a client lacks, and its limits."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import Call
from support.rounds import rejections
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hierfl import Federation, UserError
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.minibatches import plan
from hierfl.inference.evaluation.features import features
from hierfl.inference.evaluation.new_client import fit_new_client
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.objective.log_joint import global_log_prob
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.server.exchange import Exchange
from hierfl.inference.server.participation import draw_participants
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.state import client_view
from hierfl.models import FedPer, PFedV, PFedVMP
from hierfl.nn.networks.build import architecture

SIZES, CLASSES = (14, 9, 6), 4


def bumps(sizes: tuple[int, ...] = SIZES, seed: int = 0, test: float = 0.0) -> Federation:
    """Four bumps in five dimensions; clients have two or three of them, the last class belongs to the first alone."""
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(n) % (3 - (j > 0)) + (j > 0) * (j - 1) for j, n in enumerate(sizes)])
    y[: sizes[0]][y[: sizes[0]] == 2] = 3
    x = 3 * np.eye(5)[y] + rng.normal(size=(len(y), 5))
    who = np.repeat([f"c{j}" for j in range(len(sizes))], sizes)
    return Federation.from_arrays(x.astype(np.float32), y, who, test=test)


def method_of(fed: Federation, **settings: object) -> PFedVMP:
    return PFedVMP(architecture("mlp:6", fed), **settings)


class Torch(nn.Module):
    """The network as anybody would write it, for one client."""

    def __init__(self, method: PFedVMP, values: dict[str, Tensor], head: Tensor) -> None:
        super().__init__()
        self.base = copy.deepcopy(method.network.base.module).double().requires_grad_(True)
        f = method.features
        with torch.random.fork_rng(devices=[]):
            self.head = nn.Linear(f, CLASSES).double()
        with torch.no_grad():
            for name, p in self.base.named_parameters():
                p.copy_(values[f"base.{name}"])
            self.head.weight.copy_(head[: CLASSES * f].view(CLASSES, f))
            self.head.bias.copy_(head[CLASSES * f :])

    def loss(self, x: Tensor, y: Tensor, xi: float, mu: Tensor, known: Tensor) -> Tensor:
        """Eq. 9, summed, the distance summed over features."""
        z = self.base(x)
        distance = (z - mu[y]).square().sum(-1) * known[y]
        return (cross_entropy(self.head(z), y, reduction="none") + xi * distance).sum()


@pytest.mark.parametrize("distance", ["sum", "mean"])
def test_the_objective_is_equation_9(distance: str) -> None:
    """Value up to the Gaussians' constant, and every gradient; a class without a centroid pulls at nothing."""
    fed = bumps().to(dtype=torch.float64)
    method = method_of(fed, xi=0.7, distance=distance)
    assert fed.classes == CLASSES
    assert {int(k) for k in fed.y[fed.train[2]]} == {1, 2}
    start, rng = InitialWeights.of(method.network, 3), torch.Generator().manual_seed(0)
    shared = {k: v.double() for k, v in method.shared(start).items()}
    mu = torch.randn(CLASSES, method.features, dtype=torch.float64, generator=rng)
    shared |= {"centroids": mu, "counts": torch.tensor([3.0, 0.0, 2.0, 1.0], dtype=torch.float64)}
    chunk = ClientChunk(method, fed, [0, 1, 2], 1, 0, shared, {})
    chunk = chunk.put({"w_j_point": torch.randn(3, 1, method.network.head.d, dtype=torch.float64, generator=rng)})
    chunk = chunk.own([k for k in shared if k.startswith("base")])
    leaves = {k: v.requires_grad_() for k, v in chunk.values.items()}
    ours = elbo(method, chunk.batch(), client_view(shared, leaves), None)
    gradients = torch.autograd.grad(-ours.sum(), list(leaves.values()))
    known, xi = shared["counts"] > 0, 0.7 / (method.features if distance == "mean" else 1)
    spread = torch.distributions.Normal(0.0, method.spread)
    for j in range(3):
        client = Torch(method, {k: v[j, 0] for k, v in leaves.items()}, leaves["w_j_point"][j, 0])
        index = fed.train[j]
        theirs = client.loss(fed.x[index].double(), fed.y[index], xi, mu, known)
        constant = spread.log_prob(torch.tensor(0.0)).double() * method.features * known[fed.y[index]].sum()
        assert torch.isclose(-ours[j] + constant, theirs, rtol=1e-6)
        theirs.backward()
        found = dict(zip(leaves, (g[j, 0] for g in gradients), strict=True))
        for name, p in client.base.named_parameters():
            assert torch.allclose(found[f"base.{name}"], p.grad, rtol=1e-9, atol=1e-12), name
        head = torch.cat([client.head.weight.grad.flatten(), client.head.bias.grad])
        assert torch.allclose(found["w_j_point"], head, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("precision", "more"),
    [("full", {}), ("full", {"alpha": 0.3, "cutoff": 0.05, "prior_precision": 2.0}), ("diagonal", {}), ("count", {}),
     ("equal", {"prior_precision": 0.5}), ("full", {"distance": "mean", "momentum": 0.5, "prior_precision": 2.0})],
)  # fmt: skip
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_rounds_by_hand(precision: str, more: dict[str, object], participation: float) -> None:
    """Rounds, client after client in plain torch, products of densities by their formula.

    Where half of them report, classes are first heard of late, and missing in later rounds.
    """
    fed, seed, rounds = bumps(), 3, 3 if participation == 1 else 6
    given = {"xi": 0.2, "distance": "sum", "lr": 0.05, "batch": 4, "epochs": 2, **more}
    method = method_of(fed, precision=precision, **given)
    run = fit(
        method, fed, rounds=rounds, chunk=3, dtype=torch.float64, progress=False, seed=seed, participation=participation
    )
    s, start, d = method.settings, InitialWeights.of(method.network, 3), method.features
    base = {k: v.double() for k, v in start.base.items()}
    heads = dict.fromkeys(range(3), 0.1 * start.head)
    mu, counts = torch.zeros(CLASSES, d, dtype=torch.float64), torch.zeros(CLASSES, dtype=torch.float64)
    xi, kept = s.xi / (d if s.distance == "mean" else 1), 0
    for t in range(1, rounds + 1):
        reporting = draw_participants(fed.ids, t, seed, participation, 1)
        n_all = sum(fed.sizes()[j] for j in reporting)
        totals: dict[str, Tensor] = {}
        top = s.prior_precision * torch.eye(d).double().repeat(CLASSES, 1, 1)
        down = torch.zeros(CLASSES, d, dtype=torch.float64)
        heard = torch.zeros_like(counts)
        for j, n in enumerate(fed.sizes()):
            client = Torch(method, base, heads[j])
            optimizer = torch.optim.SGD(client.parameters(), lr=0.05, momentum=s.momentum)
            chunk = ClientChunk(method, fed.to(dtype=torch.float64), [j], t, seed, {}, {})
            for step in plan(chunk, 0, 0, 4, 2):
                index = fed.train[j][step[step >= 0]]
                optimizer.zero_grad()
                (client.loss(fed.x[index].double(), fed.y[index], xi, mu, counts > 0) / len(index)).backward()
                optimizer.step()
            heads[j] = torch.cat([client.head.weight.flatten(), client.head.bias]).detach()
            if j not in reporting:
                continue
            for name, value in client.base.named_parameters():
                totals[name] = totals.get(name, 0) + n / n_all * value.detach()
            x, y = fed.x[fed.train[j]].double(), fed.y[fed.train[j]]
            with torch.no_grad():
                z = client.base(x)
            for k in set(y.tolist()):
                own = z[y == k]
                sigma = torch.cov(own.mT, correction=0) if len(own) > 1 else torch.zeros(d, d, dtype=torch.float64)
                precision_k = {
                    "full": torch.linalg.pinv(sigma, rtol=s.cutoff, hermitian=True) + s.alpha * torch.eye(d),
                    "diagonal": torch.linalg.pinv(sigma.diagonal().diag(), rtol=s.cutoff) + s.alpha * torch.eye(d),
                    "count": len(own) * torch.eye(d),
                    "equal": torch.eye(d),
                }[precision].double()
                top[k] += precision_k
                down[k] += precision_k @ own.mean(0)
                heard[k] += len(own)
        base = {f"base.{k}": v for k, v in totals.items()}
        kept += int(((heard == 0) & (counts > 0)).any())
        for k in heard.nonzero().flatten().tolist():
            mu[k], counts[k] = torch.linalg.solve(top[k], down[k]), heard[k]
    assert (kept > 0) == (participation < 1)  # some class was missing in a later round
    for name, value in base.items():
        assert torch.allclose(run.shared[name], value, atol=1e-8), name
    assert torch.allclose(run.shared["centroids"], mu, atol=1e-7)
    assert torch.equal(run.shared["counts"], counts)
    for j in range(3):
        assert torch.allclose(run.personal["w_j_point"][j], heads[j], atol=1e-8)


def test_the_first_round_knows_no_centroids() -> None:
    """It is FedPer's; without a centroid factor every round is."""
    fed = bumps()
    how = {"rounds": 1, "dtype": torch.float64, "progress": False}
    ours = fit(method_of(fed, xi=5.0), fed, **how)
    none = fit(method_of(fed, prior="flat"), fed, **how)
    fedper = FedPer(architecture("mlp:6", fed), epochs=1, lr=0.01, batch=10, momentum=0.0)
    theirs = fit(fedper, fed, **how)
    for name in ("base.1.weight", "base.1.bias"):
        assert torch.equal(ours.shared[name], none.shared[name])
        assert torch.equal(none.shared[name], theirs.shared[name])
    assert torch.equal(none.personal["w_j_point"], theirs.personal["mu"])
    assert none.shared.keys() == {"base.1.weight", "base.1.bias"}
    later = [fit(m, fed, **{**how, "rounds": 4}) for m in (method_of(fed, xi=5.0), method_of(fed, prior="flat"))]
    assert not torch.allclose(later[0].shared["base.1.weight"], later[1].shared["base.1.weight"], atol=1e-3)


def test_a_fixed_prior_never_moves() -> None:
    """Centroids at zero: a penalty on the features' size, for every class."""
    fed = bumps()
    fixed = fit(method_of(fed, prior="fixed", xi=20.0, lr=0.05), fed, rounds=20, progress=False)
    flat = fit(method_of(fed, prior="flat", lr=0.05), fed, rounds=20, progress=False)
    assert "centroids" not in fixed.shared
    sizes = []
    for run in (fixed, flat):
        base = run.fitted.method.network.base
        weights = {k: run.shared[f"base.{k}"] for k in ("1.weight", "1.bias")}
        sizes.append(float(base.apply(weights, fed.x[None]).square().mean()))
    assert sizes[0] < 0.2 * sizes[1]


def test_what_is_sent() -> None:
    """A client says nothing of classes that it lacks, and a plate's width changes nothing."""
    fed = bumps().to(dtype=torch.float64)
    for precision, numbers in (("full", 6 * 7 // 2), ("diagonal", 6), ("count", 1)):
        method = method_of(fed, precision=precision)
        shared = {k: v.double() for k, v in method.shared(InitialWeights.of(method.network, 0)).items()}
        head = torch.zeros(3, 1, method.network.head.d, dtype=torch.float64)
        chunk = ClientChunk(method, fed, [0, 1, 2], 1, 0, shared, {"w_j_point": head})
        rule = method.exchange()["centroids"]
        sent = rule.message(["centroids"], chunk)
        assert sent["precision"].shape == (3, CLASSES, numbers)
        group = Exchange(method.exchange(), method.pipeline(), method.expand, shared).sending["centroids"]
        declared = sum(field.nbytes for field in group.pipeline.sent.values())
        assert declared == sum(v[0].nbytes for v in sent.values()) == 8 * CLASSES * (6 + numbers)
        counts = method.exchange()["counts"].message(["counts"], chunk)["counts"]
        for j in range(3):
            there = torch.bincount(fed.y[fed.train[j]], minlength=CLASSES)
            assert torch.equal(counts[j], there.double())
            for key, value in sent.items():
                assert torch.equal(value[j].abs().sum(-1) > 0, there > 0), key
            alone = rule.message(["centroids"], chunk.take([j]))
            assert all(torch.allclose(alone[k][0], sent[k][j], rtol=1e-10) for k in sent)
    runs = [fit(method_of(bumps(), lr=0.05), bumps(), rounds=3, chunk=c, progress=False) for c in (1, 3)]
    assert torch.allclose(runs[0].shared["centroids"], runs[1].shared["centroids"], atol=1e-4)


def test_a_class_that_nobody_reports_stays() -> None:
    fed = bumps()
    method = method_of(fed, lr=0.05)
    first = fit(method, fed, rounds=2, progress=False)
    rule, old = method.exchange()["centroids"], {"centroids": first.shared["centroids"]}
    chunk = ClientChunk(
        method, fed, [1], 1, 0, first.shared, {"w_j_point": first.personal["w_j_point"][1:2, None]}
    )  # without the first client nobody has class 3
    total = {k: v.sum(0) for k, v in rule.message(["centroids"], chunk).items()}
    new = rule.update(old, total, AggregationContext(3, torch.tensor(1.0), 1, dict))["centroids"]
    there = {int(k) for k in fed.y[fed.train[1]]}
    for k in range(CLASSES):
        assert torch.equal(new[k], old["centroids"][k]) == (k not in there)


@pytest.mark.parametrize("precision", ["full", "diagonal", "count"])
def test_a_client_that_diverges_is_left_out(precision: str) -> None:
    """Its message is not finite, and is rejected; the others' centroids stand."""
    fed = bumps((20, 20, 20), test=0.3)
    x = fed.x.clone()
    x[fed.train[1]] = 3e38
    run = fit(method_of(replace(fed, x=x), precision=precision, xi=0.5), replace(fed, x=x), rounds=3, progress=False)
    assert run.evaluations[-1]["rejected"] == 3
    assert all(value.isfinite().all() for value in run.shared.values())
    there = torch.bincount(fed.y[torch.cat([fed.train[0], fed.train[2]])], minlength=CLASSES)
    assert torch.equal(run.shared["counts"], there.to(run.shared["counts"]))


def test_features_beyond_all_bounds_are_never_averaged_in() -> None:
    """The weights are finite, and what they make of the examples is not: the message says so, and is rejected."""
    fed = bumps((20, 20, 20))
    x = fed.x.clone()
    x[fed.train[1][7]] = 3e38

    class Steep(PFedVMP):
        def shared(self, start: InitialWeights) -> dict[str, Tensor]:
            return {k: v.abs() + k.startswith("base") for k, v in super().shared(start).items()}

    method = Steep(architecture("mlp:6", fed), epochs=0)
    fitting = Fit(method, replace(fed, x=x), Options(rounds=1))
    run = fitting.run(progress=False)
    assert fitting.journal.diverged == 0
    assert rejections(fitting) == [0, 1, 0]
    assert run.shared["centroids"].isfinite().all()
    assert (run.shared["centroids"].abs().sum(1) > 0).tolist() == [True, True, True, True]


def test_the_prior_of_the_centroids_is_in_the_model() -> None:
    fed = bumps().to(dtype=torch.float64)
    for weight in (0.0, 2.0):
        method = method_of(fed, prior_precision=weight)
        start = InitialWeights.of(method.network, 0)
        shared = {k: v.double() for k, v in method.shared(start).items()}
        mu = shared["centroids"] = torch.randn(CLASSES, 6, dtype=torch.float64, generator=torch.Generator())
        personal = {k: v.double()[None, None] for k, v in method.personal(start).items()}
        found = global_log_prob(method, fed.template(), shared, personal)
        normal = torch.distributions.Normal(0.0, 2.0**-0.5).log_prob(mu).sum() if weight else torch.zeros(())
        assert torch.isclose(found, normal.to(found), rtol=1e-6)


def test_predictions_and_a_newcomer() -> None:
    """The shared base under the client's own head; a newcomer trains a head from the mean of the others'."""
    fed = bumps((40, 40, 40), test=0.3)
    run = fit(method_of(fed, lr=0.05, xi=0.5), fed, rounds=20, dtype=torch.float64, progress=False)
    assert run.last()["pm_accuracy"] > 0.8
    x = fed.x[fed.test[1]].double()
    client = Torch(run.fitted.method, run.shared, run.personal["w_j_point"][1])
    with torch.no_grad():
        theirs = client.head(client.base(x)).softmax(-1)
    assert torch.allclose(run.predict(fed.x[fed.test[1]], 1, draws=0), theirs, atol=1e-9)
    index = fed.train[0][:7]  # (less than a minibatch: one step an epoch)
    head = run.personal["w_j_point"].mean(0)
    by_hand = Torch(run.fitted.method, run.shared, head)
    optimizer = torch.optim.SGD(by_hand.head.parameters(), lr=0.05)
    for rounds in (0, 20):
        said = run.predict_new_client(fed.x[index], draws=0, given=(fed.x[index], fed.y[index]), rounds=rounds)
        for _ in range(rounds):
            optimizer.zero_grad()
            cross_entropy(by_hand.head(by_hand.base(fed.x[index].double())), fed.y[index]).backward()
            optimizer.step()
        with torch.no_grad():
            assert torch.allclose(said, by_hand.head(by_hand.base(fed.x[index].double())).softmax(-1), atol=1e-9)
    served = fit_new_client(run.fitted, fed.x[index], fed.y[index], 1)
    assert served.personal.keys() == {"w_j_point"}
    assert run.fitted.method.new_client_steps()[0].trains == ("w_j_point",)
    posterior = run.posterior(draws=4)
    assert set(posterior.log_likelihood.data_vars) == {"y"}


def test_methods_that_cannot_be() -> None:
    fed = bumps()
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    regression = Federation.from_arrays(x, x[:, 0].astype(np.float64), np.repeat(["a", "b"], 10))
    for make, words in (
        (lambda: PFedVMP(architecture("mlp:6", regression)), "a centroid for every class"),
        (lambda: method_of(fed, prior="fixed", precision="count"), "precision=count changes nothing with prior=fixed"),
        (
            lambda: method_of(fed, prior="flat", prior_precision=1),
            "prior_precision=1.0 changes nothing with prior=flat",
        ),
        (lambda: method_of(fed, precision="count", alpha=2), "alpha=2.0 changes nothing with precision=count"),
        (lambda: method_of(fed, prior="flat", xi=3), "xi=3.0 changes nothing with prior=flat"),
        (lambda: method_of(fed, cutoff=0), "cutoff must be above 0"),
        (lambda: method_of(fed, xi=0), "xi must be above 0"),
    ):
        with pytest.raises(UserError, match=words):
            make()
    assert replace(method_of(fed).settings, xi=2.0).xi == 2.0


def test_features_are_what_the_head_sees() -> None:
    """Every client's own test data under its own base; latent features at their mean."""
    fed = bumps((40, 30, 20), test=0.3)
    ours = fit(method_of(fed, lr=0.05, xi=0.5), fed, rounds=2, dtype=torch.float64, progress=False)
    fedper = fit(FedPer(architecture("mlp:6", fed)), fed, rounds=2, dtype=torch.float64, progress=False)
    pfedv = fit(PFedV(architecture("mlp:6", fed, latent=True)), fed, rounds=2, dtype=torch.float64, progress=False)
    for run in (ours, fedper, pfedv):
        z, y, who = features(run.fitted)
        assert z.shape == (sum(fed.sizes("test")), 6)
        assert y.dtype.kind == "i"
        for j, name in enumerate(fed.ids):
            own = torch.as_tensor(z[who == name])
            assert y[who == name].tolist() == fed.y[fed.test[j]].tolist()
            head = run.personal["mu" if run is fedper else "w_j_point"][j]
            said = run.fitted.method.network.head(head, own[None])[0].softmax(-1)
            assert torch.allclose(said, run.predict(fed.x[fed.test[j]], name, draws=0), atol=1e-9)
    few = features(ours.fitted, most=10)
    assert [len(part) for part in few] == [10, 10, 10]
    rows = [{tuple(row) for row in z.round(9).tolist()} for z in (few[0], features(ours.fitted)[0])]
    assert rows[0] <= rows[1]


def test_movement_is_told(tmp_path: Path) -> None:
    """How far each rule's values moved in the last round; a run that goes on tells the same."""
    fed = bumps(test=0.3)
    runs = [fit(method_of(fed), fed, rounds=r, dtype=torch.float64, progress=False) for r in (2, 3)]
    for group in ("base", "centroids", "counts"):
        names = [k for k in runs[0].shared if k == group or k.startswith(f"{group}.")]
        gaps = torch.cat([(runs[1].shared[k] - runs[0].shared[k]).flatten() for k in names])
        assert runs[1].evaluations[-1][f"update_norm_{group}"] == pytest.approx(
            float(gaps.square().mean().sqrt()), rel=1e-5
        )
    fit(method_of(fed), fed, rounds=2, progress=False, folder=tmp_path)
    again = fit(method_of(fed), fed, rounds=3, progress=False, folder=tmp_path, resume=True)
    whole = fit(method_of(fed), fed, rounds=3, progress=False)
    assert [r["update_norm_centroids"] for r in again.evaluations] == [
        r["update_norm_centroids"] for r in whole.evaluations
    ]


def test_from_the_command_line(hierfl: Call, tmp_path: Path) -> None:
    how = ["--rounds", 2, "--clients", 5, "--network", "mlp:8", "--quiet"]
    assert hierfl("run", "pfedvmp", *how, "--split", "dirichlet:0.5,keep=0.4,redraw", "--out", "o")[0] == 0
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    assert 0 < summary["pm_accuracy_pooled"] < 1
    assert summary["accuracy_cv"] > 0
    code, out, _ = hierfl("report", "o")
    assert code == 0
    made = [
        "o/report.html",
        "o/figures/predictive-check.png",
        "o/figures/predictive-check-clients.png",
        "o/figures/posterior.png",
        "o/figures/features-classes.png",
        "o/figures/features-clients.png",
        "o/figures/features.png",
    ]
    assert out.split() == made
    assert all((tmp_path / path).stat().st_size > 5000 for path in made)
    (tmp_path / "o" / "summary.json").unlink()
    for folder, words in (("o", "has not finished"), ("nowhere", "not the folder of a run")):
        code, _, err = hierfl("report", folder)
        assert code == 2
        assert words in err
    assert hierfl("run", "mixed-effects", "--rounds", 2, "--quiet", "--out", "m")[0] == 0
    listed = hierfl("report", "m")[1].split()
    assert listed[0] == "m/report.html"
    assert not any("features" in path for path in listed)  # a table's columns are none
