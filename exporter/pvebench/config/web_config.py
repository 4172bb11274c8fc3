"""The web configuration file: TLS, users and headers, as Prometheus' exporter-toolkit defines it.

What of it pvebench cannot do is refused by name, never ignored. Otherwise than there an empty
file is refused too: one that is being written must not let everybody in.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt, model_validator

from pvebench.config.document import Document, read_document, validate
from pvebench.errors import ConfigError, Problem
from pvebench.fields import FilePath, OneOf, Strict
from pvebench.files import check_secret, read_text

# --- OpenSSL's context of a server, as a web configuration file asks for it.

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


MOST_COST: Final = 18
"""Of a hash: 2^18 rounds are several seconds of a CPU, for each wrong password."""
_HASH: Final = re.compile(r"\$2[aby]\$(?P<cost>[0-9]{2})\$[./A-Za-z0-9]{53}")
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


def _cannot(why: str) -> BeforeValidator:
    """Return what refuses a key that the toolkit knows and pvebench does not."""

    def refuse(_: Any) -> None:
        raise ValueError(f"pvebench cannot do this: {why}")

    return BeforeValidator(refuse)


def _written(given: Any) -> Any:
    if given is None:
        raise ValueError("is empty: leave it out where there is to be no TLS")
    return given


def _version(name: Any) -> ssl.TLSVersion:
    text = str(name)
    if text in {"TLS10", "TLS11"}:
        raise ValueError(f"{text} is refused: RFC 8996 tells everybody to stop using it")
    if text not in _VERSIONS:
        raise ValueError(f"{text[:40]!r} is not one of {', '.join(_VERSIONS)}")
    return _VERSIONS[text]


def _client_auth(name: Any) -> Any:
    if str(name) in {"RequestClientCert", "RequireAnyClientCert", "RequireClientCert"}:
        raise ValueError(
            f"pvebench cannot do {name}, which proves nothing: write RequireAndVerifyClientCert"
        )
    return name or "NoClientCert"


def _http2(wanted: bool) -> bool:
    if wanted:
        raise ValueError("pvebench speaks HTTP/1.1 only: write false, or leave it out")
    return wanted


def _header(text: Any) -> str:
    if isinstance(text, bool) or not isinstance(text, str | int):
        raise ValueError("wants text")  # noqa: TRY004 # pydantic wants ValueError
    if not re.fullmatch("[ -~]{0,2000}", str(text)):
        raise ValueError("wants a line of up to 2000 ASCII characters")
    return str(text).strip()


def _interval(value: Any) -> float:
    """Read Go's durations: 0, `1s`, `1m30s`."""
    text = str(value)
    if text == "0":
        return 0.0
    if not re.fullmatch(f"(?:{_DURATION.pattern})+", text[:50]):
        raise ValueError(f"{text[:50]!r} is not a duration: write a number with its unit, as 1s")
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text[:50]))


def _users(given: Any) -> dict[str, bytes]:
    # Values are never shown: whoever did not hash it wrote a password there.
    if not isinstance(given, dict):
        raise ValueError("wants names and the bcrypt hashes of their passwords")  # noqa: TRY004 # pydantic tells ValueErrors
    for name, value in given.items():
        found = _HASH.fullmatch(value) if isinstance(value, str) else None
        if found is None or not 4 <= int(found["cost"]) <= MOST_COST:
            raise ValueError(
                f"{name}: wants a bcrypt hash of cost 4 to {MOST_COST}, as "
                f"`htpasswd -nBC 10 '' | tr -d ':\\n'` makes them"
            )
        if ":" in name or len(name) > 200:
            raise ValueError(f"{name[:40]}: wants a name of up to 200 characters, none of them ':'")
    return {name: value.encode() for name, value in given.items()}


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
    cert: Annotated[Any, _cannot("write the certificate to a file and name that as cert_file")] = (
        None
    )
    key: Annotated[Any, _cannot("write the key to a file and name that as key_file")] = None
    client_ca: Annotated[
        Any, _cannot("write the authority to a file and name that as client_ca_file")
    ] = None
    client_allowed_sans: Annotated[
        Any, _cannot("have an authority of your own that signs only who may")
    ] = None
    curve_preferences: Annotated[Any, _cannot("leave it out, OpenSSL chooses")] = None

    @model_validator(mode="after")
    def _fits_together(self) -> TlsFile:
        kind = self.client_auth_type
        if self.client_ca_file and kind == "NoClientCert":
            raise ValueError("client_ca_file: nobody is asked for a certificate; client_auth_type?")
        if kind == "RequireAndVerifyClientCert" and not self.client_ca_file:
            raise ValueError("client_auth_type: needs client_ca_file, whose certificates to accept")
        if self.max_version < self.min_version:
            raise ValueError("max_version: is below min_version")
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
    """`rate_limit`: one request each `interval` seconds, 0: no limit; `burst` at once."""

    interval: Annotated[float, BeforeValidator(_interval)] = 0.0
    burst: StrictInt = Field(default=0, ge=0)


class _WebFile(Strict):
    # Without its lines, as while somebody writes it, it would mean plain HTTP for everybody.
    tls_server_config: Annotated[TlsFile | None, BeforeValidator(_written)] = None
    http_server_config: _Http = _Http()
    basic_auth_users: Annotated[dict[str, bytes], BeforeValidator(_users)] = Field(
        default_factory=dict
    )
    rate_limit: RateLimit = RateLimit()


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What the file says.

    Attributes:
        tls: what to open connections with; None: plain HTTP.
        headers: name -> value, put on every answer.
        users: name -> bcrypt hash; none: everybody may ask.
        rate_limit: how often may be asked.
        files: the file and those that it names.
    """

    tls: ssl.SSLContext | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    rate_limit: RateLimit = field(default_factory=RateLimit)
    files: tuple[Path, ...] = ()


def load_web_config(path: Path) -> WebConfig:
    """Return what the file says; relative paths in it are taken from its own directory.

    Raises:
        ConfigError: with every fault of the file; or a file that it names cannot be used, or
            one with a secret can be read by others.
    """
    document = read_document(path)
    given = validate(document, _WebFile)
    if given.basic_auth_users:
        _keep_secret(path)
    headers = given.http_server_config.headers.model_dump(by_alias=True)
    tls = given.tls_server_config
    return WebConfig(
        tls=None if tls is None else _context(document, tls, path.parent),
        headers={name: text for name, text in headers.items() if text},
        users=given.basic_auth_users,
        rate_limit=given.rate_limit,
        files=(path, *(() if tls is None else _files(tls, path.parent).values())),
    )


def _files(tls: TlsFile, base: Path) -> dict[str, Path]:
    """Return key -> file."""
    given = {key: getattr(tls, key) for key in ("cert_file", "key_file", "client_ca_file")}
    return {key: base / path for key, path in given.items() if path is not None}


def _context(document: Document, tls: TlsFile, base: Path) -> ssl.SSLContext:
    files = _files(tls, base)
    for key, path in files.items():
        try:
            read_text(path, encoding="latin-1")
        except ConfigError as error:
            what = f"{key}: {path} {error.problems[0].message}"
            raise ConfigError([document.problem(("tls_server_config", key), what)]) from error
    _keep_secret(files["key_file"])
    try:
        return server_context(
            files,
            versions=(tls.min_version, tls.max_version),
            suites=tls.cipher_suites,
            ours_first=tls.prefer_server_cipher_suites,
            must_prove=tls.client_auth_type == "RequireAndVerifyClientCert",
            may_prove=tls.client_auth_type != "NoClientCert",
        )
    except ValueError as error:
        key, _, what = str(error).partition(": ")
        place = document.problem(("tls_server_config", key), f"{key}: {what}")
        raise ConfigError([place]) from error


def _keep_secret(path: Path) -> None:
    try:
        check_secret(path)
    except OSError as error:
        raise ConfigError([Problem(str(path), 0, 0, f"cannot be read: {error}")]) from error
