"""pFedVMP: what is sent, and what is rejected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.pfedvmp import CLASSES, bumps, method_of
from support.rounds import rejections
from torch import Tensor

from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.server.exchange import Exchange
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.models import PFedVMP
from hierfl.nn.networks.build import architecture


def test_what_is_sent() -> None:
    """A client says nothing of classes that it lacks, and a plate's width changes nothing."""
    fed = bumps().to(dtype=torch.float64)
    for precision, numbers in (("full", 6 * 7 // 2), ("diagonal", 6), ("count", 1)):
        method = method_of(fed, precision=precision)
        shared = {k: v.double() for k, v in method.shared(InitialWeights.for_network(method.network, 0)).items()}
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
            class_counts = torch.bincount(fed.y[fed.train[j]], minlength=CLASSES)
            assert torch.equal(counts[j], class_counts.double())
            for key, value in sent.items():
                assert torch.equal(value[j].abs().sum(-1) > 0, class_counts > 0), key
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
    present = {int(k) for k in fed.y[fed.train[1]]}
    for k in range(CLASSES):
        assert torch.equal(new[k], old["centroids"][k]) == (k not in present)


@pytest.mark.parametrize("precision", ["full", "diagonal", "count"])
def test_a_client_that_diverges_is_left_out(precision: str) -> None:
    """Its message is not finite, and is rejected; the others' centroids stand."""
    fed = bumps((20, 20, 20), test=0.3)
    x = fed.x.clone()
    x[fed.train[1]] = 3e38
    run = fit(method_of(replace(fed, x=x), precision=precision, xi=0.5), replace(fed, x=x), rounds=3, progress=False)
    assert run.evaluations[-1]["rejected"] == 3
    assert all(value.isfinite().all() for value in run.shared.values())
    class_counts = torch.bincount(fed.y[torch.cat([fed.train[0], fed.train[2]])], minlength=CLASSES)
    assert torch.equal(run.shared["counts"], class_counts.to(run.shared["counts"]))


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
