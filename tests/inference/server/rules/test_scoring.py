"""Steps on spreads are halved where they turn back, and grow where they crawl."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.scoring import of_all, scored

#: Steps are at most one long.
START = 0.3


def context(reported: int = 10, tries: int = 0, kept: dict[str, Tensor] | None = None) -> AggregationContext:
    kept = {} if kept is None else kept
    kept["tries"] = torch.full((1,), float(tries), dtype=torch.float64)
    return AggregationContext(
        10, torch.tensor(float(reported)).double(), 0, lambda names: {}, kept, {}, 0
    )  # everybody is there


def path(curvature: float, rounds: int, reported: int = 10, tries: int = 0, length: float = 1.0) -> list[float]:
    """Scoring from START towards 0 with a step that is so many times the right one."""
    log, kept, values = torch.full((1,), START).double(), {}, []
    for _ in range(rounds):
        derivatives = -curvature * log, torch.ones(1, 1).double()
        log = scored("log_rho", log, *derivatives, torch.full((1,), length).double(), context(reported, tries, kept))
        values.append(float(log))
    return values


def plain(curvature: float, rounds: int) -> float:
    """The same without factors."""
    log = START
    for _ in range(rounds):
        log -= max(-1.0, min(1.0, curvature * log))
    return log


def test_one_that_is_right_is_left_alone():
    assert path(1.0, 2) == pytest.approx([0.0, 0.0], abs=1e-8)


@pytest.mark.parametrize("curvature", [1.95, 2.5, 0.1])
def test_one_that_goes_to_and_fro_or_crawls_arrives(curvature: float):
    assert abs(plain(curvature, 30)) > 0.01
    assert abs(path(curvature, 30)[-1]) < 0.005


def test_one_that_was_halved_and_crawls_is_taken_as_a_whole_again():
    kept = {"log_rho/log_factor": torch.full((1,), -2.0).double()}
    log = torch.ones(1).double()
    for _ in range(20):
        derivatives = 0.5 * (3 - log), torch.ones(1, 1).double()
        log = scored("log_rho", log, *derivatives, torch.ones(1).double(), context(kept=kept))
    assert float(log) == pytest.approx(3, abs=0.01)
    assert kept["log_rho/log_factor"] > -0.5


@pytest.mark.parametrize("how", [{"reported": 9}, {"tries": 1}])
def test_where_a_sample_reports_or_a_step_is_taken_again_steps_are_as_they_are(how: dict[str, int]):
    values = path(1.9, 6, **how)
    assert values == pytest.approx([START * (-0.9) ** k for k in range(1, 7)], rel=1e-6)


def test_a_step_that_was_shortened_is_no_measure_of_the_next_ones_length():
    """With a tenth of each step they hardly become shorter, and that is what was asked for."""
    assert path(1.0, 10, length=0.1) == pytest.approx([START * 0.9**k for k in range(1, 11)], rel=1e-6)


def test_a_samples_step_is_no_measure_of_the_next_rounds():
    kept: dict[str, Tensor] = {}
    for reported, direction in ((10, 1), (4, -1), (10, 1), (4, -1), (10, 1)):
        derivatives = 0.2 * torch.full((1,), float(direction)).double(), torch.ones(1, 1).double()
        scored("log_rho", torch.zeros(1).double(), *derivatives, torch.ones(1).double(), context(reported, 0, kept))
    assert float(kept["log_rho/log_factor"]) == 0


def test_of_noise_steps_become_an_average_over_rounds():
    make = torch.Generator().manual_seed(0)
    log, kept, values = torch.zeros(1).double(), {}, []
    for _ in range(200):
        derivatives = 0.1 * torch.randn(1, generator=make).double() - log, torch.ones(1, 1).double()
        log = scored("log_rho", log, *derivatives, torch.ones(1).double(), context(kept=kept))
        values.append(float(log))
    assert torch.tensor(values[100:]).std() < 0.06


def test_at_its_floor_a_spread_does_not_gather_speed():
    log, kept = torch.full((1,), -6.9).double(), {}
    for _ in range(20):
        derivatives = torch.full((1,), -0.5).double(), torch.ones(1, 1).double()
        log = scored("log_rho", log, *derivatives, torch.ones(1).double(), context(kept=kept))
    assert float(log) == -7
    assert float(kept["log_rho/log_factor"]) == 0


def test_factors_never_lead_downhill():
    """Strongly correlated logarithms, one of which crawls and one of which goes to and fro."""
    information = torch.linalg.inv(torch.tensor([[1.0, -0.95], [-0.95, 1.0]]).double())
    score = torch.tensor([0.1, 0.09]).double()
    factor = torch.tensor([0.125, 4.0]).double().log()
    kept = {"log_rho/log_factor": factor}
    new = scored("log_rho", torch.zeros(2).double(), score, information, torch.ones(1).double(), context(kept=kept))
    assert float(new @ score) > 0


def test_a_round_that_was_skipped_before_anything_was_remembered_changes_nothing():
    kept = {"log_rho/step": torch.zeros(1).double(), "log_rho/log_factor": torch.zeros(1).double()}
    log = scored(
        "log_rho", torch.ones(1).double(), -torch.ones(1).double(), 2 * torch.eye(1).double(),
        torch.ones(1).double(), context(kept=kept),
    )  # fmt: skip
    assert float(log) == pytest.approx(0.5)


def test_each_logarithm_has_a_factor_of_its_own():
    log, kept = torch.full((2,), START).double(), {}
    for _ in range(30):
        derivatives = -torch.tensor([1.95, 1.0]).double() * log, torch.eye(2).double()
        log = scored("log_rho", log, *derivatives, torch.ones(1).double(), context(kept=kept))
    assert kept["log_rho/log_factor"][0] < -0.3
    assert float(kept["log_rho/log_factor"][1]) == 0
    assert log.abs().max() < 1e-3


def test_sums_of_samples_are_averaged_over_rounds_and_steps_by_them_are_part_of_the_way():
    """Ten clients of which two report, one after the other: after all have, each says as much as it should."""
    make, kept = torch.Generator().manual_seed(0), {}
    each = torch.rand(10, 3, generator=make, dtype=torch.float64)
    averages = []
    for number in range(100):
        some = each[[2 * number % 10, (2 * number + 1) % 10]].sum(0)
        sums, length = of_all({"score": some, "information": some}, context(2, kept=kept))
        torch.testing.assert_close(sums["score"], 5 * some)
        averages.append(sums["information"])
        assert float(length) == pytest.approx(max(0.2, 1 / (number + 1)))
    # The first five rounds are their plain mean, later ones count as e^(-k/5).
    torch.testing.assert_close(averages[4], each.sum(0))
    torch.testing.assert_close(torch.stack(averages[-5:]).mean(0), each.sum(0), rtol=1e-6, atol=0)
    kept["taken"] = torch.zeros(1).double()
    sums, length = of_all({"score": some, "information": some}, context(2, kept=kept))
    assert float(length) == 1
    torch.testing.assert_close(sums["information"], 5 * some)


def test_where_all_report_sums_are_theirs():
    kept: dict[str, Tensor] = {}
    for number in range(3):
        totals = {"score": torch.full((1,), 3.0 + number), "gain": torch.full((1,), -0.1 * number)}
        sums, length = of_all(totals, context(kept=kept))
        assert float(length) == 1
        assert {k: v.tolist() for k, v in sums.items()} == {k: v.double().tolist() for k, v in totals.items()}
