"""Approving a study at a site: what would leave, each rule with its margin, who takes part; and the record of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hierfl.data.disclosure.rule import Rule
from hierfl.data.federated.study_data import SiteData
from hierfl.data.reading.options import Reading
from hierfl.errors import UserError
from hierfl.files import shown
from hierfl.inference.engines.remote.keys import PublicCard
from hierfl.inference.engines.remote.own_code import code_digest
from hierfl.schema import read_toml

from ..contributions import now
from ..roster_keys import SERVER
from ..study import Study
from ..study_site import Membership, read_site_data
from .approval import Approval
from .audit import Audit
from .heads import Heads
from .home import STUDY_COPY, Home, has_ended
from .ledger import Ledger
from .noise import noise_rules
from .points import budget_rule
from .policy import Policy
from .rows import keep_rows
from .rules import ALLOWED, rules
from .totals import Told
from .withdrawal import withdrawal_of


@dataclass(frozen=True)
class Party:
    """One who takes part.

    Attributes:
        name: in the study.
        card: None where study.toml has none.
        pinned: whether it is the card that was pinned here.
    """

    name: str
    card: PublicCard | None
    pinned: bool


@dataclass(frozen=True)
class Proposal:
    """A study as a site would take part in it; nothing of it is on record yet.

    Attributes:
        home: the site's own folder.
        member: the site in the study.
        data: its rows, read for the study.
        policy: of the site.
        parties: the server, then the roster.
        rules: each rule, and how far the study is from it.
        pins: cards that were said, to be pinned.
        allowed: words that were said beyond the policy.
    """

    home: Home
    member: Membership
    data: SiteData
    policy: Policy
    parties: tuple[Party, ...]
    rules: tuple[Rule, ...]
    pins: tuple[PublicCard, ...]
    allowed: tuple[str, ...]
    ledger: Ledger

    @property
    def failing(self) -> list[str]:
        """Names of the rules that do not hold."""
        return [rule.name for rule in self.rules if not rule.holds]

    def record(self, by: str, purpose: str = "") -> Path:
        """Puts the approval on record; its file.

        Args:
            by: who approves.
            purpose: what the study is for.

        Raises:
            UserError: where a rule does not hold, or no one is named.
        """
        if self.failing:
            raise UserError(f"not approved: {', '.join(self.failing)}: nothing was recorded, and nothing leaves")
        if not by.strip() or not by.isprintable():
            raise UserError("say who approves: --by NAME")
        study = self.member.study
        heads = Heads.of_home(self.ledger, Audit(self.home.folder), self.home.identity)
        heads.check()
        approval = Approval(
            study.digest, study.roster, study.table["method_digest"], code_digest(), self.policy.digest, study.name,
            keep_rows(self.data, self.ledger), self.member.client, by.strip(), now(), self.allowed,
            {rule.name: rule.margin for rule in self.rules}, purpose.strip(),
        )  # fmt: skip
        self.home.pin(self.pins)
        self.member.keep()
        entries = {"study": approval.study, "roster": approval.roster, "by": approval.by, "allowed": list(self.allowed)}
        heads.append({"kind": "approval", **entries})  # no approval is without its line
        path = approval.write(self.home.folder)
        Told(self.member.folder, study.digest, study.roster).forget_refused()
        return path


def propose(
    home: Home, study: Path, data: Path | None, reading: Reading | None = None, *, pins: Sequence[PublicCard] = (),
    allow: Collection[str] = (), ledger: Ledger | None = None, trust_code: bool = False,
) -> Proposal:  # fmt: skip
    """What an approval would say.

    Args:
        home: the site's own folder.
        study: study.toml.
        data: the site's own file; None for that of an earlier approval.
        reading: what the file does not say of itself; None for what an earlier approval says.
        pins: cards that came by another way than the study.
        allow: words beyond the policy.
        ledger: of this account.
        trust_code: whether to run a method's file that this user has neither named nor run before.

    Raises:
        UserError: for a study or data that cannot be, a card that is not this site's, or words that are unknown.
    """
    if strange := sorted(set(allow) - set(ALLOWED)):
        raise UserError(f"--allow {strange[0]} says nothing: known words are {', '.join(ALLOWED)}")
    home.check_current()
    card = home.identity.card
    ledger, policy = ledger or Ledger(), Policy.read(home.folder)
    agreed = Study.read(study, trust_code=trust_code)
    if agreed.keys.get(card.name) != card or card.name not in agreed.clients:
        raise UserError(
            f"{study} does not have the card of {home.folder} for {card.name} ({card.fingerprint}): send "
            f"{home.folder / f'{card.name}.pub'} to the coordinator"
        )
    if (left := withdrawal_of(home, agreed.digest, card.name, ledger)) is not None:
        raise UserError(
            f"{card.name} has left {shown(agreed.name)} ({shown(left.by)}, {left.when}) and does not come back: take "
            "part in a new study"
        )
    if has_ended(home.folder_of(agreed)):
        raise UserError(
            f"{shown(agreed.name)} has ended at this site, and asks nothing more: hierfl report {home.folder}"
        )
    pinned = home.known_with(pins)
    member = _member(home, agreed, card.name, data, reading)
    rows = read_site_data(agreed, member.data, member.client, member.reading)
    parties = tuple(_party(name, agreed, pinned) for name in (SERVER, *agreed.clients))
    judged_rules = [_server_rule(parties[0]), _cards_rule(parties), *rules(agreed, rows, policy, pinned, allow, ledger)]
    judged_rules.append(budget_rule(agreed, rows, policy, allow, ledger, card.name))
    judged_rules += _left_rule(home, agreed)
    judged_rules += noise_rules(agreed, rows, policy, ledger, card.name)
    return Proposal(
        home, member, rows, policy, parties, tuple(judged_rules), tuple(pins), tuple(sorted(allow)), ledger
    )  # fmt: skip


def _member(home: Home, study: Study, client: str, data: Path | None, reading: Reading | None) -> Membership:
    """The site in the study; of what was not said, as it was approved before."""
    folder = home.folder_of(study)
    if data is None or reading is None:
        before = Membership.read(folder) if folder.is_dir() else None
        if data is None and before is None:
            raise UserError(f"{study.name} is new to {home.folder}: say --data FILE")
        data, reading = data or (before.data if before else None), reading or (before.reading if before else Reading())
    assert data is not None  # as of above
    return Membership(folder, study, client, data.absolute(), reading)


def _party(name: str, study: Study, pinned: dict[str, PublicCard]) -> Party:
    card = study.keys.get(name)
    return Party(name, card, card is not None and pinned.get(card.name) == card)


def _cards_rule(parties: Sequence[Party]) -> Rule:
    """Whether all have cards: the roster changes with each that comes later, and is approved again."""
    lacking = [party.name for party in parties if party.card is None]
    words = f"none of {', '.join(lacking)} in study.toml: the coordinator adds it, and sends the file again"
    return Rule("cards", not lacking, words if lacking else "all who take part have one")


def _left_rule(home: Home, study: Study) -> list[Rule]:
    """The rule of a study with masks whose roster was another one: what two sums say of who has left."""
    copy = home.folder_of(study) / STUDY_COPY
    if not study.options("cpu").masked or not copy.is_file():
        return []
    left = sorted(set(read_toml(copy, {"clients": [str]})["clients"]) - set(study.clients))
    words = f"{', '.join(left)}: a sum from before less the same sum without them is their own part"
    return [Rule("sites that have left", True, words)] if left else []


def _server_rule(server: Party) -> Rule:
    if server.card is None:
        return Rule("server", False, "study.toml has no card of the server")
    words = "its card is pinned" if server.pinned else f"the card of {server.card.name} is not pinned: --pin FILE.pub"
    return Rule("server", server.pinned, words)
