from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator

import pytest

from pvebench.drivers.linux.node_exporter import NodeExporterProbe, fetch, read_counters
from pvebench.errors import MachineError
from pvebench.model.units import MIB

PAGE = """\
# HELP node_cpu_seconds_total Seconds the CPUs spent in each mode.
# TYPE node_cpu_seconds_total counter
node_cpu_seconds_total{cpu="0",mode="idle"} 1000
node_cpu_seconds_total{cpu="0",mode="iowait"} 50
node_cpu_seconds_total{cpu="0",mode="system"} 20.5
node_cpu_seconds_total{cpu="0",mode="user"} 30
node_cpu_seconds_total{cpu="1",mode="idle"} 900
node_cpu_seconds_total{cpu="1",mode="user"} 10
# TYPE node_context_switches_total counter
node_context_switches_total 12345
# TYPE node_disk_read_bytes_total counter
node_disk_read_bytes_total{device="sda"} 1.5e+06
node_disk_read_bytes_total{device="nvme0n1"} 500000
node_disk_read_bytes_total{device="dm-0"} 999
# TYPE node_disk_written_bytes_total counter
node_disk_written_bytes_total{device="sda"} 4096
node_disk_written_bytes_total{device="mmcblk0"} 0
{stacked}
# TYPE node_pressure_io_waiting_seconds_total counter
node_pressure_io_waiting_seconds_total 7.25
# TYPE node_load1 gauge
node_load1 0.5
""".replace(
    "{stacked}",
    "\n".join(
        f'node_disk_written_bytes_total{{device="{name}"}} 999'
        for name in ("zd16", "drbd1000", "nvme0c0n1", "nvme12c3n1", "mmcblk0p1", "sda1", "ublkb0")
    ),
)


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            for number in range(self.path.count("x") * 1000 or 1):
                self.wfile.write((b"# x" * 1000 + b"\n") if number else PAGE.encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        server.shutdown()
        thread.join()


def test_work_is_every_mode_but_idle_and_iowait(url: str) -> None:
    found = NodeExporterProbe(url).snapshot()
    assert found.cpu_seconds == {"total": 60.5, "iowait": 50, "system": 20.5, "user": 40}
    assert found.cpus == 2
    assert found.context_switches == 12345


def test_pressure_is_reported(url: str) -> None:
    assert NodeExporterProbe(url).snapshot().pressure_seconds == {"io_some": 7.25}


def test_bytes_are_those_of_disks_that_stand_on_no_other(url: str) -> None:
    found = NodeExporterProbe(url).snapshot()
    assert found.bytes == {"device_read": 2_000_000, "device_write": 4096}


def test_a_page_without_end_is_broken_off_and_leaves_everything_absent(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pvebench.drivers.linux.node_exporter._MOST_BYTES", MIB)
    with pytest.raises(MachineError, match=r"response exceeds 1\.0 MiB or 5 s"):
        fetch(f"{url}/xx")
    assert dict(NodeExporterProbe(f"{url}/xx").snapshot().cpu_seconds) == {}


def test_what_does_not_answer_leaves_everything_absent_but_is_named_by_check() -> None:
    nobody = "http://127.0.0.1:1/metrics"
    found = NodeExporterProbe(nobody).snapshot()
    assert (dict(found.cpu_seconds), dict(found.bytes), found.context_switches) == ({}, {}, 0)
    with pytest.raises(MachineError, match="prometheus-node-exporter"):
        fetch(nobody)


def test_a_page_of_something_else_is_no_zero() -> None:
    assert read_counters("hello_total 1\n").cpu_seconds == {}
    with pytest.raises(MachineError, match="invalid metrics"):
        read_counters("<html>not found</html>\n")
