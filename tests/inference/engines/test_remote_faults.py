"""Sites and servers that are killed, and requests and answers that are lost, late, or come twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
import torch
from support.cases import FEW_STEPS
from support.sites import HANDSHAKE, HOW, Sites, ready, same

from hierfl.data.outline import without_data
from hierfl.errors import UserError
from hierfl.inference import Method, Run, fit
from hierfl.inference.engines.remote.site import Site
from hierfl.inference.engines.remote.site_state import SiteState
from hierfl.inference.engines.remote.wire import Handshake, Unreadable, decode, encode
from hierfl.inference.run.fit import Fit
from hierfl.models import IFCA, FedPop, FedRep, PFedVEM, Scaffold

METHODS: list[tuple[type[Method], dict]] = [
    (PFedVEM, {}), (FedPop, FEW_STEPS[FedPop]), (Scaffold, {}), (IFCA, {}), (FedRep, {}),
]  # fmt: skip
#: clients' own values are kept by the first, chains by the second, and copies by the third; the others keep less
METHODS_AND_KEPT = pytest.mark.parametrize(
    ("cls", "settings"),
    [case if number < 3 else pytest.param(*case, marks=pytest.mark.slow) for number, case in enumerate(METHODS)],
)


class Killed(BaseException):
    """A process was killed."""


@pytest.fixture(scope="module")
def without_faults(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Sites, Run]]:
    """The sites of a method of which none is killed, and their fit: made once."""

    @cache
    def of_method(cls: type[Method]) -> tuple[Sites, Run]:
        plain = ready(cls, dict(METHODS)[cls], tmp_path_factory.mktemp("plain"))
        return plain, plain.fit()

    return of_method


@METHODS_AND_KEPT
def test_every_answer_is_lost_once_and_every_site_restarted(
    cls: type[Method], settings: dict, tmp_path: Path, without_faults: Callable[..., tuple[Sites, Run]]
) -> None:
    """A repeated request is answered by the same bytes, from the disk."""
    plain, expected = without_faults(cls)
    sites = ready(cls, settings, tmp_path / "sites")

    def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        lost = sites.ask(requests)
        for name in requests:
            sites.restart(name)
        answers = sites.ask(requests)
        assert answers == lost
        return answers

    same(expected, plain, sites.fit(ask), sites)


@METHODS_AND_KEPT
def test_server_and_sites_are_killed_at_random_moments(
    cls: type[Method],
    settings: dict,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    without_faults: Callable[..., tuple[Sites, Run]],
) -> None:
    """Before a site has worked, before it has written, after it has written, and before the server has: no matter."""
    plain, expected = without_faults(cls)
    sites, rng, kills = ready(cls, settings, tmp_path / "sites"), random.Random(cls.__name__), 0

    def perhaps(what: str) -> None:
        nonlocal kills
        if kills < 20 and rng.random() < 0.15:
            kills += 1
            raise Killed(what)

    def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = {}
        for name, request in requests.items():
            perhaps("the server, before it asks")
            while name not in answers:
                try:
                    perhaps("the site, before it works")
                    answers[name] = sites.sites[name].answer(request)
                except Killed:
                    sites.restart(name)
            perhaps("the server, with an answer")
        return answers

    save = SiteState.save

    def dies(self: SiteState, *where: object) -> None:
        perhaps("the site, before it has written")
        save(self, *where)
        perhaps("the site, after it has written")

    monkeypatch.setattr(SiteState, "save", dies)
    run = None
    while run is None:
        try:
            server = Fit(sites.method, without_data(sites.federation), sites.options, sites.engine(ask))
            begun = (tmp_path / "server" / "checkpoint.json").is_file()
            run = server.run(tmp_path / "server", resume=begun, progress=False)
        except Killed:
            continue
    assert kills >= 5
    same(expected, plain, run, sites)


#: whom these tests ask
TO = {"client": "place-00"}


def test_a_site_refuses_what_is_not_its_study(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Requests of another study or version, garbled, older, not finite or of another form: one line, and no data."""
    sites = ready(PFedVEM, {}, tmp_path)
    site = sites.sites["place-00"]

    def refused(head: dict, tensors: dict, request: bytes | None = None) -> str:
        reply, nothing = decode(site.answer(encode(head, tensors) if request is None else request))
        assert nothing == {}
        assert reply.keys() == {"error", "refused", "client"}
        assert "\n" not in reply["error"]
        return reply["error"]

    head = {"kind": "round", "round": 1, "counted": 0, "reports": True, "handshake": HANDSHAKE.table(), **TO}
    shared = site.shared
    assert "its study" in refused({**head, "handshake": None}, shared)
    assert "another one" in refused({**head, "handshake": Handshake("other", "a method").table()}, shared)
    assert "method's code" in refused({**head, "handshake": Handshake("a study", "x").table()}, shared)
    assert "torch is" in refused({**head, "handshake": Handshake("a study", "a method", torch="1.0").table()}, shared)
    assert "kind of request" in refused({**head, "kind": "data"}, shared)
    assert "for another client" in refused({**head, "client": "place-01"}, shared)
    assert "number of a round" in refused({**head, "round": -1}, shared)
    assert "number of a round" in refused({**head, "counted": True}, shared)
    assert "number of a round" in refused({**head, "round": 5}, shared)
    assert "begin with 1" in refused({**head, "round": 0}, shared)
    assert "is missing" in refused(head, dict(list(shared.items())[1:]))
    assert "expected" in refused(head, {k: v[None] for k, v in shared.items()})
    assert "expected" in refused(head, {k: v.float() for k, v in shared.items()})
    assert "not finite" in refused(head, {k: v * torch.inf for k, v in shared.items()})
    assert "no message of hierfl" in refused({}, {}, request=b"\x08" + bytes(7) + b"{}      ")
    assert "cut off" in refused({}, {}, request=b"")
    assert site.state.round == 0
    first = site.answer(encode({**head, "round": 2}, shared))
    assert "past it" in refused(head, shared)
    # the same round with other values: as if it had been asked for these at once
    other = {k: v + 0.1 for k, v in shared.items()}
    again = site.answer(encode({**head, "round": 2}, other))
    assert again != first
    fresh = ready(PFedVEM, {}, tmp_path / "fresh").sites["place-00"]
    assert fresh.answer(encode({**head, "round": 2}, other)) == again


def test_a_folder_is_one_studys(tmp_path: Path) -> None:
    sites = ready(FedRep, {}, tmp_path)
    sites.fit()
    name = sites.federation.ids[0]
    own = sites.sites[name].plate.federation
    with pytest.raises(UserError, match="another study or client"):
        Site(sites.method, own, sites.options, tmp_path / name, Handshake("new", "a method"))
    path = tmp_path / name / "site.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])  # one bit of a number
    with pytest.raises(UserError, match="is damaged: it does not match its checksum"):
        sites.restart(name)
    path.write_bytes(whole[:-5])
    with pytest.raises(UserError, match="is damaged"):
        sites.restart(name)
    with pytest.raises(UserError, match="one client, not 4"):
        Site(sites.method, sites.federation, sites.options, tmp_path / "all", HANDSHAKE)


def test_a_site_that_has_not_heard_the_end_predicts_nothing(tmp_path: Path) -> None:
    sites = ready(PFedVEM, {}, tmp_path)
    with pytest.raises(UserError, match="has not ended"):
        sites.sites["place-00"].fitted()


def test_nobody_is_there(tmp_path: Path) -> None:
    sites = ready(PFedVEM, {}, tmp_path)
    with pytest.raises(UserError, match="no site has answered"):
        sites.fit(lambda requests: {})


@pytest.mark.parametrize(("cls", "settings"), METHODS)
def test_nothing_but_what_is_declared_leaves(cls: type[Method], settings: dict, tmp_path: Path) -> None:
    """Every byte of every answer: a header of known names, and tensors of the form that the method's rules declare."""
    sites = ready(cls, settings, tmp_path)
    site = sites.sites["place-00"]
    sending = site.plate.exchange.sending
    messages = {f"{g}|{k}" for g, group in sending.items() for k in group.pipeline.sent}
    personal = set(site.plate.initial) - {k.partition("|")[2] for k in messages}
    heads = {
        "hello": {"splits", "at"}, "round": {"diverged", "reports"}, "scores": set(), "sums": set(), "finish": set(),
    }  # fmt: skip
    seen: set[str] = set()

    def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = sites.ask(requests)
        for name, answer in answers.items():
            asked = decode(requests[name])[0]
            head, tensors = decode(answer)
            seen.add(asked["kind"])
            assert head.keys() == {"round", "client", *heads[asked["kind"]]}
            size = int.from_bytes(answer[:8], "little")
            assert len(answer) == 8 + size + sum(v.numel() * v.dtype.itemsize for v in tensors.values())
            if asked["kind"] == "round":
                assert tensors.keys() == (messages if head["reports"] else set())
                assert not head["reports"] or asked["reports"]
                named = answer[8 : 8 + size].decode()
                assert not [name for name in personal if f'"{name}"' in named or f"|{name}" in named]
            elif asked["kind"] == "scores":
                assert {name.partition("|")[0] for name in tensors} <= {"0", "1", "global"}
            elif asked["kind"] == "sums":
                raise AssertionError("none of these has sums to send where nobody has agreed to it")
            else:
                assert not tensors
        return answers

    sites.fit(ask)
    assert seen == {"hello", "round", "scores", "finish"}


def test_bytes_that_are_not_ours() -> None:
    for data in (b"", b"x" * 7, b"\xff" * 100, (10).to_bytes(8, "little") + b"{" * 10):
        with pytest.raises(Unreadable):
            decode(data)
    with pytest.raises(Unreadable, match="at most 10 are expected"):
        decode(encode({}, {}), 10)


def test_a_run_that_was_begun_on_a_plate_is_another(tmp_path: Path) -> None:
    sites = ready(PFedVEM, {}, tmp_path)
    fit(sites.method, sites.federation, folder=tmp_path / "run", progress=False, **{**HOW, "rounds": 1})
    server = Fit(sites.method, without_data(sites.federation), sites.options, sites.engine())
    with pytest.raises(UserError, match="belongs to another method, network or federation"):
        server.run(tmp_path / "run", resume=True, progress=False)


def test_a_late_end_and_a_server_that_begins_anew_undo_nothing(tmp_path: Path) -> None:
    """What sites have made is theirs: older requests are refused, and such a server ends in one line."""
    sites = ready(Scaffold, {}, tmp_path)
    sites.fit()
    before = sites.values("personal")
    site = sites.sites["place-00"]
    for kind in ("finish", "scores", "sums", "round"):
        head = {"kind": kind, "round": 1, "counted": 1, "handshake": HANDSHAKE.table(), **TO}
        assert (
            "past it"
            in decode(site.answer(encode(head, {f"shared/{k}": v for k, v in site.shared.items()})))[0]["error"]
        )
    with pytest.raises(UserError, match="is at round 4 of this study, and this server at 1"):
        sites.fit()
    after = sites.values("personal")
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_an_outage_ends_the_run_which_goes_on(tmp_path: Path) -> None:
    """No round is used up where nobody answers, and sums over some of the sites are not taken for those of all."""
    plain = ready(PFedVEM, {}, tmp_path / "plain")
    expected = plain.fit()
    sites, away = ready(PFedVEM, {}, tmp_path / "sites"), {"round": 3}

    def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        head = decode(next(iter(requests.values())))[0]
        return {} if head["kind"] in away and head["round"] >= away[head["kind"]] else sites.ask(requests)

    with pytest.raises(UserError, match="no site has answered in round 3: go on"):
        sites.fit(ask, folder=tmp_path / "server")
    same(expected, plain, sites.fit(folder=tmp_path / "server", resume=True), sites)


def test_a_full_disk_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not on the disk is not answered, and not remembered."""
    site = ready(PFedVEM, {}, tmp_path).sites["place-00"]
    head = {"kind": "round", "round": 1, "counted": 0, "reports": True, "handshake": HANDSHAKE.table(), **TO}
    request = encode(head, site.shared)

    def full(self: SiteState, *where: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(SiteState, "save", full)
        assert "OSError" in decode(site.answer(request))[0]["error"]
        assert "OSError" in decode(site.answer(request))[0]["error"]
    assert site.state.round == 0
    assert decode(site.answer(request))[0]["reports"]
