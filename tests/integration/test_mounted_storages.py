"""Real file systems on loop devices, one after the other at the path of one storage."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from testing.devices import need_loop_devices
from testing.mounted_storage import MountedStorage
from testing.real_outcomes import MEASURED


def test_an_accepted_file_system_starts_a_history_and_the_first_one_continues_its_own(
    tmp_path: Path,
) -> None:
    need_loop_devices()
    here = MountedStorage(tmp_path)
    for name in ("first", "second"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(400 << 20)
        subprocess.run(["mkfs.ext4", "-q", tmp_path / name], check=True)

    def mounted(name: str) -> str:
        lines = f"mount -o loop '{tmp_path / name}' '{here.mount}'\nmkdir -p '{here.path}'\n"
        return f"{lines}stat -c %d '{here.mount}' >> '{tmp_path}/numbers'"

    # Another device has the number that it had, as after a boot: loop devices are of this machine,
    # so other programs take and release some meanwhile.
    device = f"device=/dev/loop$(head -n 1 '{tmp_path}/numbers' | awk '{{ print $1 % 256 }}')\n"
    taken = f"losetup $device '{tmp_path}/filler' && trap \"losetup -d $device\" EXIT\n"
    (tmp_path / "filler").write_bytes(bytes(1 << 20))
    cycle = "run --cycles 1"
    here.do(mounted("first"), cycle)
    _, check = here.do(device + taken + mounted("first"), cycle, "check")
    numbers = (tmp_path / "numbers").read_text("ascii").split()
    assert numbers[0] != numbers[1]
    assert "ok    identity of local: as recorded: type ext4, fsid " in check.said
    tune2fs = ["tune2fs", "-l", tmp_path / "first"]
    said = subprocess.run(tune2fs, capture_output=True, text=True, check=True).stdout
    (uuid,) = re.findall(r"^Filesystem UUID: +(\S+)$", said, re.MULTILINE)
    assert f", uuid {uuid}\n" in check.said
    first = [key for key, outcome, _ in here.runs() if outcome in MEASURED]
    assert first == [first[0]] * 2

    _, accept, accepted, again = here.do(
        mounted("second"), cycle, "storage accept local", cycle, "storage accept local"
    )
    assert "its results start a new history" in accept.said
    assert accepted.code == 0
    assert "nothing to accept: local is unchanged" in again.said
    (_, outcome, reason), (second, now, _) = here.runs()[2:]
    assert outcome == "invalid"
    assert reason.startswith("file system of storage local changed (was type ext4, fsid ")
    assert second != first[0]
    assert now in MEASURED

    here.do(mounted("first"), "storage accept local", cycle)
    assert here.runs()[-1][0] == first[0]
    assert here.runs()[-1][1] in MEASURED
