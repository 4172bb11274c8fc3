"""OpenSSL's context of a server, as a web configuration file asks for it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_KEY_EXCHANGES: Final = ("ECDHE_ECDSA", "ECDHE_RSA")
_SUITES: Final = {
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
    "AES_128_CBC_SHA": "AES128-SHA",
    "AES_256_CBC_SHA": "AES256-SHA",
}
CIPHERS: Final = {
    f"TLS_{exchange}_WITH_{name}": f"{exchange.replace('_', '-')}-{openssl}"
    for exchange in _KEY_EXCHANGES
    for name, openssl in _SUITES.items()
}
"""Go's and IANA's name -> OpenSSL's, of the suites up to TLS 1.2."""
TLS_13_CIPHERS: Final = (
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
)
"""Named in such files too, but always all there: with TLS 1.3 there is nothing to choose."""


def server_context(
    files: Mapping[str, Path],
    *,
    versions: tuple[ssl.TLSVersion, ssl.TLSVersion],
    suites: Sequence[str],
    ours_first: bool,
    must_prove: bool,
    may_prove: bool,
) -> ssl.SSLContext:
    """Return a context.

    Args:
        files: `cert_file`, `key_file`, and perhaps `client_ca_file`.
        versions: lowest and highest.
        suites: names among CIPHERS and TLS_13_CIPHERS; none: OpenSSL's choice.
        ours_first: their order counts, not the client's.
        must_prove, may_prove: whether clients need a certificate; whether one is looked at.

    Raises:
        ValueError: `key: what is wrong`, with the key of `files` that it is about.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = versions
    context.options |= ssl.OP_NO_RENEGOTIATION
    if not ours_first:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    chosen = [CIPHERS[name] for name in suites if name in CIPHERS]
    if chosen:
        context.set_ciphers(":".join(chosen))
    _load_pair(context, files["cert_file"], files["key_file"])
    if may_prove:
        _load_authorities(context, files.get("client_ca_file"))
        context.verify_mode = ssl.CERT_REQUIRED if must_prove else ssl.CERT_OPTIONAL
    return context


def _load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except OSError as error:
        reason = getattr(error, "reason", "")
        if reason in {"KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}:  # another; of another kind
            raise ValueError(f"key_file: {key} is not the key of {certificate}") from error
        raise ValueError(
            f"cert_file: {certificate} and {key} are not a certificate and its key in PEM "
            f"({reason or error})"
        ) from error


def _no_password() -> str:
    # Without this OpenSSL would ask at the terminal.
    raise ValueError("key_file: it is encrypted, and nobody is here who knows the password")


def _load_authorities(context: ssl.SSLContext, authority: Path | None) -> None:
    if authority is None:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        return
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise ValueError(f"client_ca_file: {authority} has no certificate in PEM") from error
