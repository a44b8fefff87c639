"""A record of what a study has processed at a site: for its data protection impact assessment."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from hierfl.errors import UserError, unknown
from hierfl.files import shown
from hierfl.inference.engines.remote.keys import PublicCard
from hierfl.inference.engines.remote.own_code import code_digest
from hierfl.schema import read_toml

from ..contributions import now
from ..guard.approval import APPROVALS, Approval
from ..guard.audit import Audit
from ..guard.epsilon import EpsilonLedger
from ..guard.home import STUDIES, STUDY_COPY, Home, has_ended
from ..guard.ledger import Ledger
from ..guard.withdrawal import withdrawal_of

#: what a site keeps of a study: where, what, and how long
RETENTION = (
    ("studies/", "state of the model, stored answers, results, log", "until hierfl federate forget or withdraw"),
    ("approvals/", "digests of what was approved, who approved it; margins until forget", "as long as the folder"),
    ("audit.jsonl", "digests of requests, replies and deleted files; reasons of refusals", "as long as the folder"),
    ("the account's ledger", "points and epsilon that were spent; keyed hashes of rows", "as long as the account"),
    ("the server", "sums, and what it has kept of each answer", "the coordinator says"),
)
PACKAGES = ("hierfl", "torch", "pyro-ppl", "cryptography", "safetensors")


def record(home: Home, name: str, ledger: Ledger) -> dict[str, Any]:
    """What a study has processed at a site, as json has it.

    Args:
        home: the site's own folder.
        name: of the study, or of its folder; empty for the only one. A forgotten study has a record, too.
        ledger: of this account.

    Raises:
        UserError: where there is none, or there are several.
    """
    approval = _approval(home, name)
    audit = Audit(home.folder)
    lines = [line for line in audit.lines if line.get("study") == approval.study]
    folder = next(iter((home.folder / STUDIES).glob(f"*-{approval.study[:8]}")), None)
    table = read_toml(folder / STUDY_COPY, {"*": object}) if folder is not None else {}
    left = withdrawal_of(home, approval.study, approval.client, ledger)
    forgotten = [line["when"] for line in lines if line["kind"] == "forget"]
    rows = ledger.row_sets().get(approval.data, {})
    state = "forgotten" if forgotten else "withdrawn" if left else "running"
    state = "ended" if state == "running" and folder is not None and has_ended(folder) else state
    return {
        "record": 1,
        "written": now(),
        "study": {
            "name": approval.name, "digest": approval.study, "state": state,
            "purpose": approval.purpose or "not stated", "method": table.get("method", "forgotten"),
            "data": table.get("data", {}), "columns": table.get("columns", {}),
        },
        "site": {
            "client": approval.client, "fingerprint": home.identity.card.fingerprint, "row_set": approval.data,
            "rows": len(next(iter(rows.values()), ())),
        },
        "approval": {
            "by": approval.by, "when": approval.when, "allowed": list(approval.allowed), "rules": dict(approval.rules),
            "digests": {k: getattr(approval, k) for k in ("study", "roster", "method", "code", "policy")},
        },
        "recipients": _recipients(table, approval.client),
        "left": _left(lines),
        "budget": {
            "points_of_this_study": sum(int(line.get("points", 0)) for line in lines),
            "points_of_these_rows": ledger.used(approval.data), "at_approval": approval.rules.get("budget", "not said"),
        },
        "epsilon": _epsilon(approval, ledger),
        "withdrawn": None if left is None else {"by": left.by, "when": left.when},
        "forgotten": forgotten[-1] if forgotten else None,
        "retention": [dict(zip(("where", "what", "how long"), entry, strict=True)) for entry in RETENTION],
        "audit": {"lines": audit.head[0], "head": audit.head[1]},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES},
                     "code": code_digest()},
    }  # fmt: skip


def _epsilon(approval: Approval, ledger: Ledger) -> dict[str, float]:
    """Spent by the study, and by all studies of its rows; zeros of rows that no study with noise has had."""
    book = EpsilonLedger(ledger)
    all_of_them, deltas = book.spent(approval.data)
    others = book.spent(approval.data, but=(approval.study, approval.client))[0]
    return {"of_this_study": all_of_them - others, "of_these_rows": all_of_them, "delta_of_these_rows": deltas}


def _approval(home: Home, name: str) -> Approval:
    approvals = []
    for path in sorted((home.folder / APPROVALS).glob("*.toml")):
        if (approval := Approval.read(home.folder, path.stem)) is not None:
            approvals.append(approval)
    if not approvals:
        raise UserError(f"no study was approved in {home.folder}: hierfl federate approve")
    names = sorted({approval.name for approval in approvals})
    if name:
        approvals = [a for a in approvals if name == a.name or name.endswith(f"-{a.study[:8]}")]
        if not approvals:
            raise unknown(f"study in {home.folder}:", name, names)
    if len(approvals) > 1:
        choices = ", ".join(f"{shown(a.name)}-{a.study[:8]}" for a in approvals)
        raise UserError(f"{home.folder} has several studies; say --study NAME: {choices}")
    return approvals[0]


def _recipients(table: Mapping[str, Any], client: str) -> list[dict[str, str]]:
    """Who could read what has left, by fingerprint: the server alone; the others are sent sums."""
    recipients = []
    for name, text in table.get("keys", {}).items():
        if name == client:
            continue
        card = PublicCard.read(text)
        what = "replies of this site, decrypted" if name == "server" else "sums over all sites, shared values"
        recipients.append({"name": card.name, "fingerprint": card.fingerprint, "receives": what})
    return recipients


def _left(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How often what left, and how many bytes, by the kind of request."""
    by_kind: dict[str, dict[str, Any]] = {}
    for line in lines:
        if "reply" not in line:
            continue
        entry = {"kind": line["kind"], "answers": 0, "again": 0, "refused": 0, "bytes": 0, "points": 0}
        entry_of_kind = by_kind.setdefault(line["kind"], {**entry, "first": line["when"]})
        entry_of_kind["refused" if line["refused"] else "again" if line.get("again") else "answers"] += 1
        entry_of_kind["bytes"] += int(line.get("bytes", 0))
        entry_of_kind["points"] += int(line.get("points", 0))
        entry_of_kind["last"] = line["when"]
    return list(by_kind.values())


def as_json(record: Mapping[str, Any]) -> str:
    """The record as json."""
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def as_markdown(record: Mapping[str, Any]) -> str:
    """The record as a page."""
    study, site, approval, budget = record["study"], record["site"], record["approval"], record["budget"]
    data = {**study["data"], "columns": ", ".join(study["columns"]) or "forgotten"}
    parts = [
        f"# Record of processing: {_cell(study['name'])}",
        f"Written on {record['written']} from the audit file of {site['client']}, {record['audit']['lines']} lines, "
        f"head {record['audit']['head'][:16]}. The study is {study['state']}.",
        "## What, and why",
        _table(("", ""), [
            ("purpose", study["purpose"]), ("study", f"{study['name']}, digest {study['digest']}"),
            ("method", study["method"]), *((k, v) for k, v in data.items() if v not in ("", None)),
            ("rows", f"{site['rows']}, row set {site['row_set']}"),
        ]),
        "## Who approved it",
        _table(("", ""), [
            ("by", approval["by"]), ("when", approval["when"]),
            ("allowed beyond the policy", ", ".join(approval["allowed"]) or "nothing"),
            *((f"digest: {k}", v) for k, v in approval["digests"].items()),
        ]),
        "## Which rules held",
        _table(("rule", "margin"), list(approval["rules"].items())),
        "## What left",
        _table(
            ("kind", "answers", "sent again", "refused", "bytes", "points", "first", "last"),
            [tuple(entry.values()) for entry in record["left"]],
        ),
        f"Points: {budget['points_of_this_study']} in this study; {budget['points_of_these_rows']} for these "
        f"rows, in all studies together. As it was approved: {_cell(budget['at_approval'])}.",
        *_epsilon_words(record["epsilon"]),
        "## Who received it",
        _table(("name", "fingerprint", "what"), [tuple(entry.values()) for entry in record["recipients"]]),
        "Carriers of the files saw what the server asked: shared values and sums over all sites. Of replies they "
        "saw names, times and sizes.",
        "## How long it is kept",
        _table(("where", "what", "how long"), [tuple(entry.values()) for entry in record["retention"]]),
        *_ends(record),
        "## Versions",
        _table(("", ""), list(record["versions"].items())),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _ends(record: Mapping[str, Any]) -> list[str]:
    lines = []
    if (left := record["withdrawn"]) is not None:
        lines.append(f"Withdrawn by {_cell(left['by'])} on {left['when']}.")
    if record["forgotten"]:
        lines.append(f"Forgotten on {record['forgotten']}.")
    return lines


def _table(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)])


def _cell(value: Any) -> str:
    """Text as a cell of a table: on one line, and no markdown or html of its own."""
    text = " ".join(shown(value).split())
    return "".join(f"\\{c}" if c in "\\|<>[]`*_" else c for c in text)


def _epsilon_words(spent: Mapping[str, float]) -> list[str]:
    if not spent["of_these_rows"]:
        return []
    return [
        f"Epsilon: {spent['of_this_study']:.3g} in this study; {spent['of_these_rows']:.3g} for these rows, in all "
        f"studies together, at delta {spent['delta_of_these_rows']:g}."
    ]
