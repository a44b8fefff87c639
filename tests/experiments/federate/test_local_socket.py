"""A site's own process and its couriers: whatever one of them does, the next is answered."""

from __future__ import annotations

import json
import threading
from multiprocessing.connection import Client
from pathlib import Path

import pytest

from hierfl.errors import UserError
from hierfl.experiments.federate.local_socket import ADDRESS, answer_couriers, asked, listening


def test_couriers_that_misbehave_harm_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong key, one that goes away at once, one that goes before its answer, and one that comes properly."""
    folder, done = tmp_path / ("a long name " * 10), threading.Event()

    def answer(data: bytes) -> bytes:
        if data == b"last":  # set before it is answered: the thread looks whether it has ended after each answer
            done.set()
        return data[::-1]

    with listening(folder) as listener:
        assert (folder / ADDRESS).stat().st_mode & 0o777 == 0o600
        answering = threading.Thread(target=answer_couriers, args=(listener, answer, done.is_set))
        answering.start()
        endpoint = json.loads((folder / ADDRESS).read_text())
        with pytest.raises(Exception, match="digest"):
            Client(endpoint["address"], authkey=b"another")
        Client(endpoint["address"], authkey=bytes.fromhex(endpoint["key"])).close()
        gone = Client(endpoint["address"], authkey=bytes.fromhex(endpoint["key"]))
        gone.send_bytes(bytes(10**6))
        gone.close()
        big = bytes(range(256)) * 10_000
        assert asked(folder, big) == big[::-1]
        assert asked(folder, b"last") == b"tsal"
        answering.join(20)
        assert not answering.is_alive()
    lines = [line for line in caplog.messages if "courier" in line]
    assert lines[0] == "a courier has another key, and was sent away"
    assert any(line.startswith("a courier went away") for line in lines[1:])
    with pytest.raises(UserError, match="no site answers for"):
        asked(folder, b"")
