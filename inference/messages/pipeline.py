"""What a message passes on its way to the server: stages, in order, each with its part at the client and its inverse.

A stage may change what is sent (:class:`Codec`: fewer bytes), what is received (its inverse, where single messages
arrive) and what the sum becomes (the inverse of what only a sum undoes, such as masks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch

from ..clients.chunk import ClientChunk
from ..state import State
from .codec import Compressor
from .form import Field, Form


class Stage(Protocol):
    """One thing that a group's message passes."""

    def sent_form(self, form: Form, names: Sequence[str]) -> Form:
        """The form of what :meth:`send` makes of messages of ``form``."""
        ...

    def received_form(self, form: Form, names: Sequence[str]) -> Form:
        """The form of what :meth:`receive` makes of it again: what can still be asked of the numbers."""
        ...

    def send(self, message: State, names: Sequence[str], chunk: ClientChunk) -> State:
        """Transforms, at the clients, the message that leaves them, {key: (S, ...)}."""
        ...

    def receive(self, message: State, form: Form, names: Sequence[str]) -> State:
        """Undoes :meth:`send` of a single message, as far as a single message allows."""
        ...

    def total(self, total: State) -> State:
        """Undoes, at the server, what can be undone of a sum alone."""
        ...


@dataclass(frozen=True)
class Codec:
    """Compresses the shared values' part of a message; weights and counts beside them are sent as they are.

    Args:
        compressor: unbiased, so that the sum keeps its expectation.
    """

    compressor: Compressor

    def sent_form(self, form: Form, names: Sequence[str]) -> Form:
        """Strings of bytes, all equally long."""
        return {**form, **{k: Field((self._length(form[k]),), torch.uint8) for k in names}}

    def received_form(self, form: Form, names: Sequence[str]) -> Form:
        """Decoded values fit exact relations no longer."""
        return {k: replace(field, value=None, agrees=None) for k, field in form.items()}

    def send(self, message: State, names: Sequence[str], chunk: ClientChunk) -> State:
        """Encodes."""
        coded = {}
        for name in names:
            flat = message[name].flatten(1)
            drawn = chunk.noise("compression", 1).normal(f"compression/{name}", None, flat.shape[1:])
            coded[name] = self.compressor.encode(flat, torch.special.ndtr(drawn[0].squeeze(1)))
        return {**message, **coded}

    def receive(self, message: State, form: Form, names: Sequence[str]) -> State:
        """Decodes."""
        values = {}
        for name in names:
            field = form[name]
            flat = self.compressor.decode(message[name], field.numel, field.dtype)
            values[name] = flat.view(-1, *field.shape)
        return {**message, **values}

    def total(self, total: State) -> State:
        """Nothing is left to undo."""
        return total

    def _length(self, field: Field) -> int:
        return self.compressor.length(field.numel, field.dtype.itemsize)


@dataclass(frozen=True)
class Pipeline:
    """The stages that one group's messages pass, in order.

    Args:
        stages: as a method declares them.
        names: the group's shared values.
        form: of the message as its rule makes it.
    """

    stages: Sequence[Stage]
    names: Sequence[str]
    form: Form

    @cached_property
    def forms(self) -> list[Form]:
        """The forms of the message before each stage, and after the last one."""
        forms = [self.form]
        for stage in self.stages:
            forms.append(stage.sent_form(forms[-1], self.names))
        return forms

    @property
    def sent(self) -> Form:
        """The form of what leaves a client."""
        return self.forms[-1]

    @cached_property
    def received(self) -> Form:
        """What must hold of a message's numbers once it is received."""
        form = self.form
        for stage in self.stages:
            form = stage.received_form(form, self.names)
        return form

    def send(self, message: State, chunk: ClientChunk) -> State:
        """Sends a message through all stages, at the clients."""
        for stage in self.stages:
            message = stage.send(message, self.names, chunk)
        return message

    def receive(self, message: Mapping[str, torch.Tensor]) -> State:
        """Undoes the stages of a single message, the last first."""
        received = dict(message)
        for stage, form in zip(reversed(self.stages), reversed(self.forms[:-1]), strict=True):
            received = stage.receive(received, form, self.names)
        return received

    def total(self, total: State) -> State:
        """Undoes the stages of a sum, at the server."""
        for stage in reversed(self.stages):
            total = stage.total(total)
        return total
