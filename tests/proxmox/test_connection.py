"""Credentials, certificates, deadlines, retries, and what each failure is called."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pve.site import POOL, QuickClock, Site
from pvebench.drivers.proxmox.api.connection import TOKEN_VARIABLE, Api, Server, Token, read_token
from pvebench.drivers.proxmox.api.faults import LostReply, Rejected
from pvebench.drivers.proxmox.api.privileges import (
    RequiredGrants,
    excess_rights,
    missing_rights,
    sees_scrubs,
    vm_privileges,
)
from pvebench.errors import AccessDenied, Busy, DriverError, ServerGone, ServerUntrusted
from pvebench.metrics.exposition import Families
from pvebench.model.ports import Traffic
from pvebench.service.publisher import collect_api
from testing.families import families_of

SECRET = "0123-secret-4567"


def connect(site: Site, **options: object) -> Api:
    server = Server(host="127.0.0.1", port=site.api.port, **options)  # type: ignore[arg-type] # by name
    return Api(server, site.token, QuickClock())


def test_a_pinned_fingerprint_is_trusted(both: Site) -> None:
    assert both.connect().get("/version")["version"].startswith(str(both.cluster.major))


def test_a_ca_file_is_trusted(site: Site) -> None:
    assert connect(site, ca_file=site.api.certificate).get("/version")


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "No such file or directory"), ("", "no certificate"), ("-----BEGIN", "no certificate")],
)
def test_a_ca_file_that_is_none_is_named_and_the_server_not_blamed(
    site: Site, tmp_path: Path, content: str | None, text: str
) -> None:
    path = tmp_path / "pve-root-ca.pem"
    if content is not None:
        path.write_text(content, "ascii")
    with pytest.raises(ServerUntrusted, match=text) as caught:
        connect(site, ca_file=path).get("/version")
    assert str(path) in caught.value.happened
    assert "copy /etc/pve/pve-root-ca.pem" in caught.value.next_step
    assert site.api.calls == []


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "No such file or directory"),
        ("", "no certificate"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no certificate"),
    ],
)
def test_a_ca_file_that_is_taken_away_is_named_until_it_is_back_and_nothing_is_sent(
    site: Site, tmp_path: Path, content: str | None, text: str
) -> None:
    path = tmp_path / "pve-root-ca.pem"
    path.write_bytes(site.api.certificate.read_bytes())
    api = connect(site, ca_file=path)
    api.get("/version")
    path.unlink()
    if content is not None:
        path.write_text(content, "ascii")
    for ask in (lambda: api.get("/version"), lambda: api.post("/pools", poolid="x")):
        with pytest.raises(ServerUntrusted, match=text):
            ask()
    assert site.api.calls == ["GET /version"]
    path.write_bytes(site.api.certificate.read_bytes())
    assert api.get("/version")


def test_an_unknown_certificate_is_refused_before_the_token_is_sent(site: Site) -> None:
    with pytest.raises(ServerUntrusted, match="not trusted: verification failed"):
        connect(site).get("/version")
    assert site.api.calls == []


def test_another_fingerprint_is_refused_before_the_token_is_sent(site: Site) -> None:
    with pytest.raises(ServerUntrusted, match="fingerprint differs"):
        connect(site, fingerprint="AB:" * 31 + "AB").get("/version")
    assert site.api.calls == []


def test_a_wrong_token_is_named_without_its_secret(site: Site) -> None:
    wrong = Token("pvebench@pve", "bench", SECRET)
    with pytest.raises(AccessDenied) as refused:
        site.connect(wrong).get("/version")
    assert "Authentication failed!" in str(refused.value)
    assert SECRET not in str(refused.value)
    assert SECRET not in repr(wrong)


def test_an_expired_token_is_refused(site: Site) -> None:
    site.cluster.access.users["pvebench@pve"].tokens["bench"].expire = int(time.time()) - 1
    with pytest.raises(AccessDenied, match="rejects the credentials"):
        site.connect().get("/version")


def test_a_missing_right_is_named_with_its_path(site: Site) -> None:
    with pytest.raises(AccessDenied, match=r"/vms/4242, VM\.Audit"):
        site.connect().get("/nodes/pve1/qemu/4242/config")


def test_a_wrong_parameter_is_reported_in_the_servers_words(site: Site) -> None:
    with pytest.raises(Rejected) as rejected:
        site.connect().get("/cluster/nextid", vmid="abc")
    assert "type check ('integer') failed" in rejected.value.fields["vmid"]


@pytest.mark.parametrize("status", [595, 596, 599, 503])
def test_reads_survive_a_server_that_is_away_for_a_moment(site: Site, status: int) -> None:
    site.faults.add("status", "GET", "/version", times=2, status=status, text="away")
    assert site.connect().get("/version")
    assert len(site.api.calls) == 3


def test_reads_survive_an_answer_cut_off_in_the_middle(site: Site) -> None:
    site.faults.add("truncate", "GET", "/version")
    assert site.connect().get("/version")


def test_a_server_that_stays_away_is_named(site: Site) -> None:
    site.faults.add("drop_before", "GET", "/version", times=99)
    with pytest.raises(ServerGone, match="Proxmox API unreachable"):
        site.connect().get("/version")


def test_a_server_that_does_not_listen_is_named(site: Site) -> None:
    server = Server(host="127.0.0.1", port=1, fingerprint="AB:" * 31 + "AB")
    with pytest.raises(ServerGone, match="refused or impossible"):
        Api(server, site.token, QuickClock()).post("/pools", poolid="x")


def test_requests_are_counted_and_only_a_server_in_trouble_is_a_failure(site: Site) -> None:
    traffic = Traffic()
    api = Api(site.server, site.token, site.clock, traffic)
    api.get("/version")
    with pytest.raises(Rejected):
        api.get("/cluster/nextid", vmid="abc")
    site.faults.add("drop_before", "GET", "/version", times=2)
    api.get("/version")
    site.faults.add("drop_after", "POST", "/pools")
    with pytest.raises(DriverError):
        api.post("/pools", poolid="x")
    families = Families()
    collect_api({"pve1": traffic}, families)
    told = {
        (family.name, sample.labels.get("operation", "")): sample.value
        for family in families_of(families)
        for sample in family.samples
    }
    assert told["pvebench_pve_api_requests", "get"] == 5
    assert told["pvebench_pve_api_request_failures", "get"] == 2
    assert told["pvebench_pve_api_requests", "post"] == 1
    assert told["pvebench_pve_api_request_failures", "post"] == 1
    assert told["pvebench_pve_api_requests", "delete"] == 0


@pytest.mark.parametrize("kind", ["drop_before", "drop_after"])
def test_a_change_whose_answer_is_lost_is_never_sent_again(site: Site, kind: str) -> None:
    site.faults.add(kind, "POST", "/pools")  # type: ignore[arg-type] # a literal, parametrized
    for subject in ("pvebench@pve", "pvebench@pve!bench"):
        site.cluster.access.acl.append(("/", subject, "Administrator"))
    with pytest.raises(LostReply):
        site.connect().post("/pools", poolid="x")
    assert site.api.calls == ["POST /pools"]


def test_a_deadline_ends_a_call(site: Site) -> None:
    site.faults.add("delay", "POST", "/pools", seconds=2.0)
    with pytest.raises(LostReply, match="deadline"):
        site.connect().post("/pools", seconds=0.3, poolid="x")


def test_a_locked_vm_is_busy_not_broken(site: Site) -> None:
    site.faults.add("status", "PUT", "/config", text="VM is locked (backup)")
    with pytest.raises(Busy, match=r"locked \(backup\)"):
        site.connect().put("/nodes/pve1/qemu/100/config", name="x")


def test_no_quorum_is_the_servers_trouble(site: Site) -> None:
    site.faults.add("status", "PUT", "/config", text="cluster not ready - no quorum?")
    with pytest.raises(ServerGone, match="no quorum"):
        site.connect().put("/nodes/pve1/qemu/100/config", name="x")


def test_the_token_comes_from_the_environment_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text(f"a@pve!file={SECRET}\n", "ascii")
    path.chmod(0o600)
    assert read_token(path) == Token("a@pve", "file", SECRET)
    monkeypatch.setenv(TOKEN_VARIABLE, f"PVEAPIToken=b@pve!env={SECRET}")
    assert read_token(path).name == "env"


@pytest.mark.parametrize("text", ["", "secret-alone", f"root@pam={SECRET}"])
def test_what_is_no_token_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text, "ascii")
    path.chmod(0o600)
    with pytest.raises(AccessDenied) as refused:
        read_token(path)
    assert str(path) in str(refused.value)
    assert SECRET not in str(refused.value)


def test_the_rights_that_init_gives_are_those_that_check_needs(both: Site) -> None:
    table = both.connect().get("/access/permissions")
    major = both.cluster.major
    assert missing_rights(table, RequiredGrants(pool=POOL, major=major)) == []
    assert excess_rights(table) == []


def test_a_role_of_version_8_lacks_the_agent_on_9(site: Site) -> None:
    site.cluster.access.roles["StorageBenchVM"] = vm_privileges(8)
    table = site.connect().get("/access/permissions")
    assert missing_rights(table, RequiredGrants(pool=POOL, major=9)) == [
        "/pool/bench: VM.GuestAgent.Unrestricted"
    ]


def test_a_right_on_the_root_that_is_not_inherited_is_no_right_on_nodes() -> None:
    pool = dict.fromkeys(vm_privileges(9), 1)
    told = {"/": {"Sys.Audit": 0}, "/pool/bench": pool}
    assert sees_scrubs(told)
    assert missing_rights(told, RequiredGrants(pool=POOL, major=9)) == ["/nodes: Sys.Audit"]
    inherited = {"/": {"Sys.Audit": 1}, "/pool/bench": pool}
    assert missing_rights(inherited, RequiredGrants(pool=POOL, major=9)) == []


def test_a_token_needs_the_rights_itself_not_only_its_user(site: Site) -> None:
    access = site.cluster.access
    access.acl = [entry for entry in access.acl if "!" not in entry[1]]
    assert site.connect().get("/access/permissions") == {}


def test_an_administrators_token_is_noticed(site: Site) -> None:
    for subject in ("pvebench@pve", "pvebench@pve!bench"):
        site.cluster.access.acl.append(("/", subject, "Administrator"))
    assert excess_rights(site.connect().get("/access/permissions"))


@pytest.mark.parametrize("status", [400, 401, 403, 500, 501, 595, 596, 599])
@pytest.mark.parametrize(
    "text", ["no", "VM is locked (backup)", "can't lock file 'x'", "no quorum"]
)
@pytest.mark.parametrize("method", ["get", "post"])
def test_every_refusal_says_what_happened_its_cause_and_the_next_step_each_on_its_own(
    site: Site, status: int, text: str, method: str
) -> None:
    site.faults.add("status", method.upper(), "/pools", times=9, status=status, text=text)
    with pytest.raises(DriverError) as refused:
        getattr(site.connect(), method)("/pools", **({"poolid": "x"} if method == "post" else {}))
    error = refused.value
    assert all((error.happened, error.cause, error.next_step))
    assert str(error).count("\n") == 2
    assert "pvebench " not in error.cause
