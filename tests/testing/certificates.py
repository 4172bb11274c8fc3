"""Certificates, made by the openssl program."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    certificate: Path
    key: Path


def make_certificate(
    directory: Path,
    name: str,
    *,
    by: Certificate | None = None,
    kind: str = "ec:prime256v1",
    usage: bool = True,
) -> Certificate:
    """Make `name.crt` and `name.key`, for 127.0.0.1 and localhost; signed by itself if by nobody.

    Args:
        kind: what openssl calls the key: `ec:CURVE` or `rsa:BITS`.
        usage: whether an authority has key usage, as Python 3.13 asks by default.
    """
    made = Certificate(directory / f"{name}.crt", directory / f"{name}.key")
    algorithm, _, size = kind.partition(":")
    key = ["rsa:" + size] if algorithm == "rsa" else ["ec", "-pkeyopt", f"ec_paramgen_curve:{size}"]
    command = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-newkey", *key, "-keyout", str(made.key), "-out", str(made.certificate)]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    if usage and by is None:
        command += ["-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"]
    if by is not None:
        command += ["-CA", str(by.certificate), "-CAkey", str(by.key)]
        command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run(command, check=True, capture_output=True)
    made.key.chmod(0o600)
    return made
