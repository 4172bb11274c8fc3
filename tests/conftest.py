"""What a failed test prints besides its traceback; the collector of garbage."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

from pvebench.errors import PvebenchError


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
