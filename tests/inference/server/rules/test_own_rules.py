"""Rules of one's own: what they may leave out, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.inference import Method, SampleWeighted, fit
from hierfl.models import FedRep
from hierfl.nn.architecture import Architecture


class Plain:
    """A rule of one's own that says nothing of its messages' form: the values, and nothing else."""

    sends_gradients = False

    def message(self, names: Any, chunk: Any) -> dict[str, Tensor]:
        return {name: chunk.values[name].squeeze(1) for name in names}

    def update(self, old: Any, total: Any, context: Any) -> Any:
        return {name: total[name] / context.reported for name in old}


class Wordy(Plain):
    def message(self, names: Any, chunk: Any) -> dict[str, Tensor]:
        return {**super().message(names, chunk), "weight": chunk.n}


class Widening(Plain):
    def update(self, old: Any, total: Any, context: Any) -> Any:
        return {name: value.double() for name, value in super().update(old, total, context).items()}


def own(rule: Any, net: Architecture) -> Method:
    class Own(FedRep):
        def exchange(self) -> dict[str, Any]:
            return {"base": rule}

    return Own(net)


def test_a_rule_without_a_form_sends_the_values(small: Federation, net: Architecture) -> None:
    run = fit(own(Plain(), net), small, rounds=2, progress=False)
    assert run.last()["rejected"] == run.last()["skipped"] == 0


def test_a_rule_that_sends_more_than_it_declares_is_refused(small: Federation, net: Architecture) -> None:
    with pytest.raises(UserError, match=r"Wordy, .* of 'base', sends what it does not declare: .*Wordy.form\(old\)"):
        fit(own(Wordy(), net), small, rounds=2, progress=False)


def test_a_rule_that_changes_a_values_type_is_refused(small: Federation, net: Architecture) -> None:
    with pytest.raises(UserError, match="Widening, .* makes 'base.* of torch.float64; it was .* of torch.float32"):
        fit(own(Widening(), net), small, rounds=2, dtype=torch.float32, progress=False)


def test_a_fault_in_a_rules_code_skips_no_round(small: Federation, net: Architecture) -> None:
    class Faulty(SampleWeighted):
        def update(self, old: Any, total: Any, context: Any) -> Any:
            raise KeyError("nothing")

    with pytest.raises(KeyError):
        fit(own(Faulty(), net), small, rounds=2, progress=False)
