"""Messages as bytes: whole, or cut off."""

from __future__ import annotations

import torch

from hierfl.inference.engines.remote.wire import decode, encode, is_cut_off


def test_every_beginning_of_a_message_is_seen_to_be_cut_off_and_the_whole_is_not() -> None:
    """A file that is still being copied is waited for; one that is whole is read."""
    tensors = {"w": torch.arange(3.0), "n": torch.tensor([7])}
    data = encode({"round": 1}, tensors)
    assert not is_cut_off(data)
    assert [k for k in range(len(data)) if not is_cut_off(data[:k])] == []
    head, decoded = decode(data)
    assert head == {"round": 1}
    assert all(torch.equal(decoded[name], value) for name, value in tensors.items())


def test_what_is_no_message_is_not_waited_for() -> None:
    assert not is_cut_off(b"{" * 200)  # its length would be beyond any header's
    assert not is_cut_off((5).to_bytes(8, "little") + b"[1,2]")
