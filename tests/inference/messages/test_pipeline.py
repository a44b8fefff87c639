"""What a message passes on its way: the form on the wire, and what the server sums in the end."""

from __future__ import annotations

import pytest
import torch
from support.methods import chunk_of
from support.rounds import Rounds

from hierfl import Federation
from hierfl.inference import Codec, Quantise, Sparsify
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.messages.codec import Compressor
from hierfl.models import PFedVEM
from hierfl.nn.architecture import Architecture

COMPRESSORS = [Quantise(1), Quantise(7), Sparsify(0.3), Sparsify(1.0)]
each = pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)


def coded(compressor: Compressor, small: Federation, net: Architecture) -> tuple[Rounds, Rounds, ClientChunk]:
    """A server that gets the base compressed, one that gets it as it is, and clients."""

    class Coded(PFedVEM):
        def pipeline(self) -> dict:
            return {"base": [Codec(compressor)]}

    plain = PFedVEM(net)
    chunk = chunk_of(plain, small).own(net.base.names)
    personal = {k: v[0, 0] for k, v in chunk.values.items()}
    return *(Rounds(method, small, chunk.shared, personal) for method in (Coded(net), plain)), chunk  # type: ignore[return-value]


@each
def test_a_coded_message_is_bytes_of_the_declared_length(
    compressor: Compressor, small: Federation, net: Architecture
) -> None:
    squeezed, plain, chunk = coded(compressor, small, net)
    sent, whole = squeezed.messages(chunk)["base"], plain.messages(chunk)["base"]
    pipeline = squeezed.exchange.groups["base"].pipeline
    assert sent.keys() == whole.keys() == pipeline.sent.keys()
    for name in net.base.names:
        length = compressor.length(chunk.shared[name].numel(), 8)
        assert sent[name].dtype is pipeline.sent[name].dtype is torch.uint8
        assert sent[name].shape == (7, *pipeline.sent[name].shape) == (7, length)
    assert torch.equal(sent["weight"], whole["weight"])  # what lies beside the values is sent as it is
    actual = sum(v.nbytes for message in squeezed.messages(chunk).values() for v in message.values())
    assert actual == 7 * squeezed.exchange.bytes
    squeezed.receive(squeezed.messages(chunk), chunk.clients)
    assert squeezed.receiver.sums.bytes == actual


@each
def test_what_the_server_sums_is_what_the_bytes_decode_to(
    compressor: Compressor, small: Federation, net: Architecture
) -> None:
    squeezed, plain, chunk = coded(compressor, small, net)
    messages = squeezed.messages(chunk)
    assert squeezed.receive(messages, chunk.clients).all()
    assert plain.receive(plain.messages(chunk), chunk.clients).all()
    total = squeezed.receiver.sums.totals["base"]
    for name in net.base.names:
        value = chunk.shared[name]
        decoded = compressor.decode(messages["base"][name], value.numel(), value.dtype).view(7, *value.shape)
        assert torch.equal(total[name], decoded.sum(0))
    if compressor == Sparsify(1.0):  # which loses nothing
        exact = plain.receiver.sums.totals["base"]
        assert all(torch.allclose(total[name], exact[name], rtol=1e-12) for name in net.base.names)


@each
def test_bytes_of_another_length_are_rejected(compressor: Compressor, small: Federation, net: Architecture) -> None:
    squeezed, _, chunk = coded(compressor, small, net)
    name = net.base.names[0]
    for change in (lambda v: v[:, :-1], lambda v: v.to(torch.int64), lambda v: v.double()):
        messages = squeezed.messages(chunk)
        messages["base"][name] = change(messages["base"][name])
        assert not squeezed.receive(messages, chunk.clients).any()
    assert squeezed.receive(squeezed.messages(chunk), chunk.clients).all()  # who could not be read has not sent
