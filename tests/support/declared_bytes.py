"""Every byte that sites send, held to what a method's rules declare."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from support.sites import Sites

from hierfl.inference.engines.remote.wire import decode

#: what the head of an answer has, beside round and client
HEADS = {"hello": {"splits", "at"}, "round": {"diverged", "reports"}, "scores": set[str](), "finish": set[str]()}


def declared_only(
    sites: Sites, form: Mapping[str, tuple[int, ...]], names: Collection[str], response: Mapping[str, torch.Tensor]
) -> Callable[[Mapping[str, bytes]], dict[str, bytes]]:
    """A way to ask sites that fails where an answer is more than a head of known words and a message of this form.

    Args:
        sites: who are asked.
        form: of a message, {name: shape of one site's}.
        names: of groups inside sites: no head has one.
        response: of each site's rows, (n,): no message has one of its numbers.
    """

    def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = sites.ask(requests)
        for site, answer in answers.items():
            kind, (head, tensors) = decode(requests[site])[0]["kind"], decode(answer)
            size = int.from_bytes(answer[:8], "little")
            assert head.keys() == {"round", "client", *HEADS[kind]}
            assert len(answer) == 8 + size + sum(v.numel() * v.dtype.itemsize for v in tensors.values())
            assert not [name for name in names if f'"{name}"' in answer[8 : 8 + size].decode()]
            if kind == "round":
                sent = {name.partition("|")[2]: value for name, value in tensors.items()}
                assert {name: tuple(v.shape[v.dim() - len(form[name]) :]) for name, v in sent.items()} == form
                assert sum(v.numel() for v in sent.values()) == sum(torch.Size(of).numel() for of in form.values())
                rows = response[site]
                assert not any(bool(torch.isin(v.double(), rows[rows != rows.round()]).any()) for v in sent.values())
            elif kind != "scores":
                assert not tensors
        return answers

    return ask
