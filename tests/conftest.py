"""What a failed test prints besides its traceback: an error carries its evidence apart."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from pvebench.errors import PvebenchError


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    error = call.excinfo.value if call.excinfo else None
    while error is not None:
        if isinstance(error, PvebenchError) and error.evidence:
            report.sections.append((f"Evidence of {type(error).__name__}", error.evidence))
        error = error.__cause__ or error.__context__
    return report
