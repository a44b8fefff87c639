"""Masks that have cancelled: what a server sees of masked sums, without the cryptography."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hierfl.inference.engines.remote.masks.groups import FEWEST, groups_of, threshold
from hierfl.inference.engines.remote.masks.parts import OVER_SURVIVORS, Total
from hierfl.inference.engines.remote.questions import Questions
from hierfl.inference.messages.fixed_point import FixedPoint
from hierfl.inference.state import State, StateForm


class Cancelled:
    """See :class:`~hierfl.inference.engines.remote.masks.server.MaskedSums`: sites answer in the clear.

    Args:
        questions: asks the sites.
        mode: "whole" or "shares", of rounds and scores.
        groups: into how many groups the sites are divided.
        shuffled: what groups are shuffled by.
    """

    def __init__(self, questions: Questions, mode: str = "whole", groups: int = 0, shuffled: str = "0") -> None:
        self.questions, self.mode = questions, mode
        self.groups = groups_of(questions.ids, groups, shuffled) if groups else [list(questions.ids)]
        self.greet: Callable[[Sequence[int]], Sequence[int]] | None = None
        #: what every sum was of: header, and how many limbs
        self.asked: list[Mapping[str, Any]] = []

    def greeted_by(self, greet: Callable[[Sequence[int]], Sequence[int]], basis: str) -> None:
        self.greet = greet

    def ask(self, about: Mapping[str, Any], tensors: State, form: StateForm, own: object = None) -> Total | None:
        return self._opened(self._answers(about, tensors), range(len(self.questions.ids)), about, form)

    def ask_groups(
        self, about: Mapping[str, Any], tensors: State, form: StateForm, own: object = None
    ) -> list[Total | None]:  # fmt: skip
        answers, ids = self._answers(about, tensors), self.questions.ids
        return [self._opened(answers, sorted(map(ids.index, group)), about, form) for group in self.groups]

    def _answers(self, about: Mapping[str, Any], tensors: State) -> dict[int, tuple[dict[str, Any], State]]:
        self.asked.append(about)
        everyone = range(len(self.questions.ids))
        answers = self.questions.asked(about, tensors, everyone, 2**30)
        if late := [j for j in everyone if self.questions.ids[j] in self.questions.unprepared]:
            assert self.greet is not None
            answers |= self.questions.asked(about, tensors, list(self.greet(late)), 2**30)
        return answers

    def _opened(
        self, answers: Mapping[int, tuple[dict[str, Any], State]], clients: Sequence[int], about: Mapping[str, Any],
        form: StateForm,
    ) -> Total | None:  # fmt: skip
        ids = self.questions.ids
        present, sites = [j for j in clients if j in answers], len(ids)
        partly = self.mode == "shares" and about["kind"] in OVER_SURVIVORS
        if len(present) < (threshold(len(clients)) if partly else len(clients)):
            return None
        sums, counts = {}, [0, 0, 0]
        for name, (shape, dtype) in form.items():
            fixed = FixedPoint.for_dtype(dtype)
            digits = sum(fixed.encode(answers[j][1][name], sites) for j in present)
            sums[name] = fixed.decode(torch.as_tensor(digits), sites)
            assert tuple(sums[name].shape) == tuple(shape)
        for j in present:
            assert set(answers[j][1]) == set(form)
            site_counts = answers[j][0].get("counts", [1, 0, 0])
            counts = [count + other for count, other in zip(counts, site_counts, strict=True)]
        wanted = len(set(about.get("adding", ids)) & {ids[j] for j in present})
        if counts[0] < (FEWEST if partly and wanted else wanted):
            return Total({k: torch.zeros_like(v) for k, v in sums.items()}, present, *counts, opened=False)
        return Total(sums, present, *counts)
