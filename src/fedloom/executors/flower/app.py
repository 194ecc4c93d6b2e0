"""A ready Flower app as a folder, and certificates and keys to try a real federation with."""

from __future__ import annotations

import datetime
import ipaddress
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...core.errors import FedloomError
from ...core.files import write_atomic
from ...engine.config import Config
from .settings import Settings, flat

PROJECT = """# A Flower app: fedloom does the work, this file says what. `flwr run .` simulates it on this machine;
# `flwr run . NAME` runs it on the federation NAME of $FLWR_HOME/config.toml. See fedloom's docs/flower.md.
[project]
name = "{name}"
version = "1.0.0"
description = "{method} by fedloom"
license = "Apache-2.0"
# Flower installs nothing at the sites: fedloom must be there, in the same version everywhere.
dependencies = ["fedloom[flower]"]

[tool.flwr.app]
publisher = "fedloom"

[tool.flwr.app.components]
serverapp = "fedloom.cli.serverapp:app"
clientapp = "fedloom.executors.flower.client:app"

# Every setting of the run (docs/settings.md) and of the federation (docs/flower.md). Any of them can be changed for one
# run: flwr run . --run-config "schedule.rounds=20 training.lr=0.01". An empty text means: not set.
[tool.flwr.app.config]
"""


def write_app(folder: Path, config: Config, settings: Settings) -> Path:
    """Write the app for a run; returns its file."""
    path = folder / "pyproject.toml"
    if path.exists():
        raise FedloomError(f"{path} is there already; choose another folder.")
    name = (
        re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:32] or "fedloom-app"
    )
    lines, section = [], ""
    for key, value in flat(config, settings).items():
        table, dot, name_of = key.rpartition(".")
        if dot and table != section:
            section = table
            lines += ["", f"[tool.flwr.app.config.{table}]"]
        lines.append(f"{name_of} = {json.dumps(value, ensure_ascii=False)}")
    text = PROJECT.format(name=name, method=Path(config.method).stem) + "\n".join(lines) + "\n"
    write_atomic(path, text.encode())
    return path


def write_certificates(folder: Path, sites: int, hosts: Iterable[str]) -> list[Path]:
    """A certificate authority, a server certificate for `hosts`, and a key pair for each site. For tests only."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives import serialization as how
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise FedloomError("certificates need the extra: pip install 'fedloom[flower]'") from None
    if folder.exists() and any(folder.iterdir()):
        raise FedloomError(f"{folder} is not empty; keys are not overwritten.")
    written: list[Path] = []

    def private(name: str, key: ec.EllipticCurvePrivateKey, form: how.PrivateFormat) -> None:
        data = key.private_bytes(how.Encoding.PEM, form, how.NoEncryption())
        write_atomic(folder / name, data)
        (folder / name).chmod(0o600)
        written.append(folder / name)

    def public(name: str, data: bytes) -> None:
        write_atomic(folder / name, data)
        written.append(folder / name)

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)

    def certificate(owner: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(named(owner))
            .issuer_name(named("fedloom test authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + datetime.timedelta(days=365))
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
        )

    authority, server = (
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP384R1()),
    )
    signed = (
        certificate("fedloom test authority", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(False, False, False, False, False, True, True, False, False),
            critical=True,
        )
        .sign(authority, hashes.SHA384())
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    shown = (
        certificate("fedloom test server", server)
        .add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(issuer, critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .sign(authority, hashes.SHA384())
    )
    private("ca.key", authority, how.PrivateFormat.TraditionalOpenSSL)
    public("ca.crt", signed.public_bytes(how.Encoding.PEM))
    private("server.key", server, how.PrivateFormat.TraditionalOpenSSL)
    public("server.crt", shown.public_bytes(how.Encoding.PEM))
    for k in range(sites):
        key = ec.generate_private_key(ec.SECP384R1())
        private(f"site-{k}", key, how.PrivateFormat.OpenSSH)
        public(
            f"site-{k}.pub",
            key.public_key().public_bytes(how.Encoding.OpenSSH, how.PublicFormat.OpenSSH),
        )
    return written


def _host(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
