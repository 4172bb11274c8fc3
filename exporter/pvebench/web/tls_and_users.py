"""The web configuration file: TLS, users and headers, as Prometheus' exporter-toolkit defines it.

Unsupported keys are rejected by name, never ignored. Unlike the toolkit, pvebench also rejects an
empty file: a file that is being written must not disable the login.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt, model_validator

from pvebench.config.document import Document, read_document, validate
from pvebench.errors import ConfigError, Problem
from pvebench.fields import FilePath, OneOf, Strict, host_and_port, is_loopback
from pvebench.files import check_secret, read_text

# --- TLS context of the server.

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
"""Name of Go and IANA -> name of OpenSSL, for the suites up to TLS 1.2."""
TLS_13_CIPHERS: Final = (
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
)
"""Allowed in the file, but always enabled: TLS 1.3 suites are not selectable."""


def _server_context(tls: TlsFile, files: Mapping[str, Path]) -> ssl.SSLContext:
    """Return the TLS context of the server.

    Args:
        files: `cert_file`, `key_file`, and optionally `client_ca_file`.

    Raises:
        ValueError: `key: problem`, with the affected key of `files`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = tls.min_version, tls.max_version
    context.options |= ssl.OP_NO_RENEGOTIATION
    if not tls.prefer_server_cipher_suites:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    chosen = [CIPHERS[name] for name in tls.cipher_suites if name in CIPHERS]
    if chosen:
        context.set_ciphers(":".join(chosen))
    _load_pair(context, files["cert_file"], files["key_file"])
    if tls.client_auth_type != "NoClientCert":
        _load_authorities(context, files.get("client_ca_file"))
        required = tls.client_auth_type == "RequireAndVerifyClientCert"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def _load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except OSError as error:
        reason = getattr(error, "reason", "")
        if reason in {
            "KEY_VALUES_MISMATCH",
            "NO_CERTIFICATE_ASSIGNED",
        }:  # another key; another type
            raise ValueError(f"key_file: {key} is not the key of {certificate}") from error
        raise ValueError(
            f"cert_file: {certificate} and {key} are not a certificate and its key in PEM format "
            f"({reason or error})"
        ) from error


def _no_password() -> str:
    # Without this, OpenSSL would prompt on the terminal.
    raise ValueError("key_file: encrypted key; use one without a password")


def _load_authorities(context: ssl.SSLContext, authority: Path | None) -> None:
    if authority is None:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        return
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise ValueError(f"client_ca_file: {authority} has no certificate in PEM format") from error


# --- Keys of the file.

MAX_COST: Final = 18
"""Maximum cost of a hash: 2^18 rounds take several CPU seconds per wrong password."""
_HASH: Final = re.compile(r"\$2[aby]\$(?P<cost>[0-9]{2})\$[./A-Za-z0-9]{53}")
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


def _unsupported(action: str) -> BeforeValidator:
    """Return a validator that rejects a key that only the toolkit supports."""

    def reject(_: Any) -> None:
        raise ValueError(f"not supported by pvebench; {action}")

    return BeforeValidator(reject)


def _not_empty(value: Any) -> Any:
    if value is None:
        raise ValueError("empty; remove the key to use plain HTTP")
    return value


def _version(name: Any) -> ssl.TLSVersion:
    text = str(name)
    if text in {"TLS10", "TLS11"}:
        raise ValueError(f"{text} is deprecated by RFC 8996; use TLS12 or TLS13")
    if text not in _VERSIONS:
        raise ValueError(f"{text[:40]!r} is not one of {', '.join(_VERSIONS)}")
    return _VERSIONS[text]


def _client_auth(name: Any) -> Any:
    if str(name) in {"RequestClientCert", "RequireAnyClientCert", "RequireClientCert"}:
        raise ValueError(f"{name} does not verify the certificate; use RequireAndVerifyClientCert")
    return name or "NoClientCert"


def _http2(enabled: bool) -> bool:
    if enabled:
        raise ValueError("pvebench supports HTTP/1.1 only; use false, or remove the key")
    return enabled


def _header(text: Any) -> str:
    if isinstance(text, bool) or not isinstance(text, str | int):
        raise ValueError("expected text")  # noqa: TRY004 # pydantic expects ValueError
    if not re.fullmatch("[ -~]{0,2000}", str(text)):
        raise ValueError("expected one line of up to 2000 ASCII characters")
    return str(text).strip()


def _interval(value: Any) -> float:
    """Return the seconds of a Go duration: 0, `1s`, `1m30s`."""
    text = str(value)
    if text == "0":
        return 0.0
    if not re.fullmatch(f"(?:{_DURATION.pattern})+", text[:50]):
        raise ValueError(f"invalid duration {text[:50]!r}; write a number with its unit, like 1s")
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text[:50]))


def _users(entries: Any) -> dict[str, bytes]:
    # Values are never shown: an invalid one may be a password that was not hashed.
    if not isinstance(entries, dict):
        raise ValueError("expected names and bcrypt hashes of their passwords")  # noqa: TRY004 # pydantic expects ValueError
    for name, value in entries.items():
        match = _HASH.fullmatch(value) if isinstance(value, str) else None
        if match is None or not 4 <= int(match["cost"]) <= MAX_COST:
            raise ValueError(
                f"{name}: expected a bcrypt hash with cost 4 to {MAX_COST}; create it with "
                f"`htpasswd -nBC 10 '' | tr -d ':\\n'`"
            )
        if ":" in name or len(name) > 200:
            raise ValueError(f"{name[:40]}: expected a name of up to 200 characters without ':'")
    return {name: value.encode() for name, value in entries.items()}


Version = Annotated[ssl.TLSVersion, BeforeValidator(_version)]
ClientAuth = Annotated[
    Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"],
    BeforeValidator(_client_auth),
]
HeaderText = Annotated[str, BeforeValidator(_header)]


class TlsFile(Strict):
    """`tls_server_config`."""

    cert_file: FilePath
    key_file: FilePath
    client_auth_type: ClientAuth = "NoClientCert"
    client_ca_file: FilePath | None = None
    min_version: Version = ssl.TLSVersion.TLSv1_2
    max_version: Version = ssl.TLSVersion.TLSv1_3
    cipher_suites: tuple[Annotated[str, OneOf(*CIPHERS, *TLS_13_CIPHERS)], ...] = ()
    prefer_server_cipher_suites: StrictBool = True
    cert: Annotated[Any, _unsupported("write the certificate to a file and use cert_file")] = None
    key: Annotated[Any, _unsupported("write the key to a file and use key_file")] = None
    client_ca: Annotated[
        Any, _unsupported("write the CA certificate to a file and use client_ca_file")
    ] = None
    client_allowed_sans: Annotated[
        Any, _unsupported("use your own CA that signs only the certificates of allowed clients")
    ] = None
    curve_preferences: Annotated[Any, _unsupported("remove it; OpenSSL selects the curve")] = None

    @model_validator(mode="after")
    def _fits_together(self) -> TlsFile:
        kind = self.client_auth_type
        if self.client_ca_file and kind == "NoClientCert":
            raise ValueError("client_ca_file: has no effect; set client_auth_type")
        if kind == "RequireAndVerifyClientCert" and not self.client_ca_file:
            raise ValueError("client_auth_type: requires client_ca_file; add it")
        if self.max_version < self.min_version:
            raise ValueError("max_version: below min_version; correct one of them")
        return self


class _Headers(Strict):
    csp: HeaderText = Field("", alias="Content-Security-Policy")
    frames: Literal["", "deny", "sameorigin"] = Field("", alias="X-Frame-Options")
    types: Literal["", "nosniff"] = Field("", alias="X-Content-Type-Options")
    xss: HeaderText = Field("", alias="X-XSS-Protection")
    hsts: HeaderText = Field("", alias="Strict-Transport-Security")


class _Http(Strict):
    http2: Annotated[StrictBool, AfterValidator(_http2)] = False
    headers: _Headers = _Headers()


class RateLimit(Strict):
    """`rate_limit`: one request per `interval` seconds (0: no limit), with bursts of `burst`."""

    interval: Annotated[float, BeforeValidator(_interval)] = 0.0
    burst: StrictInt = Field(default=0, ge=0)


class _WebFile(Strict):
    # An empty section, such as of an unfinished file, would mean plain HTTP without a login.
    tls_server_config: Annotated[TlsFile | None, BeforeValidator(_not_empty)] = None
    http_server_config: _Http = _Http()
    basic_auth_users: Annotated[dict[str, bytes], BeforeValidator(_users)] = Field(
        default_factory=dict
    )
    rate_limit: RateLimit = RateLimit()


@dataclass(frozen=True, slots=True)
class WebConfig:
    """Content of the file.

    Attributes:
        tls: TLS context of the server; None: plain HTTP.
        headers: name -> value, added to every response.
        users: name -> bcrypt hash; empty: no login.
        rate_limit: limit of requests.
        files: the file and the files that it refers to.
        explicit: the keys of the file that restrict access, even if they are empty.
    """

    tls: ssl.SSLContext | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    rate_limit: RateLimit = field(default_factory=RateLimit)
    files: tuple[Path, ...] = ()
    explicit: frozenset[str] = frozenset()

    def missing_from(self, new: WebConfig) -> list[str]:
        """Return the keys whose restrictions the `new` file lacks without saying so."""
        verified = self.tls is not None and self.tls.verify_mode is ssl.CERT_REQUIRED
        restrictions = {"basic_auth_users": bool(self.users), "client_auth_type": verified}
        return [key for key, on in restrictions.items() if on and key not in new.explicit]


def scheme_of(file: Path | None) -> str:
    """Return the URL scheme that clients must use, by the file: `http` or `https`.

    Raises:
        ConfigError: as `load_web_config`.
    """
    return "http" if file is None or load_web_config(file).tls is None else "https"


def exposure(listen: str, file: Path | None) -> str:
    """Return a warning if a network can read what is served; empty: none. Raises ConfigError."""
    if is_loopback(host_and_port(listen)[0]):
        return ""
    config = WebConfig() if file is None else load_web_config(file)
    verified = config.tls is not None and config.tls.verify_mode is ssl.CERT_REQUIRED
    lacks = ["no users"] * (not config.users and not verified) + ["no TLS"] * (config.tls is None)
    text = f"warning: {listen} has {' and '.join(lacks)}: others can read what it serves"
    return f"{text}; set --web.config.file" if lacks else ""


def load_web_config(path: Path) -> WebConfig:
    """Return the content of the file; relative paths in it are relative to its own directory.

    Raises:
        ConfigError: with all problems of the file; or a file that it refers to cannot be used, or
            others can read a file with a secret.
    """
    document = read_document(path)
    content = validate(document, _WebFile)
    if content.basic_auth_users:
        _check_secret(path)
    headers = content.http_server_config.headers.model_dump(by_alias=True)
    tls = content.tls_server_config
    return WebConfig(
        tls=None if tls is None else _context(document, tls, path.parent),
        headers={name: text for name, text in headers.items() if text},
        users=content.basic_auth_users,
        rate_limit=content.rate_limit,
        files=(path, *(() if tls is None else _files(tls, path.parent).values())),
        explicit=frozenset(content.model_fields_set | (tls.model_fields_set if tls else set())),
    )


def _files(tls: TlsFile, base: Path) -> dict[str, Path]:
    """Return key -> file."""
    paths = {key: getattr(tls, key) for key in ("cert_file", "key_file", "client_ca_file")}
    return {key: base / path for key, path in paths.items() if path is not None}


def _context(document: Document, tls: TlsFile, base: Path) -> ssl.SSLContext:
    files = _files(tls, base)
    for key, path in files.items():
        try:
            read_text(path, encoding="latin-1")
        except ConfigError as error:
            message = f"{key}: {path} {error.problems[0].message}"
            raise ConfigError([document.problem(("tls_server_config", key), message)]) from error
    _check_secret(files["key_file"])
    try:
        return _server_context(tls, files)
    except ValueError as error:
        key, _, message = str(error).partition(": ")
        problem = document.problem(("tls_server_config", key), f"{key}: {message}")
        raise ConfigError([problem]) from error


def _check_secret(path: Path) -> None:
    try:
        check_secret(path)
    except OSError as error:
        raise ConfigError([Problem(str(path), 0, 0, f"cannot be read: {error}")]) from error
