from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pvebench.errors import GuestImageError
from pvebench.guest.content import LOADER, find_loader, find_program, library_closure

LIBRARY_PLACE = "usr/lib/x86_64-linux-gnu"
NAME = Path(LOADER).name


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Unpacked packages: this machine's dynamic loader and `bash`, but no library."""
    for place in (LIBRARY_PLACE, "usr/bin", "usr/sbin"):
        (tmp_path / place).mkdir(parents=True)
    shutil.copy(Path("/", LOADER), tmp_path / LIBRARY_PLACE / NAME)
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
    found = library_closure(root, [root / "usr/bin/bash"])
    assert {path.name for path in found} == needed | {Path(LOADER).name}
    assert all(path.is_relative_to(root) for path in found)


def test_a_library_that_only_the_host_has_is_not_taken_from_there(root: Path) -> None:
    add_libraries(root)
    (root / LIBRARY_PLACE / "libc.so.6").unlink()
    with pytest.raises(GuestImageError, match=r"bash needs libc\.so\.6, which no package contains"):
        library_closure(root, [root / "usr/bin/bash"])


def test_a_program_is_found_through_its_links_but_not_outside_the_packages(root: Path) -> None:
    (root / "usr/sbin/shell").symlink_to("../bin/bash")
    (root / "usr/sbin/bash").symlink_to("/bin/bash")
    assert find_program(root, "shell") == root / "usr/sbin/shell"
    assert find_program(root, "bash") == root / "usr/bin/bash"
    (root / "usr/bin/bash").unlink()
    for name in ("bash", "shell"):
        with pytest.raises(GuestImageError, match=f"do not contain the program {name}"):
            find_program(root, name)


def test_the_loader_is_that_of_the_packages(root: Path) -> None:
    loader = root / LIBRARY_PLACE / NAME
    assert find_loader(root) == loader
    loader.unlink()
    loader.symlink_to(Path("/", LOADER))
    with pytest.raises(GuestImageError, match="the packages do not contain usr/lib64/ld-linux"):
        find_loader(root)


def test_a_library_that_links_out_of_the_packages_is_not_taken(root: Path) -> None:
    add_libraries(root)
    library = root / LIBRARY_PLACE / "libc.so.6"
    library.unlink()
    library.symlink_to(Path("/", LIBRARY_PLACE, "libc.so.6"))
    with pytest.raises(GuestImageError, match=r"bash needs libc\.so\.6, which no package contains"):
        library_closure(root, [root / "usr/bin/bash"])
