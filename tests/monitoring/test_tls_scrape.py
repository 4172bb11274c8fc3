"""A real Prometheus scrapes over TLS with a login, configured as the documentation says."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import bcrypt
import pytest

from pvebench.cli.main import run_cli
from pvebench.web.request_filter import Access
from pvebench.web.server import WebServer, listen
from testing.certificates import make_certificate
from testing.metrics_page import page_of
from testing.packs import ROOT
from testing.prometheus import free_port, prometheus
from testing.simulated_site import app_of
from testing.simulations import simulate


def documented(first: str) -> str:
    """Return the YAML of docs/security.md that begins with this line."""
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    found = re.search(rf"```yaml\n( *{first}.*?)```", text, flags=re.DOTALL)
    assert found
    return found[1]


def secret(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    path.chmod(0o600)
    return path


def test_prometheus_scrapes_over_tls_with_a_login_as_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config"
    config.mkdir()
    own = make_certificate(config, "pvebench")
    hashed = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4)).decode()
    web = documented("tls_server_config:").replace("$2y$10$…", hashed)
    assert hashed in web
    file = secret(config / "web.yml", web)
    secret(config / "pvebench_password", "open sesame")
    simulation = simulate(tmp_path)
    simulation.worker.run()
    where = f"127.0.0.1:{free_port()}"
    app = app_of(simulation, page=page_of(simulation))
    with (
        WebServer(app, listen(where), Access(where, file=file)),
        prometheus(tmp_path, where, scrape=documented("scheme: https")) as server,
    ):
        subprocess.run(["promtool", "check", "config", f"{config}/prometheus.yml"], check=True)
        assert server.wait_for("up{job='pvebench'} == 1")
        assert server.wait_for("pvebench_run_info or pvebench_build_info")
        monkeypatch.setenv("SSL_CERT_FILE", str(own.certificate))
        login = secret(tmp_path / "login", "prometheus:open sesame\n")
        for option, severity in ((["--exporter-login-file", str(login)], "ok"), ([], "critical")):
            command = ["doctor", "--driver", "simulated", "--state", str(tmp_path / "state")]
            run_cli([*command, "--exporter", f"https://{where}", "--format=json", *option])
            rows = json.loads(capsys.readouterr().out)
            assert severity in {row["severity"] for row in rows if row["about"] == "service"}
        # The password changes on the exporter's side only: that is seen at the next scrape.
        other = bcrypt.hashpw(b"another", bcrypt.gensalt(4)).decode()
        secret(tmp_path / "new", web.replace(hashed, other)).rename(file)
        assert server.wait_for("up{job='pvebench'} == 0")
