"""Key pairs and public cards: private ones for their user alone, public ones in one line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hierfl.errors import UserError
from hierfl.inference.engines.remote.keys import Identity, PublicCard


def test_an_identity_is_kept_for_its_user_alone_and_its_card_for_everybody(tmp_path: Path) -> None:
    home = tmp_path / "at-north"
    made = Identity.make("north")
    card = made.save(home)
    assert [path.stat().st_mode & 0o777 for path in (home, home / "site.key")] == [0o700, 0o600]
    assert Identity.load(home).card == made.card == PublicCard.read(card) == PublicCard.read(card.read_text())
    assert re.fullmatch(r"([0-9a-f]{4} ){7}[0-9a-f]{4}", made.card.fingerprint)
    assert Identity.make("north").card.fingerprint != made.card.fingerprint
    signature = made.sign(b"a message")
    assert made.card.has_signed(signature, b"a message")
    assert not made.card.has_signed(signature, b"another message")
    assert not made.card.has_signed(b"", b"a message")
    assert "north" in repr(made)
    assert made.signing.private_bytes_raw().hex() not in repr(made)


def test_keys_are_not_replaced_and_rotation_keeps_the_old_ones_aside(tmp_path: Path) -> None:
    first, second = Identity.make("north"), Identity.make("north")
    first.save(tmp_path)
    with pytest.raises(UserError, match="--rotate"):
        second.save(tmp_path)
    assert Identity.load(tmp_path).card == first.card
    assert Identity.earlier(tmp_path) == []
    second.save(tmp_path, rotate=True)
    assert Identity.load(tmp_path).card == PublicCard.read(tmp_path / "north.pub") == second.card
    (old,) = Identity.earlier(tmp_path)
    assert old.card == first.card
    assert (tmp_path / f"site.key.{first.card.fingerprint.replace(' ', '')}").is_file()


@pytest.mark.parametrize(
    "text",
    ["", "hierfl-key-1 north", "hierfl-key-1 north AAAA", "hierfl-key-2 north KEYS", "hierfl-key-1 nörth KEYS",
     "hierfl-key-1 ../north KEYS", "hierfl-key-1 north KEYS more", "hierfl-key-1  north KEYS", "a\nb"],
)  # fmt: skip
def test_what_is_no_card_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    keys = Identity.make("north").card.text.split()[2]
    assert PublicCard.read(f"hierfl-key-1 north {keys}\n").name == "north"
    path = tmp_path / "north.pub"
    path.write_text(text.replace("KEYS", keys))
    for source in (path, path.read_text()):
        with pytest.raises(UserError, match="no public card") as caught:
            PublicCard.read(source)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "nörth", "a b", "../north", "-north", "n" * 64])
def test_a_name_that_could_be_taken_for_another_is_none(name: str) -> None:
    with pytest.raises(UserError, match="a name is made of letters"):
        Identity.make(name)


def test_private_keys_that_others_may_read_and_damaged_ones_are_not_used(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no keys: hierfl federate keys"):
        Identity.load(tmp_path)
    Identity.make("north").save(tmp_path)
    path = tmp_path / "site.key"
    whole = path.read_text()
    spoilt = whole.replace('name = "north"', 'name = "../n"'), whole.replace('sign = "', 'sign = "zz')
    for text in ("", whole[:-30], *spoilt):
        path.write_text(text)
        with pytest.raises(UserError, match="is damaged") as caught:
            Identity.load(tmp_path)
        assert whole.split('"')[3] not in str(caught.value)
    path.write_text(whole)
    if os.name == "posix":
        path.chmod(0o640)
        with pytest.raises(UserError, match="can be read by others"):
            Identity.load(tmp_path)
