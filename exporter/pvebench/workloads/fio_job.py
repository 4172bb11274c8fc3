"""Job files for fio, with plain integers only: fio reads `4kib` as 4000 bytes.

Pitfalls that the job files avoid, all measured with fio 3.33:

- times without a unit are whole seconds and `1.5s` is cut to 1 s, so fractions are in `ms`;
- fio would create a missing device as a regular file, in the guest's RAM
  (`allow_file_create=0`);
- `per_job_logs=0` appends to existing files, so every result file is emptied first;
- parallel sequential jobs would all start at offset 0 and fill the cache for each other
  (`offset_increment` gives each its own slice);
- `rate_iops` counts per job and per direction; in a pack it is the total.

Decisions: `norandommap` because a map is exhausted on a small volume within seconds and then the
pattern changes during the measurement; only first writes after a snapshot need it.
`randrepeat=0` and no `randseed` (a seed would cancel it): a repeated sequence would read from
caches the data of the previous run.
No `write_lat_log`: it reads the clock and computes a mean for each operation, which slows down an
emulated guest. `write_iops_log` only adds a line per interval to what fio computes anyway.
`refill_buffers` for small blocks, because fio otherwise repeats one buffer, and a storage
that compresses records of 16k or 128k then stores only a quarter of the data.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pvebench.errors import ToolFailed
from pvebench.model.definition import DIRECTIONS
from pvebench.model.units import KIB, MIB, format_size, whole_number
from pvebench.model.workload import Direction, Workload
from pvebench.workloads.tool import Job, Target

PERCENTILES: Final = "50:90:95:99:99.9:99.99"
REFILL_BELOW_BYTES: Final = 128 * KIB
"""Block size from which one random buffer fills a whole record of any common storage."""
FILL_FLOOR_BYTES_PER_SECOND: Final = 2_000_000
"""Minimum rate of a fill; a slower one is aborted."""
_Lines = dict[str, int | str]
_PERCENTILES: Final[_Lines] = {
    "percentile_list": PERCENTILES,
    **dict.fromkeys(("slat_percentiles", "clat_percentiles", "lat_percentiles"), 1),
}
_Parameters = Mapping[str, int | float | str | bool]


def is_mixed(rw: str) -> bool:
    """Return whether `rw` reads and writes in one job."""
    return len(DIRECTIONS[rw]) > 1


def is_random(rw: str) -> bool:
    """Return whether `rw` is random."""
    return rw.startswith("rand")


def interval_milliseconds(workload: Workload) -> int:
    """Return the length of the intervals in fio's logs."""
    return 1000 if workload.runtime_seconds >= 10 else 500


def measure_job(workload: Workload, target: Target) -> Job:
    """Return the job to measure. Raises ToolFailed if no block fits into the device."""
    job_path, output = f"{target.work}/job.fio", f"{target.work}/result.json"
    search = is_search(workload)
    seconds = workload.ramp_seconds + workload.runtime_seconds
    if search:
        seconds = search_seconds(workload.parameters)
    lines = _search(workload.parameters) if search else _window(workload, target)
    # Logs would cover the whole search; its results cover one window at the resulting depth.
    logs = () if search else (f"{target.work}/fio_iops.log",)
    text = _job_file(workload.slug, _global(target) | lines | _pattern(workload, target))
    return Job(
        argv=_argv(job_path, output, bins=workload.histogram),
        work=target.work,
        files={job_path: text, **dict.fromkeys((output, *logs), b"")},
        output=output,
        logs=logs,
        deadline_seconds=2 * seconds + 60,
        moves_data=target.trims_counted or workload.directions != (Direction.TRIM,),
        timed=search or not writes_once(workload),
    )


def writes_once(workload: Workload) -> bool:
    """Return whether each block is written at most once: the job ends when all are written."""
    return workload.first_touch and Direction.WRITE in workload.directions


def is_search(workload: Workload) -> bool:
    """Return whether fio searches for the depth that meets a latency.

    False while the same workload only runs as load until it is steady: then it has a runtime.
    """
    return bool(workload.parameters.get("latency_target")) and not workload.runtime_seconds


def search_seconds(parameters: _Parameters) -> float:
    """Return the time limit of a search in seconds: it doubles the depth, then halves the gap.

    Each step takes one window, plus one to confirm and one to measure (`lat_target_success` in
    fio's io_u.c); 50% more, because a window that fails by chance costs additional ones.
    """
    steps = 2 * int(parameters["iodepth"]).bit_length() + 2
    return 1.5 * steps * float(parameters["latency_window"])


def _search(parameters: _Parameters) -> _Lines:
    return {
        "time_based": 1,
        "runtime": _time(search_seconds(parameters)),
        "latency_target": f"{parameters['latency_target']}us",
        "latency_window": f"{round(float(parameters['latency_window']) * 1000)}ms",
        "latency_percentile": f"{parameters['latency_percentile']:g}",
        **_PERCENTILES,
    }


PROOF_BLOCKS: Final = 16
_PROOF_BYTES: Final = 4 * KIB
_PROOF_RANDOM_BYTES: Final = 24


def fill_job(target: Target, seed: int, *, compress: int = 0) -> Job:
    """Return a job that writes every byte of the device once, with incompressible data.

    After that, fio writes a few blocks again, with data that differs each time, and compares what
    it reads back. `check_fill` in `fio.py` checks the result.

    Args:
        target: its size must be a whole number of 512-byte sectors.
        seed: seed of the data; equal seeds write equal data.
        compress: percentage of the data that can be compressed away.

    Raises:
        ToolFailed: the size is not whole sectors, so no direct write could reach its end.
    """
    job_path, output = f"{target.work}/fill.fio", f"{target.work}/fill.json"
    lines = _global(target) | {
        # A missing device must never become a file in RAM; a test file is created here.
        "allow_file_create": int(target.file),
        "ioengine": target.engine or "libaio",
        "rw": "write",
        "bs": _largest_whole_block(target.size_bytes),
        "iodepth": 4,
        "size": target.size_bytes,
        "refill_buffers": 1,
        "randseed": seed & 0x7FFFFFFF,
        **_compressible(compress),
        "end_fsync": 1,
    }
    return Job(
        argv=_argv(job_path, output),
        work=target.work,
        files={
            job_path: _job_file("fill", lines) + _job_file("proof", _proof(target)),
            output: b"",
        },
        output=output,
        deadline_seconds=target.size_bytes / FILL_FLOOR_BYTES_PER_SECOND + 60,
    )


def _proof(target: Target) -> _Lines:
    """Return a job whose blocks are spread over the device; without a map, which takes memory.

    It compares every byte: of a block with a checksum, fio 3.33 compares only that, so the blocks
    of an earlier fill would prove one whose writes are lost.
    """
    block = min(_PROOF_BYTES, _largest_whole_block(target.size_bytes))
    blocks = min(PROOF_BLOCKS, target.size_bytes // block)
    skipped = target.size_bytes // blocks // block * block - block
    return _global(target) | {
        # On Windows, fio fails if it may not create the file that the first job is about to create.
        "allow_file_create": int(target.file and bool(target.engine)),
        "stonewall": 1,
        "ioengine": target.engine or "libaio",
        "rw": f"write:{skipped}" if skipped else "write",
        "bs": block,
        "size": target.size_bytes,
        "io_size": blocks * block,
        "verify": "pattern",
        "verify_pattern": f"0x{secrets.token_hex(_PROOF_RANDOM_BYTES)}%o",  # and the block's offset
        "verify_fatal": 1,
        "verify_state_save": 0,  # a file in the working directory
    }


def _argv(job_path: str, output: str, *, bins: bool = False) -> list[str]:
    """Return the command.

    Args:
        bins: whether to also print every latency bin: ten times the output. The classes of plain
            JSON combine reads and writes, and show 0.01% for anything rarer.
    """
    return ["fio", f"--output-format=json{'+' if bins else ''}", f"--output={output}", job_path]


def _job_file(name: str, lines: _Lines) -> bytes:
    body = "".join(f"{key}={value}\n" for key, value in lines.items())
    return f"[{name}]\n{body}".encode()


def _global(target: Target) -> _Lines:
    return {
        **({"offset": target.offset_bytes} if target.offset_bytes else {}),
        "filename": target.device.replace(":", "\\:"),
        "allow_file_create": 0,
        "direct": 1,
        "thread": 1,
        "group_reporting": 1,
        "exitall_on_error": 1,
    }


def _window(workload: Workload, target: Target) -> _Lines:
    ramp = _time(workload.ramp_seconds)
    return {
        **({} if writes_once(workload) else {"time_based": 1}),
        "runtime": _time(workload.runtime_seconds),
        **({"ramp_time": ramp} if ramp != "0" else {}),
        **_PERCENTILES,
        "log_avg_msec": interval_milliseconds(workload),
        "per_job_logs": 0,
        "write_iops_log": f"{target.work}/fio",
    }


def _time(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    return f"{milliseconds}ms" if milliseconds % 1000 else str(milliseconds // 1000)


def _pattern(workload: Workload, target: Target) -> _Lines:
    parameters = workload.parameters
    rw = str(parameters["rw"])
    lines: _Lines = {key: str(parameters[key]) for key in ("ioengine", "rw", "bs", "iodepth")}
    if target.engine:  # Windows: fio refuses direct I/O with psync, and advises this one at depth 1
        lines["ioengine"] = target.engine
    lines |= {"numjobs": int(parameters["numjobs"]), **_area(parameters, target)}
    if is_mixed(rw):
        lines["rwmixread"] = int(parameters["rwmixread"])
    if is_random(rw):
        lines |= {**({} if writes_once(workload) else {"norandommap": 1}), "randrepeat": 0}
        lines["random_distribution"] = str(parameters["random_distribution"])
    if Direction.WRITE in DIRECTIONS[rw] and int(parameters["bs"]) < REFILL_BELOW_BYTES:
        lines["refill_buffers"] = 1
    if compress := int(parameters.get("compress", 0)):
        lines |= {"refill_buffers": 1, **_compressible(compress)}
    for key in ("fsync", "fdatasync", "sync"):
        if parameters[key]:
            lines[key] = int(parameters[key])
    if parameters.get("fault"):
        lines["continue_on_error"] = "io"  # errors are counted
    if parameters["rate_iops"]:
        lines["rate_iops"] = _rate(parameters)
    return lines


def _area(parameters: _Parameters, target: Target) -> _Lines:
    """Return where each job works: random jobs everywhere, sequential ones a slice each."""
    bs, numjobs = int(parameters["bs"]), int(parameters["numjobs"])
    area = int(parameters["size"]) or target.size_bytes
    sliced = numjobs > 1 and not is_random(str(parameters["rw"]))
    size = area // (numjobs if sliced else 1) // bs * bs
    if not size:
        raise ToolFailed(
            f"{area} bytes of {target.device} are less than one block of {bs} bytes for each job",
            next_step="use a smaller bs or numjobs, or a larger volume",
        )
    return {"size": size, **({"offset_increment": size} if sliced else {})}


def _rate(parameters: _Parameters) -> str:
    """Return the rate of one job; for a mix, the rates of its reads and its writes."""
    rate = int(parameters["rate_iops"]) // int(parameters["numjobs"])
    if not is_mixed(str(parameters["rw"])):
        return str(rate)
    reads = rate * int(parameters["rwmixread"]) // 100
    return f"{reads},{rate - reads}"


def _compressible(percent: int) -> _Lines:
    """Return options that make a percentage of each 4k of a buffer compressible zeros."""
    if not percent:
        return {}
    return {"buffer_compress_percentage": percent, "buffer_compress_chunk": 4 * KIB}


def _largest_whole_block(size_bytes: int) -> int:
    """Return a block size that divides the device: fio would leave a partial block unwritten."""
    block = min(MIB, size_bytes & -size_bytes)
    if block < 512:
        raise ToolFailed(
            f"cannot fill {size_bytes} bytes: not a whole number of sectors of 512 bytes",
            next_step="use a volume size that is a multiple of 512 bytes",
        )
    return block


# --- Options of fio as others write them, and their meaning in a pack.

_WORDS: Final = ("rw", "ioengine", "random_distribution", "latency_percentile")
_COUNTS: Final = ("iodepth", "numjobs", "rwmixread", "fsync", "fdatasync", "compress")
ALIASES: Final = {"readwrite": "rw", "blocksize": "bs", "buffer_compress_percentage": "compress"}
_BLOCKING: Final = ("sync", "psync", "vsync", "pvsync", "pvsync2")
_EXPLANATIONS: Final = (
    ("direct buffered", "pvebench always bypasses the page cache, as direct=1; remove it"),
    ("time_based", "pvebench always measures for measure.runtime; remove it"),
    ("ramp_time", "it is the same for all workloads of a pack: measure: {ramp: 5s}"),
    ("name", "pvebench names workloads by their options; write a description as title"),
    ("filename directory", "pvebench uses the disk of each scenario; remove it"),
    ("group_reporting", "pvebench always sums the jobs; remove it"),
    ("readwrite", "write rw"),
    ("blocksize", "write bs"),
    ("rwmixwrite", "write rwmixread, which is 100 minus rwmixwrite"),
    ("rate", "write rate_iops, which is rate ÷ bs, for all jobs together"),
    ("buffer_compress_percentage", "write compress"),
    (
        "bssplit bsrange bs_unaligned blocksize_range",
        "pvebench measures one block size per workload; write one entry for each: bs: [4k, 64k]",
    ),
    ("verify do_verify", "checksums change the load; pvebench verifies the fill instead"),
    ("io_size io_limit loops number_ios", "pvebench ends runs by time: measure.runtime"),
)
EXPLAINED: Final = {name: text for names, text in _EXPLANATIONS for name in names.split()}
"""Option of fio that a pack does not have -> what to do."""
_SET_ELSEWHERE: Final = (
    "direct buffered time_based runtime ramp_time name filename directory group_reporting size "
    "thread norandommap randrepeat refill_buffers stonewall output output-format minimal eta "
    "eta-newline status-interval percentile_list clat_percentiles lat_percentiles end_fsync "
    "invalidate overwrite fallocate unlink exitall create_on_open allow_file_create "
    "allow_mounted_write gtod_reduce log_avg_msec write_bw_log write_lat_log write_iops_log "
    "per_job_logs wait_for_previous nrfiles description new_group "
    "io_size io_limit loops number_ios unified_rw_reporting disk_util"
)
SET_ELSEWHERE: Final = _SET_ELSEWHERE.split()
"""Options that pvebench sets itself, or that do not change the load."""


def in_bytes(text: str) -> str:
    """Return a size of fio, in which `ki` is 1000 and `k` or `kb` 1024, without its unit."""
    size = re.fullmatch(r"(\d{1,15})([kmgt]?)(i?)b?", text.lower())
    if size is None:
        raise ValueError(f"{text!r} is not one size")
    return str(int(size[1]) * (1000 if size[3] else 1024) ** " kmgt".index(size[2] or " "))


def pack_options(options: Mapping[str, str], *, direct: bool = True) -> dict[str, Any]:
    """Return the options in a pack for options of fio; numbers are of one job there.

    Options that fio ignores with this `rw` and engine are left out: a pack refuses them.

    Args:
        direct: whether a job without `direct` is accepted: fio's default is the page cache.

    Raises:
        ValueError: with a line for every option that has no equal in a pack.
    """
    pack: dict[str, Any] = {"rw": "read", "bs": "4k", "ioengine": "psync"}
    faults = []
    buffered = options.get("direct", "1" if direct else "0") == "0"
    if buffered or options.get("buffered", "0") != "0":
        faults.append("direct: must be 1; pvebench always bypasses the page cache")
    for name, text in options.items():
        try:
            pack |= _pack_option(ALIASES.get(name, name), text, options)
        except ValueError as error:
            faults.append(f"{name}: {error}")
    if faults:
        raise ValueError("\n".join(faults))
    blocking = pack["ioengine"] in _BLOCKING
    pack |= {"ioengine": "psync"} if blocking else {}
    ignored = {*_without_effect(pack["rw"]), *(["iodepth"] if blocking else [])}
    return {name: value for name, value in pack.items() if name not in ignored}


def _without_effect(rw: str) -> Iterator[str]:
    directions = DIRECTIONS.get("rw" if rw == "readwrite" else rw, ())
    if directions and Direction.WRITE not in directions:
        yield from ("sync", "fsync", "fdatasync", "compress")
    if len(directions) == 1:
        yield "rwmixread"
    if directions and not is_random(rw):
        yield "random_distribution"


def _pack_option(name: str, text: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Return an option in a pack; raises ValueError for one without an equal."""
    readers: dict[str, Callable[[], dict[str, Any]]] = {
        **dict.fromkeys(_WORDS, lambda: {name: text}),
        **dict.fromkeys(_COUNTS, lambda: {name: _count(text)}),
        **dict.fromkeys(("rate", "rate_iops"), lambda: _total_rate(name, text, options)),
        **dict.fromkeys(SET_ELSEWHERE, dict),
        "bs": lambda: {"bs": format_size(int(in_bytes(text)))},
        "sync": lambda: {"sync": bool(_count(text))},
        "rwmixwrite": lambda: {"rwmixread": 100 - _count(text)},
    }
    if name not in readers:
        raise ValueError(EXPLAINED.get(name, "pvebench has no such option"))
    return readers[name]()


def _count(text: str) -> int:
    if (count := whole_number(text)) is None:
        raise ValueError(f"{text!r} is not a whole number")
    return count


def _total_rate(name: str, text: str, options: Mapping[str, str]) -> dict[str, int]:
    """Return the operations per second of all jobs for fio's rate of one job and direction."""
    rw = options.get("rw", options.get("readwrite", "read"))
    block = int(in_bytes(options.get("bs", options.get("blocksize", "4k"))))
    rate, rest = divmod(int(in_bytes(text)), block if name == "rate" else 1)
    if rest or (rw in DIRECTIONS and is_mixed(rw)) or rw == "readwrite":
        raise ValueError("limits one direction or parts of a block; use rate_iops of all jobs")
    return {"rate_iops": rate * _count(options.get("numjobs", "1"))}
