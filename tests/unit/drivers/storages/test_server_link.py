"""The network to a storage's server: measured, held against its limit, shown beside results."""

from __future__ import annotations

import csv
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.config import Settings, load_settings
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.linux.procfs import ProcProbe
from pvebench.drivers.storages.directory import DirectoryStorage
from pvebench.drivers.storages.server_link import ServerLink
from pvebench.errors import ConfigError
from pvebench.model.ports import Site, StorageFunctions
from pvebench.model.run import Outcome, Run
from pvebench.model.units import MIB
from pvebench.model.workload import Case, Conduct
from pvebench.report.html import Subject, report_html
from pvebench.report.table import result_rows
from pvebench.runner.runner import Runner
from pvebench_lab.host.host_disk import HostDisk
from pvebench_lab.host.host_engine import ThisMachine
from testing.packs import SMALL, Recorder, tool_workload, write_pack
from testing.simulations import Simulation, simulate
from testing.storages import host_row, storage_context
from testing.stores import TemporaryStore

Captured = pytest.CaptureFixture[str]
GIGABIT = 1_000_000_000


@pytest.fixture
def server() -> Iterator[int]:
    """A port that listens and never accepts: the kernel alone answers, as with a busy server."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield listening.getsockname()[1]


def test_a_round_trip_is_what_the_kernels_need_however_busy_the_server_is(server: int) -> None:
    seconds = ServerLink(server="127.0.0.1", port=server).round_trip()
    assert seconds is not None
    assert 0 < seconds < 5


def test_where_nothing_answers_no_round_trip_is_made_up(server: int) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but it does not listen: refused
        assert ServerLink(server="127.0.0.1", port=closed.getsockname()[1]).round_trip() is None
    assert ServerLink(server="no-such-host.invalid", port=server).round_trip() is None
    assert ServerLink(link_bits_per_second=GIGABIT).round_trip() is None


def measured(tmp_path: Path, link: ServerLink, load: str = "read") -> Run:
    """Return a run of the host's own row on a directory that is said to be a server's."""
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    (tmp_path / "volumes").mkdir()
    options = storage_context(name="cifs", kind="dir", owner="me", path=str(tmp_path / "volumes"))
    storage = DirectoryStorage(options, store.journal)
    host = HostDisk(
        node="lab", storages={"cifs": storage}, machine=ThisMachine(tmp_path / "run", store.journal)
    )
    site = Site(
        node="lab",
        hypervisor=host,
        probe=ProcProbe(lambda: None, lambda: tmp_path),
        clock=SystemClock(),
        storages=StorageFunctions(networks={"cifs": link}),
    )
    scenario = host_row(16 * MIB, storage="cifs")
    workload = tool_workload(
        "fio", {"rw": load, "bs": "64k"}, ramp_seconds=0.1, runtime_seconds=1.0
    )
    runner = Runner(site, Recorder())
    run = runner.run(Case(scenario=scenario, workload=workload), cycle="", conduct=Conduct())
    runner.close()
    store.close()
    return run


def values(run: Run) -> dict[str, float]:
    return {one.metric: one.value for one in run.samples if not one.part}


def test_a_run_keeps_the_round_trip_and_its_share_of_the_link(tmp_path: Path, server: int) -> None:
    link = ServerLink(server="127.0.0.1", port=server, link_bits_per_second=100_000 * GIGABIT)
    run = measured(tmp_path, link)
    assert run.outcome in (Outcome.OK, Outcome.NOISY), run.reason
    found = values(run)
    assert 0 < found["network_round_trip"] < 5
    assert found["network_share"] == pytest.approx(found["bandwidth"] / (12_500 * GIGABIT))


@pytest.mark.parametrize("load", ["read", "write"])
def test_more_than_the_link_carries_is_implausible(tmp_path: Path, load: str) -> None:
    run = measured(tmp_path, ServerLink(link_bits_per_second=1_000_000), load)
    assert run.outcome is Outcome.IMPLAUSIBLE
    assert "of the network link's capacity, although caches are bypassed" in run.reason
    assert "network_round_trip" not in values(run)


def test_without_a_word_about_the_link_nothing_is_held_against_it(
    tmp_path: Path, server: int
) -> None:
    run = measured(tmp_path, ServerLink(server="127.0.0.1", port=server))
    assert run.outcome in (Outcome.OK, Outcome.NOISY), run.reason
    assert "network_share" not in values(run)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "storages:\n  a: {kind: dir, path: p, server: s}\n",
            "2:6: storages.a: set server and port together: 445 is CIFS, 2049 NFS, 3260 iSCSI",
        ),
        (
            "storages:\n  a: {kind: loop, path: p, link_bits_per_second: 1}\n",
            "2:28: unknown key 'link_bits_per_second'",
        ),
        (
            "storages:\n  a: {kind: dir, path: p, link_bits_per_second: 0}\n",
            "2:49: storages.a.link_bits_per_second: expected 1 or more",
        ),
    ],
)
def test_a_network_that_is_declared_wrongly_is_refused_with_its_place(
    tmp_path: Path, text: str, expected: str
) -> None:
    path = tmp_path / "pvebench.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert f"pvebench.yaml:{expected}" in str(caught.value)


def test_a_mounted_share_may_tell_its_server_and_its_link() -> None:
    settings = Settings.model_validate(
        {
            "storages": {
                "cifs": {
                    "kind": "dir",
                    "path": "/mnt",
                    "server": "nas",
                    "port": 445,
                    "link_bits_per_second": GIGABIT,
                }
            }
        }
    )
    assert settings.storages["cifs"].link_bits_per_second == GIGABIT


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    folder = tmp_path_factory.mktemp("relative")
    text = SMALL.replace("axes:", "host: true\nrelative_to: local.host.raw.none\naxes:")
    made = simulate(folder, pack=write_pack(folder, text))
    made.worker.run()
    return made


def test_rows_are_shown_relative_to_the_scenario_that_the_pack_names(
    hosted: Simulation, capsys: Captured
) -> None:
    folder = hosted.store.path.parent
    arguments = ["--state", str(folder), "--pack", str(folder / "pack.yaml")]
    assert run_cli(["results", "--format", "csv", *arguments]) == 0
    lines = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    base = next(line for line in lines if line["bus"] == "host")
    assert float(base["ratio_to_relative"]) == 1
    for line in lines:
        expected = float(line["iops"]) / float(base["iops"])
        assert float(line["ratio_to_relative"]) == pytest.approx(expected)
    over = ["--relative-to", "local.scsi.raw.none"]
    assert run_cli(["results", *over, *arguments]) == 0
    said = capsys.readouterr().out
    assert "relative" in said.splitlines()[0]
    assert (
        said.splitlines()[-1] == "relative: divided by local.scsi.raw.none with the same workload"
    )
    assert next(line for line in said.splitlines() if ".scsi." in line).split()[-1] == "1.00"


def test_a_row_that_is_not_good_is_no_measure_for_others(hosted: Simulation) -> None:
    runs = [
        replace(run, outcome=Outcome.IMPLAUSIBLE) if ".host." in run.scenario else run
        for run in hosted.store.runs(limit=100, pack="small")
    ]
    rows = result_rows(runs, relative_to="local.host.raw.none")
    assert {row["ratio_to_relative"] for row in rows} == {None}


def test_the_report_has_ratios_and_says_over_what(hosted: Simulation) -> None:
    runs = hosted.store.runs(limit=100, pack="small")
    subject = Subject(
        title="", source="", node="lab", now=runs[0].finished, simulated=True, environments=()
    )
    html = report_html(subject, runs, relative_to="local.host.raw.none")
    assert "Relative: divided by local.host.raw.none with the same workload" in html
    assert '<th class="n" title="divided by local.host.raw.none">relative</th>' in html
    assert "relative</th>" not in report_html(subject, runs)


def test_check_says_whether_each_server_answers(
    tmp_path: Path, server: int, capsys: Captured
) -> None:
    settings, pack = tmp_path / "pvebench.yaml", write_pack(tmp_path)
    settings.write_text(
        f"driver: host\npacks: [{pack.name}]\nstate: s\nstorages:\n"
        f"  local: {{kind: dir, path: v, server: 127.0.0.1, port: {server}}}\n"
        "  gone: {kind: dir, path: w, server: no-such-host.invalid, port: 445}\n"
    )
    assert run_cli(["check", "--config", str(settings)]) == 3
    said = capsys.readouterr().out
    assert f"ok    network local: 127.0.0.1:{server} answers within" in said
    assert "FAIL  network gone: no-such-host.invalid:445 does not answer" in said
