"""The rules of a site's policy, tried on a study and the site's own rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from hierfl.data.disclosure.check import MIN_DESIGN_ROWS, data_rules
from hierfl.data.disclosure.row_hashes import RowHashes, columns_apart, least_difference, row_hashes
from hierfl.data.disclosure.rule import Rule
from hierfl.data.disclosure.totals import total_rules
from hierfl.data.federated.column_data import ColumnData
from hierfl.data.federated.formula_data import FormulaData
from hierfl.data.federated.model_data import ModelData
from hierfl.data.federated.study_data import SiteData
from hierfl.data.federated.sums import NamedSums
from hierfl.inference.method.capabilities import has_fixed_sums, is_tabular, most_explored, reads_columns
from hierfl.inference.server.rules.class_means import ClassMeans
from hierfl.inference.server.rules.label_shares import LabelSharePopulation
from hierfl.inference.server.rules.running import CountSum

from ..maskable import exchange_of
from ..masks import summed_over
from ..public_sums import is_public, public_sums, same_sums

if TYPE_CHECKING:
    from hierfl.inference import Method

    from ..study import Study
    from .policy import Policy

__all__ = ["Rule", "rules", "rules_of_totals"]
#: what ``hierfl federate approve --allow`` takes, and the entry of the policy that asks for it
ALLOWED = {
    "networks": "networks", "models": "models", "label-counts": "label_counts", "points": "points",
    "exploration": "exploration", "residuals": "residuals",
}  # fmt: skip


class RowSets(Protocol):
    """What a rule needs of the site's ledger."""

    @property
    def secret(self) -> bytes:
        """The key of row hashes."""
        ...

    def row_sets(self) -> Mapping[str, RowHashes]:
        """Hashes of the row sets of earlier studies, by name."""
        ...


def rules(
    study: Study, site: SiteData, policy: Policy, cards: Mapping[str, Any], allowed: Collection[str] = (),
    ledger: RowSets | None = None,
) -> list[Rule]:  # fmt: skip
    """All rules of a policy, tried before anything is known of other sites.

    Args:
        study: what was agreed on.
        site: the site's rows, read for the study.
        policy: the site's.
        cards: cards that are pinned here, {name: card}, this site's own among them; a card is its text, or has it as
            ``text``.
        allowed: words of :data:`ALLOWED` that were said at ``approve``.
        ledger: row sets of earlier studies; None where there is none yet.
    """
    return [
        *_roster_rules(study, policy, cards), *_name_rules(study, policy),
        *_method_rules(study, site, policy, allowed), *data_rules(site, policy.limits),
        *_difference_rules(site, policy, ledger),
    ]  # fmt: skip


def rules_of_totals(
    study: Study, site: SiteData, policy: Policy, totals: Sequence[NamedSums], ledger: RowSets | None = None, *,
    included: bool = True,
) -> list[Rule]:  # fmt: skip
    """The rules that depend on the sums over all sites, once a step of the preparation says them.

    Args:
        study: what was agreed on.
        site: the site's rows.
        policy: the site's.
        totals: sums over all sites of the steps so far, as :func:`~hierfl.experiments.federate.study_site.as_numbers`
            has them.
        ledger: row sets of earlier studies; None for those that were looked at before.
        included: whether this site's own rows are in the sums. Of a study that it joins late they are not, and the
            roster has changed since.
    """
    others = len(study.clients) - 1 if included else 1
    first_rules = (
        [_public_totals(study, totals)]
        if is_public(study)
        else total_rules(site, totals, others, study.least_rows, included=included)
    )
    if not all(rule.holds for rule in first_rules):  # rows are not looked at with totals that cannot be
        return first_rules
    return [*first_rules, *data_rules(site, policy.limits, totals), *_difference_rules(site, policy, ledger, totals)]


def _public_totals(study: Study, totals: Sequence[NamedSums]) -> Rule:
    """The rules of a study with noise, whose first sums are no client's."""
    sums_told = [{name: torch.as_tensor(value) for name, value in sums.items()} for sums in totals]
    holds = same_sums(sums_told, public_sums(study))
    return Rule("totals", holds, f"they are {'' if holds else 'not '}those of the dictionary")


def _roster_rules(study: Study, policy: Policy, cards: Mapping[str, Any]) -> Iterator[Rule]:
    """The rules about who takes part: two names of one card are one site, and the server's is none."""
    keys = {name: _text(card) for name, card in study.table.get("keys", {}).items()}
    pinned = {_text(card) for card in cards.values()}
    own = {_keys_of(keys[name]) for name in study.clients if name in keys and keys[name] in pinned}
    count = len(own - {_keys_of(keys.get("server", ""))})
    margin = f"{count} of {len(study.clients)} are pinned here with keys of their own, at least {policy.least_sites}"
    yield Rule("sites", count >= policy.least_sites, margin)


def _text(card: Any) -> str:
    return str(getattr(card, "text", card)).strip()


def _keys_of(card: str) -> str:
    """The keys of a card, without its name."""
    return card.rpartition(" ")[2]


def _name_rules(study: Study, policy: Policy) -> Iterator[Rule]:
    """The rules about columns, families and methods that no study may have."""
    data = study.data
    columns: set[str] = set()
    if isinstance(data, FormulaData):
        columns = data.formula.used
        family = data.formula.family
        yield Rule("family", family not in policy.forbidden_families, family)
    elif isinstance(data, ColumnData):
        columns = {*data.x, data.y}
    elif isinstance(data, ModelData):
        columns = set(data.columns)
    forbidden = sorted(columns & set(policy.forbidden_columns))
    yield Rule("columns", not forbidden, f"{', '.join(forbidden)} forbidden" if forbidden else "none is forbidden")
    own_file = study.table["method"].endswith(".py")
    named = study.loaded.name in policy.forbidden_methods or (own_file and "*" in policy.forbidden_methods)
    yield Rule("method", not named, f"{study.loaded.name} is {'' if named else 'not '}forbidden")


def _method_rules(study: Study, site: SiteData, policy: Policy, allowed: Collection[str]) -> Iterator[Rule]:
    """The rules about what the method's messages are."""
    _, network = study.data.form_model(site, study.loaded.cls.latent)
    method = study.method(network)
    exchange, at_points = (
        exchange_of(method, study.options("cpu").seed),
        is_tabular(method) and not has_fixed_sums(method),
    )
    single = exchange.individual
    noisy_sums = is_tabular(method) and study.options("cpu").dp == "site"
    what = f"the server reads each site's {single[0]}" if single else "the server needs sums alone"
    what = "the server reads each site's sums, which have this site's noise" if noisy_sums else what
    yield Rule("single messages", policy.single_messages or not single, what)
    counts = ClassMeans | CountSum | LabelSharePopulation
    counting = any(isinstance(group.rule, counts) for group in exchange.sending.values())
    asked = {
        "networks": not is_tabular(study.loaded.cls) and bool(exchange.sending), "label-counts": counting,
        "models": reads_columns(method),
        # Scores of rows that are held out are no fixed sums: a narrow prediction counts the rows above a value.
        "points": (at_points or _holds_out(study)) and not noisy_sums,
        "exploration": explores(study, method) and at_points and not noisy_sums,
        "residuals": bool(study.table["settings"].get("residuals")) and is_tabular(study.loaded.cls),
    }  # fmt: skip
    for word, needed in asked.items():
        permission = getattr(policy, entry := ALLOWED[word])
        holds = not needed or permission == "allow" or (permission == "approve" and word in allowed)
        way = (
            f"{'by' if holds else 'needs'} --allow {word}"
            if permission == "approve"
            else f"{entry} is {permission!r} in the policy"
        )
        if word == "exploration" and not holds:
            without = "reweigh = false" if reads_columns(method) else "draws = 0 and without profile"
            way += f"; a study with {without} does not explore"
        yield Rule(word.replace("-", " "), holds, way if needed else "none")
    yield Rule("scores of training rows", True, _scores(study, policy))
    yield _masks(study, policy)
    yield _noise(study, policy)


def _masks(study: Study, policy: Policy) -> Rule:
    """Whether sums alone can be read, where that is demanded."""
    num_sites = summed_over(study)
    words = [f"{'' if policy.masked else 'not '}demanded"]
    words += [f"there: the server gets sums over {num_sites} sites, and of one alone nothing"] * bool(num_sites)
    words += ["the study has none: the coordinator drafts it with --masked"] * (policy.masked and not num_sites)
    return Rule("masked", bool(num_sites) or not policy.masked, "; ".join(words))


def _noise(study: Study, policy: Policy) -> Rule:
    """Whether messages have noise of this site's own, where that is demanded."""
    options, demanded = study.options("cpu"), "demanded" if policy.noise else "not demanded"
    if options.dp == "none":
        more = ', and the study has none: dp = "site"' if policy.noise else ""
        return Rule("noise", not policy.noise, demanded + more)
    inside = options.dp == "site"
    rows = options.patient_rows
    hides = f"a patient of at most {rows} row{'s' * (rows > 1)}" if inside else "the whole site"
    hides += f": epsilon {options.epsilon:g}, delta {options.delta:g}"
    words = f"{demanded}; noise {'inside this site' if inside else 'on sums over sites'} hides {hides}"
    return Rule("noise", inside or not policy.noise, words)


def _scores(study: Study, policy: Policy) -> str:
    """What becomes of the metrics of a study: nothing else is lost."""
    if "train" not in study.options("cpu").splits:
        return "not asked for"
    if policy.train_scores:
        return "answered: they can show outcomes of single rows"
    return "not answered: the study's metrics lack this site's, or are empty; its estimates are the same"


def _holds_out(study: Study) -> bool:
    """Whether scores of a formula's rows are asked for, at values of the server's choice."""
    entries = study.table["data"]
    return is_tabular(study.loaded.cls) and bool(entries.get("test_fraction") or entries.get("validation_fraction"))


def explores(study: Study, method: Method) -> bool:
    """Whether a fit asks for the likelihood at many points beside those of the search: of a formula up to 4,096."""
    settings, most = study.table["settings"], most_explored(method)
    if most is not None:
        return most > 0
    return is_tabular(study.loaded.cls) and bool(
        settings.get("draws") or settings.get("profile") or settings.get("population") == "bayes"
    )


def _difference_rules(
    site: SiteData, policy: Policy, ledger: RowSets | None, totals: Sequence[NamedSums] = ()
) -> Iterator[Rule]:
    """The rules about the rows of earlier studies, and about columns that differ from theirs in few rows."""
    if ledger is None or site.rows < MIN_DESIGN_ROWS:
        return
    own = row_hashes(site, ledger.secret, totals)
    for what, apart, words in (
        ("rows", least_difference, "rows differ from an earlier study's"),
        ("columns", columns_apart, "rows are all in which a column differs from one of an earlier study"),
    ):
        distances = [apart(own, other) for other in ledger.row_sets().values()]
        least = min((rows for rows in distances if rows is not None), default=None)
        margin = f"no earlier study has nearly these {what}" if least is None else f"{least} {words}"
        holds = least is None or least >= policy.differing_rows
        yield Rule(f"{what} of earlier studies", holds, f"{margin}, none or at least {policy.differing_rows}")
