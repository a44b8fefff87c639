"""A plain model on every engine: the same posterior; with lost messages, kills, and nothing undeclared that leaves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.any_models import COLUMNS, FEW, brief, counts, federation_of, normal, poisson, small
from support.engine_cases import named, spoiled_messages
from support.sites import Sites, same

from hierfl.data.column_design import ColumnDesign
from hierfl.data.outline import without_data
from hierfl.errors import UserError
from hierfl.inference import Run, fit
from hierfl.inference.engines.remote import files
from hierfl.inference.engines.remote.wire import decode
from hierfl.inference.run.fit import Fit
from hierfl.models.any_model.fit_notes import fit_notes
from hierfl.models.any_model.method import AnyModel
from hierfl.models.any_model.names import DRAWS, MEAN, OWN_DRAWS, PHASE, POINTS, PRECISION, WORTH, Phase
from hierfl.models.any_model.remembered import CHANGE
from hierfl.models.any_model.rule import MISSED

HOW: dict[str, Any] = {"rounds": 60, "splits": (), "dtype": torch.float64}


def fitted(method: AnyModel, federation: Any, **how: Any) -> Run:
    """On a plate."""
    return fit(method, federation, progress=False, **{**HOW, **how})


def near(values: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor], within: float = 1e-9) -> None:
    """Up to the order of a sum."""
    assert values.keys() == other.keys()
    for name, value in values.items():
        torch.testing.assert_close(
            other[name], value, rtol=within, atol=within, msg=lambda text, at=name: f"{at}: {text}"
        )


@pytest.mark.cpu(3, "four fits")
def test_the_size_of_a_plate_does_not_matter() -> None:
    """Climb, exploration and the clients' draws: shorter clients are padded beside longer ones."""
    method, federation = small()
    reference = fitted(method, federation, chunk=1)
    assert int(reference.shared[PHASE]) == Phase.DONE
    assert float(reference.shared[WORTH]) >= FEW["worth"]
    assert reference.fitted.personal[OWN_DRAWS].shape == (5, FEW["draws"], 1)
    for chunk in (2, 5, 7):
        other = fitted(method, federation, chunk=chunk)
        assert other.rounds == reference.rounds
        near(reference.shared, other.shared)
        near(reference.fitted.personal, other.fitted.personal)


@pytest.mark.cpu(6, "a fit at every site, with and without masks")
@pytest.mark.parametrize("masked", [pytest.param(False, marks=pytest.mark.slow), True])
def test_sites_have_the_posterior_of_the_plate(masked: bool, tmp_path: Path) -> None:
    """From the start to the clients' draws; with masks to the bit."""
    method, federation = small()
    reference = fitted(method, federation, chunk=1, masked=masked)
    sites = Sites(method, federation, tmp_path, masked=masked, **HOW)
    other = sites.fit()
    within = 0.0 if masked else 1e-9
    near(reference.shared, other.shared, within)
    near(reference.fitted.personal, sites.values("personal"), within)


@pytest.mark.cpu(4, "two fits at every site")
def test_files_carry_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, federation = small()
    plain, sites = (Sites(method, federation, tmp_path / name, **HOW) for name in ("plain", "files"))
    exchange, ended = tmp_path / "exchange", threading.Event()
    monkeypatch.setattr(files, "POLL", 0.01)
    courier = files.FileCourier(exchange, federation.ids, deadline=60)

    def answers() -> None:
        while not ended.wait(0.01):
            for name in federation.ids:
                for path in files.requests_in(exchange, name):
                    request = files.read(path)
                    with torch.no_grad():
                        answer = sites.sites[name].answer(request)
                    files.reply_path(exchange, name, request).write_bytes(answer)

    working = threading.Thread(target=answers)
    working.start()
    try:
        run = sites.fit(courier)
    finally:
        ended.set()
        working.join()
    same(plain.fit(), plain, run, sites)


class Killed(Exception):
    """The server's process has ended."""


@pytest.mark.cpu(5, "three fits at every site")
def test_a_fit_goes_on_after_a_kill_with_the_same_bits(tmp_path: Path) -> None:
    """In the climb and in the exploration: on a plate from its checkpoint, at sites from what is on their disks."""
    method, federation = small()
    method = AnyModel(method.network, brief, **{**FEW, "worth": 1e9})  # three rounds of the exploration
    whole = fitted(method, federation)
    for rounds in (2, whole.rounds - 1):
        fitted(method, federation, rounds=rounds, folder=tmp_path / f"run-{rounds}")
        again = fitted(method, federation, folder=tmp_path / f"run-{rounds}", resume=True)
        near(whole.shared, again.shared, 0.0)
        near(whole.fitted.personal, again.fitted.personal, 0.0)
    plain = Sites(method, federation, tmp_path / "plain", **HOW)
    expected, sites, kills = plain.fit(), Sites(method, federation, tmp_path / "sites", **HOW), [12, 31]

    def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = {}
        for name, request in requests.items():
            if kills and sites.asked >= kills[0]:
                kills.pop(0)
                for client in federation.ids:
                    sites.restart(client)
                raise Killed
            answers |= sites.ask({name: request})
        return answers

    run = None
    while run is None:
        server = Fit(method, without_data(federation), sites.options, sites.engine(ask))
        begun = (tmp_path / "server" / "checkpoint.json").is_file()
        try:
            run = server.run(tmp_path / "server", resume=begun, progress=False)
        except Killed:
            continue
    assert not kills
    same(expected, plain, run, sites)


@pytest.mark.cpu(3, "a fit at every site")
def test_nothing_but_what_is_declared_leaves(tmp_path: Path) -> None:
    """Every byte of every answer: known words in the header, and the fields of the rule's form; none is of a row."""
    method, federation = small()
    sites, sizes = Sites(method, federation, tmp_path, **HOW), set[int]()
    p = method.p
    declared = {
        "clients": 1, "joined": 1, "bound": 1, "spread": 1, "heavy": 1, "centrings": 1, "linear": p,
        "precision": p * (p + 1) // 2, "heights": FEW["points"], "noise": 1,
    }  # fmt: skip
    heads = {"hello": {"splits", "at"}, "round": {"diverged", "reports"}, "finish": set()}

    def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = sites.ask(requests)
        for name, answer in answers.items():
            kind = decode(requests[name])[0]["kind"]
            head, tensors = decode(answer)
            assert head.keys() == {"round", "client", *heads[kind]}
            size = int.from_bytes(answer[:8], "little")
            assert len(answer) == 8 + size + sum(8 * value.numel() for value in tensors.values())
            if kind == "round":
                sizes.add(len(answer) - 8 - size)
                assert {k.removeprefix("posterior|"): v.numel() for k, v in tensors.items()} == declared
                assert b"own." not in answer[8 : 8 + size]
            else:
                assert not tensors
        return answers

    sites.fit(ask)
    assert sizes == {8 * sum(declared.values())}  # as long in the climb as in the exploration


def test_absent_clients_count_as_they_were_last_counted() -> None:
    """With everyone the step is that of plain sums; with some of them missing a quadratic's posterior is exact."""
    method, federation = small(normal)
    whole = fitted(method, federation)
    assert whole.rounds == 2
    for how in ({"participation": 0.5}, {"participation": 0.8, "seed": 3}):
        part = fitted(method, federation, rounds=200, **how)
        assert int(part.shared[PHASE]) == Phase.DONE
        sd = whole.shared[PRECISION].diagonal().rsqrt()
        assert float(((part.shared[MEAN] - whole.shared[MEAN]) / sd).abs().max()) < 0.01
        torch.testing.assert_close(part.shared[PRECISION], whole.shared[PRECISION], rtol=0.01, atol=0)


@pytest.mark.cpu(3, "four fits")
def test_a_lost_message_is_not_counted() -> None:
    """Rejected messages of one client, and of all: what they would have changed comes with the next ones."""
    method, federation = small(poisson, reweigh=False)
    whole = fitted(method, federation)
    sd = torch.linalg.inv(whole.shared[PRECISION]).diagonal().sqrt()
    with spoiled_messages():
        spoiled = fitted(method, named(federation))
    half = fitted(method, federation, rounds=200, participation=0.6)
    for run in (spoiled, half):
        assert int(run.shared[PHASE]) == Phase.DONE
        assert float(((run.shared[MEAN] - whole.shared[MEAN]) / sd).abs().max()) < 0.1
    assert CHANGE not in whole.personal


def test_an_exploration_without_some_client_is_given_up_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    method, federation = small()
    with caplog.at_level(logging.WARNING, "hierfl"):
        run = fitted(method, federation, rounds=200, participation=0.4)
    assert int(run.shared[PHASE]) == Phase.DONE
    assert float(run.shared[WORTH]) == 0
    assert f"given up: in {MISSED} rounds some client was missing; draws are the guide's" in caplog.text
    assert any("the exploration was given up" in line for line in fit_notes(run.fitted, 200))
    z = (run.shared[DRAWS] - run.shared[MEAN]) @ torch.linalg.cholesky(run.shared[PRECISION])
    assert 0.2 < float(z.square().mean()) < 3
    assert run.shared[POINTS].abs().sum() > 0


@pytest.mark.cpu(3, "two fits")
@pytest.mark.parametrize("seed", [4, 15])
def test_honest_clients_of_other_sizes_do_not_stand_out(seed: int) -> None:
    """Ten and six clients of 3 to 59 rows, in which norms named one and three of them."""
    rows = {4: (23, 5, 4, 9, 28, 27, 10, 20, 35, 3), 15: (18, 15, 35, 3, 4, 19)}[seed]
    method, federation = (
        AnyModel(ColumnDesign.from_columns(COLUMNS), poisson, **FEW),
        federation_of(counts(rows, seed)),
    )
    run = fitted(method, federation)
    assert run.watched is not None
    assert run.watched.named == []
    assert torch.from_numpy(run.watched.measured).isnan().all()


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ({"robust": "median"}, "as different as the clients' rows are: robust='none'"),
        ({"dtype": torch.float32}, "is fitted in double precision: dtype=torch.float64"),
        ({"dp": "site", "epsilon": 1.0}, "its messages cannot have noise .*dp='none'"),
        ({"dp": "client", "epsilon": 1.0, "clip": 1.0}, "noise on the sum over clients is for networks; dp='none'"),
    ],
)
def test_what_a_plain_model_cannot_have_is_refused_in_one_line(how: dict, line: str) -> None:
    method, federation = small()
    with pytest.raises(UserError, match=line) as raised:
        fitted(method, federation, **how)
    assert "\n" not in str(raised.value)
