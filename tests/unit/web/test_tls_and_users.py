"""The web configuration file, as docs/web-configuration.md of exporter-toolkit has it."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
from pathlib import Path

import pytest

from pvebench.errors import ConfigError
from pvebench.web.tls_and_users import CIPHERS, TLS_13_CIPHERS, WebConfig, exposure, load_web_config
from testing.certificates import make_certificate

HASH = "$2y$10$" + "a" * 53
PAIR = "cert_file: server.crt, key_file: server.key"
GO_SUITES = [*CIPHERS, *TLS_13_CIPHERS]
"""Names of crypto/tls.CipherSuites."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with certificates and keys."""
    directory = tmp_path_factory.mktemp("web")
    for name in ("server", "other"):
        make_certificate(directory, name, kind="rsa:2048")
    make_certificate(directory, "client")
    locked = ["openssl", "pkey", "-in", str(directory / "server.key"), "-aes256"]
    locked += ["-passout", "pass:secret", "-out", str(directory / "locked.key")]
    subprocess.run(locked, check=True)
    (directory / "locked.key").chmod(0o600)
    os.mkfifo(directory / "pipe")
    return directory


def read(place: Path, text: str) -> WebConfig:
    path = place / "web.yml"
    path.write_text(text, "utf-8")
    path.chmod(0o600)
    return load_web_config(path)


@pytest.mark.parametrize(
    "tls",
    [
        PAIR,
        f"{PAIR}, client_auth_type: NoClientCert",
        f"{PAIR}, client_auth_type: ''",
        f"{PAIR}, client_auth_type: VerifyClientCertIfGiven",
        f"{PAIR}, client_auth_type: VerifyClientCertIfGiven, client_ca_file: client.crt",
        f"{PAIR}, client_auth_type: RequireAndVerifyClientCert, client_ca_file: client.crt",
        f"{PAIR}, min_version: TLS12, max_version: TLS12",
        f"{PAIR}, min_version: TLS13",
        f"{PAIR}, cipher_suites: [{', '.join(GO_SUITES)}], prefer_server_cipher_suites: true",
        f"{PAIR}, cipher_suites: [TLS_AES_128_GCM_SHA256]",
    ],
)
def test_what_the_toolkit_defines_is_taken(place: Path, tls: str) -> None:
    found = read(place, f"tls_server_config: {{{tls}}}\nhttp_server_config: {{http2: false}}\n")
    assert found.tls is not None
    expected = "RequireAndVerify" in tls, "Verify" in tls
    mode = {(True, True): ssl.CERT_REQUIRED, (False, True): ssl.CERT_OPTIONAL}.get(
        expected, ssl.CERT_NONE
    )
    assert found.tls.verify_mode == mode


def test_without_tls_it_is_plain_http(place: Path) -> None:
    found = read(place, f"basic_auth_users: {{alice: {HASH}}}\n")
    assert found.tls is None
    assert found.users == {"alice": HASH.encode()}
    assert HASH not in repr(found)


def test_a_network_that_can_read_what_is_served_is_warned_of(place: Path) -> None:
    users, tls = f"basic_auth_users: {{alice: {HASH}}}\n", f"tls_server_config: {{{PAIR}}}\n"
    lacks = {"rate_limit: {}\n": "no users and no TLS", users: "no TLS", tls: "no users"}
    for text, words in lacks.items():
        read(place, text)
        assert f"0.0.0.0:9620 has {words}:" in exposure("0.0.0.0:9620", place / "web.yml")
    read(place, tls + users)
    assert exposure("0.0.0.0:9620", place / "web.yml") == ""
    assert [exposure(f"{host}:1", None) for host in ("127.0.0.1", "[::1]", "localhost")] == [""] * 3


def test_headers_and_limits_are_those_of_the_file(place: Path) -> None:
    headers = {
        "Content-Security-Policy": "default-src 'self' *.example.org",
        "X-Frame-Options": "sameorigin",
        "X-Content-Type-Options": "nosniff",
        "X-XSS-Protection": 1,  # as people write it
        "Strict-Transport-Security": "max-age=31536000; includeSubDomains",
    }
    found = read(place, f"http_server_config: {{headers: {json.dumps(headers)}}}\n")
    assert found.headers == {name: str(text) for name, text in headers.items()}
    blank = dict.fromkeys(headers, "")
    assert read(place, f"http_server_config: {{headers: {json.dumps(blank)}}}\n").headers == {}


@pytest.mark.parametrize(
    ("interval", "seconds"),
    [("0", 0), ("0s", 0), ("1h1m1s", 3661), ("2ms", 2e-3), ("1us", 1e-6), ("1ns", 1e-9)],
)
def test_intervals_are_durations_of_go(place: Path, interval: str, seconds: float) -> None:
    """See time.ParseDuration in Go's documentation."""
    limit = read(place, f"rate_limit: {{interval: {interval}, burst: 20}}\n").rate_limit
    assert (limit.interval, limit.burst) == (seconds, 20)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("http_server_config: {http2: true}", "1:29: http_server_config.http2: pvebench supp"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS10}", "RFC 8996"),
        (
            "tls_server_config: {cert_file: server.crt, key_file: server.key, "
            "min_version: TLS13, max_version: TLS12}",
            "max_version: below",
        ),
        (
            "tls_server_config: {cert_file: server.crt, key_file: server.key, key: hunter2}",
            "1:71: tls_server_config.key: not supported by pvebench; write the key to a file",
        ),
        ("tls_server_config: {cert_file: server.key, key_file: server.key}", "are not a certific"),
        ("tls_server_config: {cert_file: server.crt, key_file: client.key}", "is not the key of"),
        ("tls_server_config: {cert_file: server.crt, key_file: other.key}", "is not the key of"),
        ("tls_server_config: {cert_file: server.crt, key_file: locked.key}", "encrypted key"),
        ("tls_server_config: {cert_file: pipe, key_file: server.key}", "not a regular file"),
        (
            "tls_server_config: {cert_file: server.crt, key_file: server.key, "
            "client_auth_type: RequireAndVerifyClientCert, client_ca_file: server.key}",
            "client_ca_file: ",
        ),
        ("", "web.yml:1:1: empty file"),
        ("http_server_config: {headers: {Content-Type: a}}", "1:32: unknown key 'Content-Type'"),
        ("http_server_config: {headers: {X-Frame-Options: a}}", "'a' is not one of '', 'deny'"),
        ("http_server_config: {headers: {X-Content-Type-Options: a}}", "or 'nosniff'"),
        ("tls_server_config: {cert_filse: a}", "1:21: unknown key 'cert_filse'; did you mean"),
        ("tls_server_config: {cert_file: '', key_file: b}", "1:32: tls_server_config.cert_file:"),
        ("tls_server_config: {key_file: server.key}", "1:20: missing key 'cert_file'"),
        ("tls_server_config: {cert_file: none.crt, key_file: server.key}", "1:32: cert_file: /"),
        ("tls_server_config: {cert_file: server.crt, key_file: none.key}", "1:54: key_file: /"),
        (f"tls_server_config: {{{PAIR}, client_ca_file: client.crt}}", "set client_auth_type"),
        (
            f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert}}",
            "client_auth_type: requires client_ca_file",
        ),
        (
            f"tls_server_config: {{{PAIR}, client_auth_type: RequireAnyClientCert}}",
            "1:84: tls_server_config.client_auth_type: RequireAnyClientCert does not verify",
        ),
        (f"tls_server_config: {{{PAIR}, min_version: TLS14}}", "'TLS14' is not one of TLS12"),
        (f"tls_server_config: {{{PAIR}, cipher_suites: [RC4]}}", "cipher_suites.0: 'RC4' is not"),
        (f"tls_server_config: {{{PAIR}, curve_preferences: [X25519]}}", "not supported by"),
        (f"tls_server_config: {{{PAIR}, client_allowed_sans: [a]}}", "not supported by"),
        ("basic_auth_users: {john: hunter2}", "1:26: basic_auth_users.john: expected a bcrypt"),
        (f"basic_auth_users: {{'a:b': {HASH}}}", "without ':'"),
        (f"basic_auth_users: {{a: {HASH.replace('$10', '$31')}}}", "cost 4 to 18"),
        ("basic_auth_users: hunter2", "expected names and bcrypt hashes"),
        ("basic_auth_users: [hunter2]", "expected names and bcrypt hashes"),
        ("rate_limit: {interval: fast, burst: 1}", "invalid duration 'fast'"),
        ("rate_limit: {interval: 1s, burst: -1}", "expected 0 or more"),
        (f"tls_server_config: {{{PAIR}, min_version: [TLS12]}}", "\"['TLS12']\" is not one of"),
        (f"tls_server_config: {{{PAIR}, client_auth_type: [a]}}", "is not one of 'NoClientCert'"),
        ("tls_server_config:", "1:19: tls_server_config: empty; remove the key"),
        ("basic_auth_users:\n  a: hunter2\n  a: hunter2\n", '3:3: found duplicate key "a"'),
        ("basic_auth_users: {a: hunter2}\nbasic_auth_users: {}", 'key "basic_auth_users"'),
        (f"basic_auth_users: {{a: {HASH.replace('$10', '$٢٣')}}}", "expected a bcrypt hash"),
        ("rate_limit: {interval: ٣s, burst: 1}", "invalid duration '٣s'"),
        (f"tls_server_config: {{{PAIR}, cipher_suites: RC4}}", "expected a list, found 'RC4'"),
        ('http_server_config: {headers: {X-XSS-Protection: "1\\r\\nX-Evil: 1"}}', "one line "),
    ],
)
def test_a_fault_is_one_clear_complaint(place: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(place, text)
    assert complaint in str(refused.value)
    assert str(refused.value).startswith(f"{place}/web.yml:")
    # What stands in the place of a hash or a key may be a password.
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("name", ["server.key", "web.yml"])
def test_keys_and_hashes_are_secrets_too(place: Path, name: str) -> None:
    read(place, f"tls_server_config: {{{PAIR}}}\nbasic_auth_users: {{alice: {HASH}}}\n")
    (place / name).chmod(0o640)
    with pytest.raises(ConfigError, match="accessible to other users") as refused:
        load_web_config(place / "web.yml")
    (place / name).chmod(0o600)
    assert refused.value.next_step == f"chmod 600 {place / name}"


def test_the_suites_are_what_openssl_calls_by_these_names() -> None:
    asked = ["openssl", "ciphers", "-stdname", "ALL:@SECLEVEL=0"]
    lines = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines()
    known = {line.split()[0]: line.split()[2] for line in lines}
    assert {name: known[name] for name in CIPHERS} == CIPHERS
    assert {known[name] for name in TLS_13_CIPHERS} == set(TLS_13_CIPHERS)


def test_versions_and_suites_are_in_the_context(place: Path) -> None:
    suites = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
    more = f"cipher_suites: [{suites}], prefer_server_cipher_suites: false, max_version: TLS12"
    tls = read(place, f"tls_server_config: {{{PAIR}, {more}}}\n").tls
    assert tls is not None
    assert tls.maximum_version == ssl.TLSVersion.TLSv1_2
    chosen = [one["name"] for one in tls.get_ciphers() if one["protocol"] == "TLSv1.2"]
    assert chosen == ["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"]
    assert not tls.options & ssl.OP_CIPHER_SERVER_PREFERENCE
