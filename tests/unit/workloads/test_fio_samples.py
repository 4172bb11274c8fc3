"""fio's IOPS log: whole intervals, stalls, and several jobs in one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pvebench.model.workload import Direction
from pvebench.workloads.fio_samples import read_intervals

GOLDEN = Path(__file__).parents[2] / "golden" / "fio"
READ = (Direction.READ,)


def intervals(
    text: str, directions: tuple[Direction, ...] = READ, *, window: float = 2000, ran: float = 0
) -> tuple[dict[str, tuple[float, ...]], tuple[str, ...]]:
    logs = {"/run/pvebench/fio_bw.log": "1, 2, 0, 0, 0", "/run/pvebench/fio_iops.log": text}
    return read_intervals(logs, directions, width_ms=500, window_ms=window, ran_ms=ran or window)


def golden(name: str) -> str:
    return (GOLDEN / f"{name}_iops.log").read_text()


def test_one_job_has_one_line_an_interval() -> None:
    found, notes = intervals(golden("randread"))
    assert found == {"read": (109513, 105064, 105078, 107120)}
    assert notes == ()


def test_mix_has_intervals_for_both_directions_and_only_the_asked_ones_are_returned() -> None:
    both = (Direction.READ, Direction.WRITE)
    assert intervals(golden("mixed"), both)[0] == {
        "read": (28775, 31596, 29593, 28178),
        "write": (9877, 10284, 9821, 9300),
    }
    assert list(intervals(golden("mixed"))[0]) == ["read"]


def test_jobs_that_follow_each_other_in_the_log_are_added_up() -> None:
    found, _ = intervals(golden("grouped"))
    assert found == {"read": (17993 + 17965 + 18008 + 18046, 73138, 69650)}


def test_last_interval_is_left_out_when_one_of_the_jobs_did_not_log_it() -> None:
    found, _ = intervals(golden("ungrouped"))
    assert found == {"read": (19006 + 18947 + 19102 + 18917, 80800, 79292)}


def test_interval_without_io_has_no_line_and_counts_as_zero() -> None:
    found, _ = intervals(golden("stalls"), window=4000, ran=4802)
    assert found == {"read": (2, 0, 2, 0, 2, 0, 0, 2)}


def test_stall_up_to_the_end_of_the_window_counts_except_for_the_last_interval() -> None:
    assert intervals("500, 8, 0, 0, 0\n")[0] == {"read": (8, 0, 0)}


def test_stall_at_the_start_of_the_window_counts() -> None:
    assert intervals("2000, 8, 0, 0, 0\n")[0] == {"read": (0, 0, 0, 8)}


def test_intervals_that_drift_because_the_logger_wakes_late_stay_apart() -> None:
    lines = "".join(f"{620 * step}, {step}, 0, 0, 0\n" for step in (1, 2, 3))
    assert intervals(lines)[0] == {"read": (1, 2, 3)}


def test_intervals_after_the_window_are_dropped_when_the_device_was_slow_to_finish() -> None:
    lines = "".join(f"{500 * step}, {step}, 0, 0, 0\n" for step in range(1, 8))
    assert intervals(lines, ran=3600)[0] == {"read": (1, 2, 3, 4)}


def test_log_that_goes_beyond_fios_own_window_is_not_used() -> None:
    found, notes = intervals("500, 8, 0, 0, 0\n9000, 8, 0, 0, 0\n")
    assert found == {}
    assert notes == (
        "fio's IOPS log ends at 9000 ms, beyond its window of 2000 ms; intervals ignored",
    )


def test_unreadable_lines_are_counted_and_noted() -> None:
    found, notes = intervals(golden("randread") + "2500, 1\nnonsense\n")
    assert found == {"read": (109513, 105064, 105078, 107120)}
    assert notes == ("2 lines of fio's IOPS log are unreadable",)


@pytest.mark.parametrize("logs", [{}, {"fio_iops.log": ""}, {"fio_bw.log": "500, 8, 0, 0, 0"}])
def test_missing_log_is_noted(logs: dict[str, str]) -> None:
    found, notes = read_intervals(logs, READ, width_ms=500, window_ms=2000, ran_ms=2000)
    assert found == {}
    assert notes == ("fio wrote no IOPS log; no intervals available",)
