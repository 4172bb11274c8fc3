"""Messages to real servers: a mail server, a web server, and servers that mean it badly.

The mail server is aiosmtpd, the web server Python's own: neither knows of us. What they get is what
apprise makes of a message.
"""

from __future__ import annotations

import email
import email.policy
import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from pvebench.cli.main import run_cli
from pvebench.notify.delivery import Sent, send
from testing.packs import ROOT
from testing.prometheus import free_port

SECRET = "hunter2"


class Mailbox:
    """Takes every mail; aiosmtpd calls it."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[str] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 # aiosmtpd calls it by this name
        self.recipients += envelope.rcpt_tos
        parsed = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(parsed, EmailMessage)
        self.mails.append(parsed)
        return "250 taken"


@contextmanager
def mail_server() -> Iterator[tuple[Mailbox, str]]:
    mailbox, port = Mailbox(), free_port()
    controller = Controller(mailbox, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        address = f"mailto://127.0.0.1:{port}?mode=insecure"
        yield mailbox, f"{address}&from=pvebench@example.org&to=admin@example.org"
    finally:
        controller.stop()


class WebHook(http.server.BaseHTTPRequestHandler):
    """Answers as its path says."""

    asked: list[tuple[str, dict[str, Any]]]
    over: threading.Event

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append((self.path, json.loads(content)))
        kind = self.path.split("/")[1]
        if kind == "elsewhere":
            self.send_response(307)
            self.send_header("Location", "/fine/")
            self.end_headers()
        elif kind == "drip":
            self.send_response(200)
            self.end_headers()
            while not self.over.wait(0.2):
                self._write(b"x")
        elif kind == "endless":
            self.send_response(200)
            self.end_headers()
            while not self.over.is_set() and self._write(b"x" * 100_000):
                pass
        else:
            self.send_response(int(kind) if kind.isdigit() else 200)
            self.end_headers()

    def _write(self, content: bytes) -> bool:
        try:
            self.wfile.write(content)
        except OSError:
            return False
        return True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def web_server() -> Iterator[tuple[list[tuple[str, dict[str, Any]]], str]]:
    over = threading.Event()
    asked: list[tuple[str, dict[str, Any]]] = []
    handler = type("Handler", (WebHook,), {"asked": asked, "over": over})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield asked, f"json://user:{SECRET}@127.0.0.1:{server.server_port}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def test_a_mail_arrives_with_its_title_and_text_at_its_receiver_only() -> None:
    title = "pvebench: slower\r\nBcc: other@example.org\r\n\r\nx"
    with mail_server() as (mailbox, address):
        assert send(address, title, "One <b>line</b>\nÄnother\n.\nQUIT") == Sent()
    (mail,) = mailbox.mails
    assert mailbox.recipients == ["admin@example.org"]
    assert mail["Bcc"] is None
    assert mail["Subject"].startswith("pvebench: slower")
    assert mail.get_content().splitlines()[:4] == ["One <b>line</b>", "Änother", ".", "QUIT"]


def test_a_webhook_gets_the_message_and_only_the_one_that_is_named() -> None:
    with web_server() as (asked, address):
        assert send(f"{address}/fine/", "title", "text") == Sent()
        assert asked[0][1]["title"] == "title"
        assert asked[0][1]["message"] == "text"
        assert send(f"{address}/elsewhere/", "t", "x").reason == "the server returned status 307"
        assert [path for path, _ in asked] == ["/fine/", "/elsewhere/"]


@pytest.mark.parametrize(
    ("status", "permanent"),
    [("500", False), ("404", True), ("408", False), ("425", False), ("429", False)],
)
def test_what_a_server_refuses_is_reported_by_its_status(status: str, permanent: bool) -> None:
    with web_server() as (_, address):
        sent = send(f"{address}/{status}/", "title", "text")
    assert sent == Sent(reason=f"the server returned status {status}", permanent=permanent)


@pytest.mark.parametrize("kind", ["drip", "endless"])
def test_a_server_that_answers_without_end_is_left_in_time(kind: str) -> None:
    with web_server() as (asked, address):
        for seconds in (8, 16, 32):  # on a busy machine, the library is not imported in 8 s
            sent = send(f"{address}/{kind}/", "title", "text", seconds=seconds)
            if asked:
                break
        assert len(asked) == 1
    assert sent.reason
    assert SECRET not in sent.reason
    # Cut off by us: whether it took the message is not known. By the bound of memory: likewise not.
    assert sent.reason.startswith(("no complete response", "sending failed"))


def test_no_server_and_no_address_are_reported_without_the_secret() -> None:
    gone = send(f"json://user:{SECRET}@127.0.0.1:{free_port()}", "t", "x")
    assert gone == Sent(reason="the server is unreachable or rejected the message")
    none = send(f"nonsense {SECRET}", "t", "x")
    assert none == Sent(reason="unknown apprise address", permanent=True)
    unchecked = send(f"jsons://{SECRET}@127.0.0.1/?verify=no", "t", "x")
    assert unchecked.permanent
    assert "certificate" in unchecked.reason


def test_the_addresses_of_the_documentation_are_ones_that_apprise_knows() -> None:
    text = (ROOT / "docs" / "notifications.md").read_text("utf-8")
    found = re.findall(r"^\| .* \| `(\w+://\S+)` \|$", text, flags=re.MULTILINE)
    assert len(found) == 7
    # In a process of its own, as always: importing it warns of what Python will not have for ever.
    script = (
        "import sys, apprise\n"
        "found = [apprise.Apprise.instantiate(one) for one in sys.argv[1:]]\n"
        "print([one is not None and one.verify_certificate for one in found])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *found], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{[True] * 7}\n"


def test_the_command_tries_every_target_and_shows_what_waits(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with web_server() as (asked, address):
        settings = tmp_path / "pvebench.yaml"
        to = f"[{{name: fine, url: '{address}/fine/'}}, {{name: sad, url: '{address}/500/'}}]"
        text = f"driver: simulated\nstate: {tmp_path}\nnotify: {{to: {to}}}\n"
        settings.write_text(text, "utf-8")
        settings.chmod(0o600)
        assert run_cli(["notify", "--test", "--config", str(settings)]) == 1
        told = capfd.readouterr()
        assert told.out == "fine: sent\nsad: the server returned status 500\n"
        assert "sending to sad failed" in told.err
        assert asked[0][1]["message"].startswith("This is a test: notifications arrive.")
    assert SECRET not in told.out + told.err
