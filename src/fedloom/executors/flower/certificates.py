"""Certificates and keys to try a real federation with. They are for tests only."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...core.errors import FedloomError

AUTHORITY = "fedloom test authority"


def write_certificates(folder: Path, sites: int, hosts: Iterable[str]) -> list[Path]:
    """Write an authority, a certificate of the server for `hosts`, and a key pair for each site."""
    try:
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise FedloomError("certificates need the extra: pip install 'fedloom[flower]'") from None
    if folder.exists() and any(folder.iterdir()):
        raise FedloomError(f"{folder} is not empty; keys are not overwritten.")
    pem = form.Encoding.PEM
    openssl = form.PrivateFormat.TraditionalOpenSSL
    authority = ec.generate_private_key(ec.SECP384R1())
    server = ec.generate_private_key(ec.SECP384R1())
    files = {
        "ca.key": authority.private_bytes(pem, openssl, form.NoEncryption()),
        "ca.crt": _authority(authority).public_bytes(pem),
        "server.key": server.private_bytes(pem, openssl, form.NoEncryption()),
        "server.crt": _server(server, authority, hosts).public_bytes(pem),
    }
    for k in range(sites):
        key = ec.generate_private_key(ec.SECP384R1())
        openssh = form.PrivateFormat.OpenSSH
        files[f"site-{k}"] = key.private_bytes(pem, openssh, form.NoEncryption())
        files[f"site-{k}.pub"] = key.public_key().public_bytes(
            form.Encoding.OpenSSH, form.PublicFormat.OpenSSH
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        public = name.endswith((".crt", ".pub"))
        # A private key is nobody else's to read from its first byte on.
        descriptor = os.open(
            folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644 if public else 0o600
        )
        with open(descriptor, "wb") as file:
            file.write(data)
    return [folder / name for name in files]


def _authority(key: Any) -> Any:
    """The certificate of the authority, signed by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = _certificate(AUTHORITY, key)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    return builder.sign(key, hashes.SHA384())


def _server(key: Any, authority: Any, hosts: Iterable[str]) -> Any:
    """The certificate of the server, signed by the authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    usage = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
    builder = _certificate("fedloom test server", key)
    builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    builder = builder.add_extension(issuer, critical=False)
    builder = builder.add_extension(usage, critical=False)
    return builder.sign(authority, hashes.SHA384())


def _certificate(owner: str, key: Any) -> Any:
    """A certificate that is valid for a year, not signed yet."""
    from cryptography import x509

    # Clocks of other machines may be a little behind.
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(_name(owner))
        .issuer_name(_name(AUTHORITY))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=365))
        .add_extension(identifier, critical=False)
    )


def _name(owner: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, owner)])


def _host(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
