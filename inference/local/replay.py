"""Steps and functions that are the same operations every time: recorded once, issued again.

What changes from step to step (which examples, which random numbers) is copied to the same places before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from hierfl.recorder import Recorder
from hierfl.rng import ClientNoise

from ..clients.chunk import ClientChunk
from ..clients.minibatches import MinibatchPlaces, regrouped
from .held_noise import HeldNoise

#: how often something must still be due for a recording to pay, which takes as long as a step without one
MIN_CALLS_DUE = 3

#: from minibatches, noise and the step's number
Step = Callable[[Sequence[MinibatchPlaces], ClientNoise, int], None]
#: from tensors and noise to results
Function = Callable[[Sequence[Tensor | None], ClientNoise], Sequence[Tensor]]


def take_steps(
    chunk: ClientChunk,
    step: Step,
    numbers: range,
    places: Callable[[int], Sequence[MinibatchPlaces]],
    noise: ClientNoise,
    turns: int,
    after: Callable[[int], None] | None = None,
) -> None:
    """Takes steps one after the other.

    Args:
        chunk: the rows, with a recorder or without.
        step: one step; of noise it asks for turn number * turns, and those after it.
        numbers: of the steps.
        places: of a step's minibatches.
        noise: of all steps.
        turns: of the noise in a step.
        after: called when a step has been taken, with its number; no part of what is recorded.
    """
    if chunk.recorder is None:
        for number in numbers:
            step(places(number), noise, number)
            if after is not None:
                after(number)
        return

    def function(inputs: Sequence[Tensor | None], noise: ClientNoise) -> Sequence[Tensor]:
        step(regrouped(inputs), noise, 0)  # held noise counts from where it begins
        return []

    replayed = Replayed(function, noise, chunk.recorder)
    for number in numbers:
        inputs = [value for at in places(number) for value in at]
        replayed(inputs, numbers.stop - number, number * turns, len(chunk.clients))
        if after is not None:
            after(number)


class Replayed:
    """A function that issues the same operations every time, recorded for each shape of its inputs.

    It computes as it is the first time, and is recorded the second.

    Args:
        function: must take nothing but inputs and noise that changes; both lie in the same places every time.
        noise: what the function draws from.
        recorder: of the device.
    """

    def __init__(self, function: Function, noise: ClientNoise, recorder: Recorder) -> None:
        self.function, self.noise, self.recorder = function, noise, recorder
        self._known: dict[object, _Recording] = {}

    def __call__(self, inputs: Sequence[Tensor | None], due: int, step: int = 0, active: int = 0) -> list[Tensor]:
        """The results, which are the caller's to keep.

        Args:
            inputs: tensors, on the device or the host.
            due: how many calls there will be from now on, at most.
            step: of the noise.
            active: rows that take part in it.
        """
        shapes = tuple(None if value is None else value.shape for value in inputs)
        if shapes not in self._known:
            self._known[shapes] = _Recording(self.function, inputs, HeldNoise(self.noise))
        recorded = self._known[shapes]
        recorded.bring(inputs, step, active)
        if recorded.replay is None and (recorded.new or due < MIN_CALLS_DUE):
            recorded.new = False
            return list(self.recorder.run(recorded.compute))
        if recorded.replay is None:
            recorded.results, recorded.replay = self.recorder.record(recorded.compute)
        recorded.replay()
        return [result.clone() for result in recorded.results]


class _Recording:
    """A recording of one shape: where inputs, noise and results lie."""

    def __init__(self, function: Function, inputs: Sequence[Tensor | None], noise: HeldNoise) -> None:
        self.function, self.noise, self.new = function, noise, True
        self.inputs = [None if value is None else value.clone() for value in inputs]
        self.results: Sequence[Tensor] = []
        self.replay: Callable[[], None] | None = None

    def bring(self, inputs: Sequence[Tensor | None], step: int, active: int) -> None:
        """Copies what has changed to where it is read."""
        for buffer, value in zip(self.inputs, inputs, strict=True):
            if buffer is not None and value is not None:
                buffer.copy_(value)
        self.noise.begin(step, active)

    def compute(self) -> Sequence[Tensor]:
        return self.function(self.inputs, self.noise)
