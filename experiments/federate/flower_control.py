"""A coordinator's side of Flower: keys, certificates, registered nodes, and runs, by flwr's own commands.

All of it is kept in a folder beside study.toml: nothing of this user's other Flower configuration is read or changed,
and nothing is looked up elsewhere.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomli_w

from hierfl.errors import UserError
from hierfl.files import make_folder, shown, write_whole

from .nodes import NODES, read_nodes, write_nodes

#: beside study.toml: Flower's own files of this study
HOME = ".flower"
#: seconds that one of flwr's commands may take
PATIENCE = 120.0
#: seconds in which a SuperLink that was just started has to answer, and between two looks at it
BEGINNING, PAUSE = 30.0, 1.0
#: what flwr says where nothing answers
UNREACHABLE_MESSAGES = (
    "is unavailable",
    "connection refused",
    "failed to connect",
    "statuscode.unavailable",
    "connecterror",
)
#: what flwr says of a node that it does not know
UNKNOWN_NODE_MESSAGE = "Node ID not found"
#: the app that Flower runs: three files that name what is in hierfl
BUNDLE = {
    "pyproject.toml": """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "hierfl-courier"
version = "1.0.0"
description = "Carries bytes between a server of hierfl and its sites"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "local"

[tool.flwr.app.components]
serverapp = "courier.server_app:app"
clientapp = "courier.client_app:app"

[tool.flwr.app.config]
study = ""
out = ""
home = ""
resume = false
restart = false
deadline = 0.0
trust_code = false
""",
    "courier/__init__.py": "",
    "courier/client_app.py": "from hierfl.experiments.federate.flower import client as _app\n\napp = _app\n",
    "courier/server_app.py": "from hierfl.experiments.federate.flower import server as _app\n\napp = _app\n",
}


def check_flower() -> None:
    """Refuses to go on without flwr.

    Raises:
        UserError: if it is not installed.
    """
    if find_spec("flwr") is None:
        raise UserError("this needs Flower: pip install 'hierfl[flower]'")


def write_certificates(folder: Path, hosts: Sequence[str], days: int) -> list[Path]:
    """A certificate authority of one's own, and a certificate of the SuperLink signed by it.

    Args:
        folder: where ca.crt (for every site), server.pem and server.key are written. The authority's key is not kept.
        hosts: names and addresses by which sites reach the SuperLink.
        days: that both are valid.

    Raises:
        UserError: where there are some.
    """
    check_flower()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    paths = [folder / name for name in ("ca.crt", "server.pem", "server.key")]
    if existing := [path for path in paths if path.exists()]:
        raise UserError(f"{existing[0]} exists; to rotate certificates move all three away, and send the sites ca.crt")
    make_folder(folder)
    now = datetime.datetime.now(datetime.UTC)
    until, keys = now + datetime.timedelta(days=days), [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("hierfl study CA", hosts[0][:64])]

    def begun(subject: int) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(names[subject]).issuer_name(names[0])
        builder = builder.public_key(keys[subject].public_key()).serial_number(x509.random_serial_number())
        return builder.not_valid_before(now).not_valid_after(until).add_extension(
            x509.SubjectKeyIdentifier.from_public_key(keys[subject].public_key()), False
        )  # fmt: skip

    signs = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    own = begun(0).add_extension(x509.BasicConstraints(True, 0), True).add_extension(signs, True)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key())
    served = begun(1).add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), False)
    served = served.add_extension(issuer, False).add_extension(x509.BasicConstraints(False, None), True)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = keys[1].private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    certificates = [builder.sign(keys[0], hashes.SHA256()).public_bytes(pem) for builder in (own, served)]
    for path, data, mode in zip(paths, [*certificates, secret], [0o644, 0o644, 0o600], strict=True):
        write_whole(path, data, mode=mode)
    return paths


def _host(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


class Control:
    """flwr's commands for a study.

    Args:
        study: the file; Flower's own files are beside it.
        superlink: HOST:PORT of the SuperLink.
        ca: certificate of the authority that signed its; None for a SuperLink without TLS (trials on one machine).
    """

    def __init__(self, study: Path, superlink: str, ca: Path | None) -> None:
        check_flower()
        self.superlink = superlink
        self.study, self.home = study.resolve(), study.resolve().with_name(HOME)
        if ca is not None and not ca.is_file():
            raise UserError(f"no file {ca}")
        make_folder(self.home)
        connection: dict[str, Any] = {"address": superlink}
        connection |= {"insecure": True} if ca is None else {"root-certificates": str(ca.resolve())}
        superlinks = {"superlink": {"default": "hierfl", "hierfl": connection}}
        write_whole(self.home / "config.toml", tomli_w.dumps(superlinks).encode())
        for name, text in BUNDLE.items():
            make_folder((self.home / "app" / name).parent)
            write_whole(self.home / "app" / name, text.encode())

    def register(self, client: str, key: Path) -> int:
        """Lets the node with this public key in, as this site; its number."""
        if not key.is_file():
            raise UserError(f"no file {key}: it is what hierfl federate keys writes at the site")
        if key.read_bytes()[:7] == b"hierfl-":
            raise UserError(f"{key} is the site's card, which goes into study.toml: its node's key is in node.pub")
        registered = read_nodes(self.study)
        if client in registered:
            raise UserError(f"{client} is registered already (node {registered[client]}): --remove takes it out first")
        node = int(self._flwr("supernode", "register", str(key), "hierfl", wait=True)["node-id"])
        write_nodes(self.study, {**registered, client: node})
        return node

    def unregister(self, client: str) -> None:
        """Keeps a site's node out from now on; also one that a restarted SuperLink has forgotten."""
        registered = read_nodes(self.study)
        if client not in registered:
            raise UserError(f"{client} is not in {self.study.with_name(NODES)}")
        try:
            self._flwr("supernode", "unregister", str(registered.pop(client)), "hierfl")
        except UserError as error:
            if UNKNOWN_NODE_MESSAGE not in str(error):  # a SuperLink that was started again knows no node
                raise
        write_nodes(self.study, registered)

    def start(self, out: Path, home: Path, *, resume: bool, restart: bool, deadline: float, trust_code: bool) -> str:
        """Starts the study's server in the SuperLink, with the keys of a folder; the run's number."""
        config = {
            "study": str(self.study), "out": str(out.resolve()), "home": str(home.resolve()), "resume": resume,
            "restart": restart, "deadline": float(deadline), "trust_code": trust_code,
        }  # fmt: skip
        options = self.home / "run.toml"
        write_whole(options, tomli_w.dumps(config).encode())
        arguments = "run", str(self.home / "app"), "hierfl", "--run-config", str(options)
        return str(self._flwr(*arguments, wait=True)["run-id"])

    def status(self, run: str) -> str:
        """The status of a run, in flwr's words."""
        return str(self._flwr("ls", "hierfl", "--run-id", run)["runs"][0]["status"])

    def stop(self, run: str) -> None:
        """Ends a run."""
        self._flwr("stop", run, "hierfl")

    def _flwr(self, *arguments: str, wait: bool = False) -> dict[str, Any]:
        """What one of flwr's commands says.

        Args:
            arguments: of the command.
            wait: whether a SuperLink that does not answer yet is tried again for :data:`BEGINNING` seconds.

        Raises:
            UserError: where it fails, with its own words.
        """
        end, pause = time.monotonic() + (BEGINNING if wait else 0.0), PAUSE
        while True:
            while not _listens(self.superlink) and time.monotonic() + pause < end:
                time.sleep(pause)  # a look at the port costs nothing, one of flwr's commands seconds
            try:
                return self._flwr_once(*arguments)
            except NotThere as error:
                if time.monotonic() + pause > end:
                    waited = f" (tried for {BEGINNING:.0f} s)" if wait else ""
                    raise UserError(
                        f"{error}; no SuperLink answers at {self.superlink}{waited}: start flower-superlink there, "
                        "look at its port, and say --ca where it has a certificate"
                    ) from error
            time.sleep(pause)

    def _flwr_once(self, *arguments: str) -> dict[str, Any]:
        environment = {**os.environ, **environment_of(self.home)}
        # Its script may not be on the path.
        command = [sys.executable, "-c", "from flwr.cli.app import app; app()", *arguments, "--format", "json"]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise UserError(f"the SuperLink has not answered in {PATIENCE:.0f} s") from error
        try:
            reply: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError as error:
            words = shown(" ".join((done.stderr or done.stdout).split())[-300:])
            raise _failed(arguments[0], words) from error
        if done.returncode or reply.get("success") is False:
            why = reply.get("error-message") or done.stderr
            raise _failed(arguments[0], shown(" ".join(str(why).split())[:300]))
        return reply


class NotThere(UserError):
    """A SuperLink that does not answer, or not yet."""


def _listens(superlink: str) -> bool:
    """Whether anything does at HOST:PORT; an address that is none is flwr's to refuse."""
    host, _, port = superlink.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=PAUSE):
            return True
    except ValueError:
        return True
    except OSError:
        return False


def _failed(command: str, words: str) -> UserError:
    kind = NotThere if any(sign in words.lower() for sign in UNREACHABLE_MESSAGES) else UserError
    return kind(f"flwr {command} has failed: {words}")


def environment_of(home: Path) -> dict[str, str]:
    """What keeps Flower to its own folder, and from looking anything up elsewhere."""
    return {
        "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }  # fmt: skip
