"""Requests and replies between parties that know each other's keys: signed, and replies encrypted to the server.

Both are safetensors files around today's plain bytes: a carrier reads the outer header, and changes nothing
unseen. A reply's key comes from an ephemeral key and the digest of its question: no key is used twice, whatever folder
was restored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from safetensors import deserialize

from .keys import Identity, PublicCard
from .refusals import CLASSES
from .wire import FORMAT, Unreadable, decode, encode, header

#: entries of outer headers
REQUEST: dict[str, type] = {
    "sealed": int, "kind": str, "round": int, "client": str, "study": str, "sequence": int, "signature": str,
}  # fmt: skip
REPLY: dict[str, type] = {
    "sealed": int, "kind": str, "round": int, "client": str, "study": str, "question": str, "refused": str,
    "audit": str, "ephemeral": str, "signature": str,
}  # fmt: skip
#: what is signed, or derived, as one thing is nothing else
REQUEST_TAG, REPLY_TAG, KEY_TAG = (f"hierfl {use} {FORMAT}\n".encode() for use in ("request", "reply", "reply key"))
#: A key encrypts one reply: it needs no other.
NONCE = bytes(12)


def question_digest(plain: bytes) -> str:
    """What names a question: equal for the same one asked again, whatever the roster and the versions are by then.

    Args:
        plain: a request as it is inside its seal.

    Returns:
        64 hexadecimal digits, of the header without its handshake and of the tensors.

    Raises:
        Unreadable: for what is no request.
    """
    head = {name: value for name, value in header(plain).items() if name != "handshake"}
    digest = hashlib.sha256(_canonical(head))
    try:
        tensors = dict(deserialize(plain))
    except Exception as error:  # whatever the parser raises of bytes that others have made
        raise Unreadable(f"it is no message of hierfl ({type(error).__name__})") from error
    for name, tensor in sorted(tensors.items()):
        digest.update(_canonical([name, tensor["dtype"], list(tensor["shape"])]))
        digest.update(tensor["data"])
    return digest.hexdigest()


def seal_request(plain: bytes, identity: Identity, study: str, sequence: int) -> bytes:
    """A request as it is carried.

    Args:
        plain: what a site is asked.
        identity: the server's.
        study: digest of the study.
        sequence: of the request among those to this client.
    """
    inside = header(plain)
    head = {"sealed": FORMAT, **{name: inside[name] for name in ("kind", "round", "client")}}
    return _signed({**head, "study": study, "sequence": sequence}, plain, identity, REQUEST_TAG)


def read_request(data: bytes) -> tuple[bytes, dict[str, Any]]:
    """The plain request and the outer header, of which nothing is checked but the form: anybody may have written them.

    Raises:
        Unreadable: for what is no sealed request.
    """
    head, plain = _outer(data, REQUEST)
    inside = header(plain)
    handshake = inside.get("handshake")
    study = handshake.get("study") if isinstance(handshake, Mapping) else None
    if [*(inside.get(name) for name in ("kind", "round", "client")), study] != [
        head[name] for name in ("kind", "round", "client", "study")
    ]:
        raise Unreadable("its header and what it holds differ")
    return plain, head


def open_request(data: bytes, server: PublicCard, client: str = "") -> tuple[bytes, dict[str, Any]]:
    """A request that the server has signed.

    Args:
        data: as it was carried.
        server: whose card was pinned.
        client: the site that it must be for; empty for any.

    Returns:
        The plain request and the outer header.

    Raises:
        Unreadable: for anything else, in words that hold nothing of it.
    """
    plain, head = read_request(data)
    _check_signature(head, plain, server, REQUEST_TAG)
    if client and head["client"] != client:
        raise Unreadable("it is for another client: compare the name at both ends")
    return plain, head


def seal_reply(
    plain: bytes, identity: Identity, server: PublicCard, asked: Mapping[str, Any], question: str, *,
    refused: str = "", audit: str = "",
) -> bytes:  # fmt: skip
    """A reply as it is carried: encrypted to the server, signed by the site. No two of one reply are the same bytes.

    Args:
        plain: what the site answers.
        identity: the site's.
        server: who may read it.
        asked: outer header of the request.
        question: the request's :func:`question_digest`.
        refused: why there is no answer, one of :data:`.refusals.CLASSES`; empty where there is one.
        audit: where the site's audit chain is by now.
    """
    once = X25519PrivateKey.generate()
    head = {
        "sealed": FORMAT, "kind": asked["kind"], "round": asked["round"], "client": identity.name,
        "study": asked["study"], "question": question, "refused": refused, "audit": audit,
        "ephemeral": once.public_key().public_bytes_raw().hex(),
    }  # fmt: skip
    key = _key(once.exchange(X25519PublicKey.from_public_bytes(server.seal)), head, server)
    return _signed(head, ChaCha20Poly1305(key).encrypt(NONCE, plain, _canonical(head)), identity, REPLY_TAG)


def sign_again(reply: bytes, identity: Identity) -> bytes:
    """A stored reply under the site's new key; what is encrypted stays as it is.

    Raises:
        Unreadable: for what is no sealed reply of this site.
    """
    head, body = _outer(reply, REPLY)
    if head["client"] != identity.name:
        raise Unreadable("another client has answered")
    head.pop("signature")
    return _signed(head, body, identity, REPLY_TAG)


def open_reply(
    data: bytes, identity: Identity, site: PublicCard, question: str, *, study: str, earlier: Sequence[Identity] = ()
) -> bytes:
    """A site's answer to this question, as plain bytes.

    Args:
        data: as it was carried.
        identity: the server's.
        site: the card of the site that was asked.
        question: the request's :func:`question_digest`.
        study: digest of the study.
        earlier: the server's keys before rotations: a site sends an answer again as it has stored it.

    Raises:
        Unreadable: for anything else, in words that hold nothing of it.
    """
    head, body = _outer(data, REPLY)
    if head["client"] != site.name:
        raise Unreadable("another client has answered")
    _check_signature(head, body, site, REPLY_TAG)
    if (head["study"], head["question"]) != (study, question):
        raise Unreadable("it answers another question")
    del head["signature"]
    for own in (identity, *earlier):
        try:
            key = _key(own.shared_with(bytes.fromhex(head["ephemeral"])), head, own.card)
            return ChaCha20Poly1305(key).decrypt(NONCE, body, _canonical(head))
        except (InvalidTag, ValueError):
            continue
    raise Unreadable("it is encrypted to another key than this server's: the site has pinned another card of it")


def signed_reply(data: bytes, site: PublicCard) -> dict[str, Any]:
    """The outer header of a reply that a site has signed, also where only the server can read its content.

    Raises:
        Unreadable: for anything else.
    """
    head, body = _outer(data, REPLY)
    if head["client"] != site.name:
        raise Unreadable("another client has answered")
    _check_signature(head, body, site, REPLY_TAG)
    return head


def study_of(plain: bytes) -> str:
    """Digest of the study that a plain request is of."""
    return str(header(plain)["handshake"]["study"])


def _canonical(value: Any) -> bytes:
    """One string of bytes, the same on every machine."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _to_sign(head: Mapping[str, Any], body: bytes, tag: bytes) -> bytes:
    unsigned = {name: value for name, value in head.items() if name != "signature"}
    return tag + _canonical(unsigned) + hashlib.sha256(body).digest()


def _signed(head: dict[str, Any], body: bytes, identity: Identity, tag: bytes) -> bytes:
    signature = identity.sign(_to_sign(head, body, tag)).hex()
    return encode({**head, "signature": signature}, {"body": torch.frombuffer(bytearray(body), dtype=torch.uint8)})


def _check_signature(head: Mapping[str, Any], body: bytes, card: PublicCard, tag: bytes) -> None:
    try:
        signature = bytes.fromhex(head["signature"])
    except ValueError:
        signature = b""
    if not card.has_signed(signature, _to_sign(head, body, tag)):
        raise Unreadable(f"it is not signed by {card.name} ({card.fingerprint}): compare the pinned card with its own")


def _outer(data: bytes, entries: Mapping[str, type]) -> tuple[dict[str, Any], bytes]:
    """The outer header, with entries of these types and no others, and what is in the seal.

    Raises:
        Unreadable: for anything else.
    """
    head = header(data)
    if head.get("sealed") != FORMAT:
        raise Unreadable(
            f"it is not signed as hierfl's messages of format {FORMAT} are: install the same version of hierfl at both "
            "ends, or finish this study with the version that began it"
        )
    if head.keys() != entries.keys() or any(type(head[name]) is not kind for name, kind in entries.items()):
        raise Unreadable("its header is no sealed message's")
    if head["round"] < 0 or head.get("refused", "") not in ("", *CLASSES):
        raise Unreadable("its header is no sealed message's")
    tensors = decode(data)[1]
    if tensors.keys() != {"body"} or tensors["body"].dtype != torch.uint8 or tensors["body"].dim() != 1:
        raise Unreadable("it holds something else than a sealed body")
    return head, tensors["body"].numpy().tobytes()


def _key(secret: bytes, head: Mapping[str, Any], server: PublicCard) -> bytes:
    """The key of one reply, 32 bytes."""
    identity = [head[name] for name in ("study", "client", "question", "ephemeral")]
    return HKDF(SHA256(), 32, None, KEY_TAG + _canonical([*identity, server.seal.hex()])).derive(secret)
