"""A storage whose path leads to another file system is noticed, and nothing is measured on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.config import load_pack
from pvebench.drivers.clocks import SimulatedClock
from pvebench.drivers.linux.block_devices import facts_of, hardware_of, parts_of
from pvebench.drivers.storages.storage_settings import LocalSettings, identities_of, require_paths
from pvebench.errors import MachineError, ServerGone, VolumeError
from pvebench.model.ports import StorageFunctions
from pvebench.model.run import Outcome, Run
from pvebench.model.volume import Identity, change, device_text, is_certain, is_same
from pvebench.model.workload import Conduct
from pvebench.runner.runner import Runner
from pvebench.scheduler.plan import expand
from pvebench.store.live_results import LiveResults
from pvebench.store.state_directory import StateDirectory
from pvebench.store.store import Store
from pvebench_lab.simulated.simulated_hypervisor import SimulatedHypervisor, simulated_site
from testing.mounted_storage import MountedStorage
from testing.packs import SMALL, STORAGES, Recorder, write_pack
from testing.stores import TemporaryStore

DISK = {"type": "ext4", "fsid": "1f", "uuid": "aa", "wwn": "naa.5"}


# --- which facts count ---


@pytest.mark.parametrize(
    ("now", "same"),
    [
        (DISK, True),
        (DISK | {"serial": "new to this kernel"}, True),
        ({"type": "ext4", "uuid": "aa"}, True),
        (DISK | {"uuid": "bb"}, False),
        (DISK | {"wwn": "naa.6"}, False),
        (DISK | {"type": "xfs"}, False),
        ({"type": "ext4", "source": "/dev/sdb1"}, False),
        ({}, False),
    ],
    ids=str,
)
def test_it_is_the_same_while_all_that_is_known_of_both_is(now: Identity, same: bool) -> None:
    assert is_same(DISK, now) is same


def test_what_has_no_name_of_its_own_is_compared_and_never_called_certain() -> None:
    memory = {"type": "tmpfs", "source": "bench"}
    assert is_same(memory, dict(memory))
    assert not is_same(memory, {"type": "tmpfs", "source": "other"})
    assert not is_same(memory, {})
    assert (is_certain(memory), is_certain(DISK)) == (False, True)


def test_a_logical_volume_is_known_by_the_disks_below_it_and_an_array_by_itself(
    tmp_path: Path,
) -> None:
    """The tree as Documentation/ABI/stable/sysfs-block and admin-guide/md.rst of Linux have it."""
    below = tmp_path / "sys/devices"
    numbers = {"dm-0": "253:0", "sda": "8:0", "md0": "9:0", "sdb": "8:16"}
    files = {
        "dm-0/dm/uuid": "LVM-abc",
        "sda/device/wwid": "naa.5",
        "md0/md/uuid": "b019",
        "sdb/device/wwid": "naa.6",
    }
    for name, number in numbers.items():
        files[f"{name}/dev"] = number
        (tmp_path / "sys/dev/block").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"sys/dev/block/{number}").symlink_to(below / name)
    for name, text in files.items():
        (below / name).parent.mkdir(parents=True, exist_ok=True)
        (below / name).write_text(f"{text}\n")
    for above, parts in {"dm-0": ("sda", "md0"), "md0": ("sdb",)}.items():
        (below / above / "slaves").mkdir()
        for part in parts:
            (below / above / "slaves" / part).symlink_to(below / part)
    parts = parts_of(253 << 8, root=tmp_path)
    assert [facts_of(one, root=tmp_path) for one in parts] == [{"wwn": "naa.5"}, {"uuid": "b019"}]


@pytest.mark.parametrize(
    ("device", "model", "transport"),
    [
        ("pci0000:00/0000:00:1d.0/0000:02:00.0/nvme/nvme0/nvme0n1", "990 PRO 1TB", "nvme"),
        ("pci0000:00/0000:00:17.0/ata3/host2/target2:0:0/2:0:0:0/block/sda", "MX500", "sata"),
        ("pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/6:0:0:0/block/sdb", "Stick", "usb"),
        ("pci0000:00/0000:00:05.0/virtio2/block/vda", "", "virtio"),
        ("virtual/block/md0", "", ""),
    ],
)
def test_model_and_transport_are_read_of_a_disk_and_its_partitions(
    tmp_path: Path, device: str, model: str, transport: str
) -> None:
    whole = tmp_path / "sys/devices" / device
    (whole / "part1").mkdir(parents=True)
    (whole / "device").mkdir()
    (whole / "device/model").write_text(f"{model}\n")
    numbers = tmp_path / "sys/dev/block"
    numbers.mkdir(parents=True)
    for minor, path in enumerate((whole, whole / "part1")):
        (numbers / f"8:{minor}").symlink_to(path)
        expected = {"model": model, "transport": transport}
        found = hardware_of((8 << 8) + minor, root=tmp_path)
        assert found == {name: text for name, text in expected.items() if text}


def test_a_device_is_shown_with_the_end_of_its_serial_number_only(tmp_path: Path) -> None:
    disk = {"type": "ext4", "uuid": "1-2", "serial": "S6Z1NJ0TB01234", "model": "990 PRO"}
    assert device_text({**disk, "transport": "nvme"}) == "990 PRO, serial …1234, ext4, nvme"
    assert device_text({"type": "nfs", "share": "nas:/x"}) == "nfs, nas:/x"
    assert device_text({}) == ""
    assert not is_certain({"type": "ext4", "model": "990 PRO", "transport": "nvme"})
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    store.identities.record("lab", "local", disk)
    view = LiveResults(store).now
    assert view.devices == {"lab/local": "990 PRO, serial …1234, ext4"}


# --- runs ---


class Watched:
    """A simulated node with one storage, which may become another."""

    def __init__(self, directory: Path, store: Store) -> None:
        self.now: Identity | VolumeError | ServerGone = DISK
        self.store = store
        self._pack = load_pack(write_pack(directory, SMALL.replace("[virtio, scsi]", "[virtio]")))
        self.world = SimulatedHypervisor(node="lab", seed=1, clock=SimulatedClock())
        site = replace(
            simulated_site(self.world), storages=StorageFunctions(identify=self._identify)
        )
        self._runner = Runner(site, Recorder(), identities=store.identities)

    def _identify(self, storage: str) -> Identity:
        assert storage == "local"
        if isinstance(self.now, Exception):
            raise self.now
        return self.now

    def run(self, now: Identity | VolumeError | ServerGone) -> Run:
        self.now = now
        tokens = self.store.identities.tokens("lab")
        matrix = expand(self._pack, node="lab", storages=STORAGES, identities=tokens)
        return self._runner.run(matrix.cases[0], cycle="c", conduct=Conduct())


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path, TemporaryStore(tmp_path / "pvebench.db", simulated=True))


OTHER = {"type": "ext4", "fsid": "2e", "uuid": "bb", "wwn": "naa.6"}


def test_another_device_is_invalid_before_anything_is_made_on_it(watched: Watched) -> None:
    first = watched.run(DISK)
    assert (first.outcome, first.evidence["storage_identity"]) == (
        Outcome.OK,
        "type ext4, fsid 1f, uuid aa, wwn naa.5",
    )
    watched.world.shutdown()
    run = watched.run(OTHER)
    assert (run.outcome, run.reason) == (
        Outcome.INVALID,
        "file system of storage local changed (was type ext4, fsid 1f, uuid aa, wwn naa.5, "
        "is type ext4, fsid 2e, uuid bb, wwn naa.6)",
    )
    assert (run.samples, run.written_bytes, watched.world.volumes) == ((), 0, {})
    assert watched.run(DISK).outcome is Outcome.OK


def test_one_that_is_swapped_while_the_volume_is_filled_is_invalid_too(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = watched.world.boot

    def booting(*given: object) -> object:
        watched.now = OTHER
        return boot(*given)  # type: ignore[arg-type] # as it was called

    assert watched.run(DISK).outcome is Outcome.OK
    watched.world.power_off()
    monkeypatch.setattr(watched.world, "boot", booting)
    assert watched.run(DISK).outcome is Outcome.INVALID


def test_what_cannot_be_identified_is_measured_and_said_to_be_unknown(watched: Watched) -> None:
    run = watched.run({})
    assert (run.outcome, run.evidence["storage_identity"]) == (Outcome.OK, "not known")
    assert watched.store.identities.recorded("lab", "local") is None
    assert watched.run(DISK).outcome is Outcome.OK
    reason = watched.run({}).reason
    assert reason == change("local", DISK, {})
    assert reason.endswith("is not known)")


def test_one_that_is_missing_fails_the_run_with_its_reason(watched: Watched) -> None:
    run = watched.run(VolumeError("storage local: /mnt/x is not there"))
    assert (run.outcome, run.reason) == (Outcome.FAILED, "storage local: /mnt/x is not there")


def test_an_accepted_device_has_a_history_of_its_own_and_the_first_one_keeps_its(
    watched: Watched,
) -> None:
    identities = watched.store.identities
    first = watched.run(DISK)
    assert identities.tokens("lab") == {}
    identities.record("lab", "local", OTHER)
    second = watched.run(OTHER)
    assert (first.outcome, second.outcome) == (Outcome.OK, Outcome.OK)
    assert second.case.slug == first.case.slug
    assert second.case.key != first.case.key
    token = identities.tokens("lab")["local"]
    assert second.case.scenario.meaning()["storage_identity"] == token
    assert "storage_identity" not in first.case.scenario.meaning()
    assert watched.run(DISK).outcome is Outcome.INVALID
    # The first one again, of which the kernel shows more by now: its own history goes on.
    identities.record("lab", "local", DISK | {"serial": "S1"})
    assert watched.run(DISK).case.key == first.case.key
    assert identities.tokens("elsewhere") == {}


# --- paths ---


def settings(tmp_path: Path, storage: Mapping[str, object] | None) -> LocalSettings:
    given = {"storages": {"local": storage}} if storage else {}
    return LocalSettings.model_validate({"state": tmp_path / "state", **given})


@pytest.mark.parametrize("kind", ["dir", "loop"])
def test_a_path_that_is_missing_is_an_error_and_is_not_made(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "mnt/bench"
    given = settings(tmp_path, {"kind": kind, "path": path})
    for look in (lambda: require_paths(given), identities_of(given)["local"]):
        with pytest.raises(VolumeError, match=f"storage local: {path} does not exist") as caught:
            look()
        assert caught.value.cause == "the file system is not mounted, or the path is misspelled"
        assert caught.value.exit_code == MachineError.exit_code  # that of `pvebench check`
        assert "pvebench setup" in caught.value.next_step
    assert not path.parent.exists()
    path.mkdir(parents=True)
    require_paths(given)
    assert identities_of(given)["local"]()


def test_the_default_storage_is_that_of_the_results_and_need_not_be_there(tmp_path: Path) -> None:
    given = settings(tmp_path, None)
    require_paths(given)
    found = identities_of(given)["local"]()
    (tmp_path / "state/storage").mkdir(parents=True)
    assert found == identities_of(given)["local"]()
    assert found


def test_a_disk_that_is_missing_is_an_error(tmp_path: Path) -> None:
    for place in (tmp_path, Path("/dev/disk/by-id")):  # below /dev, which is in memory
        given = settings(tmp_path, {"kind": "block", "path": place / "no-such-disk"})
        require_paths(given)
        with pytest.raises(VolumeError, match="is not a block device"):
            identities_of(given)["local"]()


# --- commands ---


def written(tmp_path: Path) -> Path:
    (tmp_path / "bench").mkdir()
    config = tmp_path / "pvebench.yaml"
    config.write_text("driver: host\nnode: lab\nstate: state\nstorages: {local: {path: bench}}\n")
    return config


def test_accept_needs_a_storage_of_the_settings_and_a_service_that_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(tmp_path)
    assert run_cli(["storage", "accept", "locla", "--config", str(config)]) == 2
    assert "storage locla cannot be identified; use one of: local" in capsys.readouterr().err
    with StateDirectory(tmp_path / "state", exclusive=True) as state:
        assert run_cli(["storage", "accept", "local", "--config", str(config)]) == 4
        assert not state.database.exists()
    assert run_cli(["storage", "accept", "local", "--config", str(config)]) == 0
    assert "nothing to accept: the first run records local" in capsys.readouterr().out
    (tmp_path / "bench").rmdir()
    assert run_cli(["storage", "accept", "local", "--config", str(config)]) == 3


def test_setup_makes_the_directories_that_it_is_given_and_leaves_the_default_to_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["setup", "host", "--yes", "--no-check", "--config", str(tmp_path / "pvebench.yaml")]
    asked += ["--state", str(tmp_path / "state"), f"--storage={tmp_path / 'state/storage'}"]
    assert run_cli([*asked, f"--storage=fast={tmp_path / 'mnt/fast'}"]) == 0
    assert (tmp_path / "mnt/fast").is_dir()
    assert f"Created {tmp_path / 'mnt/fast'}\n" in capsys.readouterr().out
    assert not (tmp_path / "state").exists()


# --- all of it ---


def test_an_unmounted_path_measures_nothing_and_another_file_system_is_invalid(
    tmp_path: Path,
) -> None:
    """On an overlay: it has no name but the source that it was mounted from."""
    here = MountedStorage(tmp_path)
    lower, upper, work = (tmp_path / name for name in ("lower", "upper", "work"))
    mount = f"mkdir -p '{lower}' '{upper}' '{work}'\nmount -t overlay {{}} '{here.mount}'"
    mount += f" -o lowerdir='{lower}',upperdir='{upper}',workdir='{work}'\nmkdir -p '{here.path}'"
    _, check = here.do(mount.format("first"), "run --cycles 1", "check")
    assert len(here.runs()) == 1
    assert "?     identity of local: as recorded: type overlay, source first; " in check.said
    for ended in here.do("", "plan", "check", "run --cycles 1"):
        assert ended.code in (3, 6), ended.said
        assert f"storage local: {here.path} does not exist" in ended.said
        assert "the file system is not mounted, or the path is misspelled" in ended.said
    assert not here.path.exists()
    assert len(here.runs()) == 1
    run, check = here.do(mount.format("second"), "run --cycles 1", "check")
    change = "(was type overlay, source first, is type overlay, source second)"
    reason = f"file system of storage local changed {change}"
    assert (run.code, here.runs()[1][1:]) == (9, ("invalid", reason))
    assert check.code == 3
    assert f"FAIL  identity of local: {reason}; " in check.said
    assert "pvebench storage accept local" in check.said
