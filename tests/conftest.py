"""What a failed test prints besides its traceback; the collector of garbage; a folder on a disk."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from pvebench.drivers.linux.block_devices import memory_below
from pvebench.errors import PvebenchError
from testing import core_only

_CREATED: list[str] = []

if core_only.hidden():
    core_only.hide()


def _use_a_disk() -> None:
    """Let this process and its children make temporary files on a disk, as storages need one.

    Debian 13 has /tmp in memory. The processes of xdist inherit the choice. The name is short:
    sockets are below it (`sun_path` in unix(7)).
    """
    if not memory_below(Path(tempfile.gettempdir())):
        return
    for place in (Path("/var/tmp"), Path.home(), Path(__file__).parents[1]):
        if os.access(place, os.W_OK | os.X_OK) and not memory_below(place):
            _CREATED.append(tempfile.mkdtemp(prefix="pt-", dir=place))
            Path(_CREATED[0]).chmod(0o711)  # servers of other users are below it, as in /tmp
            os.environ["TMPDIR"] = tempfile.tempdir = _CREATED[0]
            return


_use_a_disk()


def pytest_unconfigure() -> None:
    """Remove the folder of `_use_a_disk`."""
    for place in _CREATED:
        shutil.rmtree(place, ignore_errors=True)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave tests of other packages out, where the core is tested alone."""
    if core_only.hidden() and collection_path.name.startswith("test_"):
        return core_only.needs_others(collection_path) or None
    if core_only.hidden() and (conftest := collection_path / "conftest.py").is_file():
        return core_only.imports_others(conftest) or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out single tests that need `pvebench_lab` without an import."""
    left = [item for item in items if core_only.hidden() and item.get_closest_marker("lab")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collector from the 300,000 objects of modules and tests, which stay to the end.

    To look through them takes 0.2 s each time, and was a twentieth of the CPU of all tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """An error carries its evidence apart."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    while error is not None:
        if isinstance(error, PvebenchError) and error.evidence:
            report.sections.append((f"Evidence of {type(error).__name__}", error.evidence))
        error = error.__cause__ or error.__context__
    return report
