from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pvebench.errors import GuestImageError
from pvebench.guest.content import LOADER, find_loader, find_program, library_closure

LIBRARY_PLACE = "lib/x86_64-linux-gnu"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Unpacked packages: this machine's dynamic loader and `bash`, but no library."""
    if not Path("/", LOADER).exists():
        pytest.skip("not a machine with glibc on x86-64")
    for place in ("lib64", LIBRARY_PLACE, "usr/bin"):
        (tmp_path / place).mkdir(parents=True)
    shutil.copy(Path("/", LOADER), tmp_path / LOADER)
    shutil.copy("/bin/bash", tmp_path / "usr/bin/bash")
    return tmp_path


def add_libraries(root: Path) -> set[str]:
    """Put what `bash` needs into the packages, and one more; return the needed names."""
    text = subprocess.run(["ldd", "/bin/bash"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"(\S+) => (/\S+)", text)
    for name, path in found:
        shutil.copy(path, root / LIBRARY_PLACE / name)
    (root / LIBRARY_PLACE / "libunwanted.so.1").write_bytes(b"")
    return {name for name, _ in found}


def test_a_program_takes_the_libraries_it_needs_directly_or_not_and_no_other(root: Path) -> None:
    needed = add_libraries(root)
    assert "libc.so.6" in needed
    found = library_closure(root, [find_program(root, "bash")])
    assert {path.name for path in found} == needed | {Path(LOADER).name}
    assert all(path.is_relative_to(root) for path in found)


def test_a_library_that_only_the_host_has_is_not_taken_from_there(root: Path) -> None:
    add_libraries(root)
    (root / LIBRARY_PLACE / "libc.so.6").unlink()
    with pytest.raises(GuestImageError, match=r"bash needs libc\.so\.6, which no package contains"):
        library_closure(root, [find_program(root, "bash")])


def test_a_program_that_no_package_has_is_named(root: Path) -> None:
    with pytest.raises(GuestImageError, match="the packages do not contain the program fio"):
        find_program(root, "fio")


def test_the_loader_is_found_below_usr_too(root: Path) -> None:
    assert find_loader(root) == root / LOADER
    (root / "usr" / "lib64").mkdir()
    (root / LOADER).rename(root / "usr" / LOADER)
    assert find_loader(root) == root / "usr" / LOADER
    (root / "usr" / LOADER).unlink()
    with pytest.raises(GuestImageError, match="the packages do not contain lib64/ld-linux"):
        find_loader(root)
