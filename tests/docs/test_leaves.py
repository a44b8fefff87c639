"""The page of what leaves a site is what the methods' rules say."""

from __future__ import annotations

import torch
from support.paths import ROOT

from hierfl.data.column_design import ColumnDesign
from hierfl.experiments.federate.leaving_page import four_parameters, of_plain_model, page, two_globals
from hierfl.inference.method.initial import InitialWeights
from hierfl.models.any_model.model_file import method_of


def test_the_page_is_made_from_the_rules() -> None:
    """If not: ``hierfl methods --leaves > docs/leaves.md``."""
    assert (ROOT / "docs" / "leaves.md").read_text(encoding="utf-8") == page()


def test_every_field_of_a_plain_models_message_has_words() -> None:
    """A field whose words are its rule's docstring says nothing to who approves a study."""
    for guide in (None, four_parameters):
        method = method_of(two_globals, guide=guide)(ColumnDesign.from_columns(["y"]))
        rules = method.exchange().values()
        shared = {
            k: v.to(torch.float64) for k, v in method.shared(InitialWeights.for_network(method.network, 0)).items()
        }
        words = {name: text for rule in rules for name, text in rule.MEANINGS.items()}
        assert words.keys() == {name for rule in rules for name in rule.form(shared)}
        assert [value.meaning for value in of_plain_model(guide)] == [words[v.name] for v in of_plain_model(guide)]
