"""fio's options in a pack: their rules, and the slug and title that they make.

Text becomes integers here, once. What fio makes of them is in `fio_job.py`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

from pvebench.model.units import MIB, format_size, parse_size
from pvebench.model.workload import Direction

Parameters = Mapping[str, int | float | str | bool]

READ, WRITE, TRIM = (Direction.READ,), (Direction.WRITE,), (Direction.TRIM,)
DIRECTIONS: Final[dict[str, tuple[Direction, ...]]] = {
    "read": READ, "write": WRITE, "randread": READ, "randwrite": WRITE,
    "rw": READ + WRITE, "randrw": READ + WRITE, "trim": TRIM, "randtrim": TRIM,
}  # fmt: skip
ENGINES: Final = ("libaio", "io_uring", "psync")
OPTIONS: Final = (
    "rw", "bs", "iodepth", "numjobs", "rwmixread", "fsync", "fdatasync", "sync", "ioengine",
    "size", "rate_iops", "random_distribution", "compress", "version", "title",
)  # fmt: skip
MIX_DEFAULT: Final = 50
_SKEWED: Final = re.compile(r"(?P<name>zipf|pareto|normal):(?P<value>\d+(\.\d+)?)\Z")
_ZONED: Final = re.compile(r"zoned:\d+/\d+(:\d+/\d+)*\Z")


def is_mixed(rw: str) -> bool:
    """Return whether `rw` reads and writes in one job."""
    return len(DIRECTIONS[rw]) > 1


def is_random(rw: str) -> bool:
    """Return whether `rw` jumps about."""
    return rw.startswith("rand")


def resolve_options(options: Mapping[str, Any]) -> dict[str, int | float | str | bool]:
    """Return the parameters that a pack's options mean, defaults included.

    `rwmixread` is there only for a mixed `rw`; `size` and `rate_iops` are 0 where no limit
    was asked for; `title` is no parameter.

    Raises:
        ValueError: `option: what is wrong`.
    """
    _only_known(options)
    rw = _rw(options)
    parameters: dict[str, int | float | str | bool] = {
        "rw": rw,
        "bs": _bs(options),
        "iodepth": _whole(options, "iodepth", default=1, low=1, high=4096),
        "numjobs": _whole(options, "numjobs", default=1, low=1, high=64),
        "fsync": _whole(options, "fsync", default=0, low=0, high=1_000_000),
        "fdatasync": _whole(options, "fdatasync", default=0, low=0, high=1_000_000),
        "sync": _yes_or_no(options, "sync"),
        "ioengine": _engine(options),
        "size": _size(options),
        "rate_iops": _whole(options, "rate_iops", default=0, low=1, high=100_000_000),
        "random_distribution": _distribution(options, rw),
        "version": _whole(options, "version", default=1, low=1, high=10_000),
    }
    if compress := _whole(options, "compress", default=0, low=0, high=99):
        # Only where asked for: a parameter more would end the histories of all others.
        parameters["compress"] = compress
    if is_mixed(rw):
        mix = _whole(options, "rwmixread", default=MIX_DEFAULT, low=1, high=99)
        parameters["rwmixread"] = mix
    elif "rwmixread" in options:
        raise ValueError(f"rwmixread: only rw and randrw mix reads and writes, {rw} does not")
    _refuse_nonsense(parameters)
    return parameters


def slug_of(parameters: Parameters) -> str:
    """Return `randwrite-4k-qd32`, then a part for whatever differs from its default."""
    bs, size = int(parameters["bs"]), int(parameters["size"])
    mix = parameters.get("rwmixread", MIX_DEFAULT)
    distribution = re.sub(r"[:./]", "_", str(parameters["random_distribution"]))
    parts = [
        f"{parameters['rw']}-{format_size(bs)}-qd{parameters['iodepth']}",
        f"j{parameters['numjobs']}" if parameters["numjobs"] != 1 else "",
        f"mix{mix}" if mix != MIX_DEFAULT else "",
        f"fsync{parameters['fsync']}" if parameters["fsync"] else "",
        f"fdatasync{parameters['fdatasync']}" if parameters["fdatasync"] else "",
        "sync" if parameters["sync"] else "",
        str(parameters["ioengine"]) if parameters["ioengine"] != ENGINES[0] else "",
        f"size{format_size(size)}" if size else "",
        f"rate{parameters['rate_iops']}" if parameters["rate_iops"] else "",
        f"dist{distribution}" if distribution != "random" else "",
        f"compress{parameters['compress']}" if "compress" in parameters else "",
    ]
    version = parameters["version"]
    return "-".join(filter(None, parts)) + (f"@{version}" if version != 1 else "")


def title_of(options: Mapping[str, Any], slug: str) -> str:
    """Return the pack's title, or the slug spaced out.

    Raises:
        ValueError: the title is not a line of text.
    """
    title = options.get("title", slug.replace("-", " "))
    if not isinstance(title, str) or not title.strip() or not title.isprintable():
        raise ValueError(f"title: {title!r} is not a line of text")
    return title.strip()


def _only_known(options: Mapping[str, Any]) -> None:
    for key in map(str, options):
        if key not in OPTIONS:
            near = difflib.get_close_matches(key, OPTIONS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{key}: unknown option; fio takes {', '.join(OPTIONS)}{hint}")


def _rw(options: Mapping[str, Any]) -> str:
    if "rw" not in options:
        raise ValueError(f"rw: required; one of {', '.join(DIRECTIONS)}")
    rw = "rw" if options["rw"] == "readwrite" else options["rw"]
    if not isinstance(rw, str) or rw not in DIRECTIONS:
        raise ValueError(f"rw: {rw!r} is not a pattern; use one of {', '.join(DIRECTIONS)}")
    return rw


def _bytes(options: Mapping[str, Any], key: str) -> int:
    try:
        return parse_size(options[key])
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def _bs(options: Mapping[str, Any]) -> int:
    if "bs" not in options:
        raise ValueError("bs: required; the size of one operation, such as 4k")
    bs = _bytes(options, "bs")
    if not 512 <= bs <= 64 * MIB or bs & (bs - 1):
        raise ValueError(f"bs: {bs} bytes is not a power of two from 512 to 64M")
    return bs


def _size(options: Mapping[str, Any]) -> int:
    if "size" not in options:
        return 0
    size, bs = _bytes(options, "size"), _bs(options)
    if size < bs or size % bs:
        raise ValueError(f"size: {size} bytes is not a whole number of blocks of {bs} bytes")
    return size


def _whole(options: Mapping[str, Any], key: str, *, default: int, low: int, high: int) -> int:
    if key not in options:
        return default
    value = options[key]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{key}: {value!r} is not a whole number from {low} to {high}")
    return value


def _yes_or_no(options: Mapping[str, Any], key: str) -> bool:
    value = options.get(key, False)
    if not isinstance(value, bool):
        raise ValueError(f"{key}: {value!r} is neither true nor false")  # noqa: TRY004 # all complaints about options are ValueErrors
    return value


def _engine(options: Mapping[str, Any]) -> str:
    engine = options.get("ioengine", ENGINES[0])
    if not isinstance(engine, str) or engine not in ENGINES:
        raise ValueError(f"ioengine: {engine!r} is not supported; use one of {', '.join(ENGINES)}")
    return engine


def _distribution(options: Mapping[str, Any], rw: str) -> str:
    text = options.get("random_distribution", "random")
    if not isinstance(text, str) or not (text == "random" or _makes_sense(text)):
        raise ValueError(
            f"random_distribution: {text!r} is not one of random, zipf:THETA (above 0, not 1), "
            f"pareto:POWER (between 0 and 1), normal:DEVIATION (percent, below 100), "
            f"zoned:ACCESS/AREA:ACCESS/AREA… (percent, each summing to 100)"
        )
    if "random_distribution" in options and not is_random(rw):
        raise ValueError(f"random_distribution: {rw} is sequential; only the rand… patterns choose")
    return text


def _makes_sense(text: str) -> bool:
    if _ZONED.match(text):
        shares = [pair.split("/") for pair in text.partition(":")[2].split(":")]
        return all(sum(int(share[side]) for share in shares) == 100 for side in (0, 1))
    match = _SKEWED.match(text)
    if not match:
        return False
    value, name = float(match["value"]), match["name"]
    limit = {"zipf": 100.0, "pareto": 1.0, "normal": 100.0}[name]
    return 0 < value < limit and not (name == "zipf" and value == 1)


def _refuse_nonsense(parameters: Parameters) -> None:
    rw = str(parameters["rw"])
    for key in ("fsync", "fdatasync", "sync", "compress"):
        verb = "compressed" if key == "compress" else "flushed"
        if parameters.get(key) and Direction.WRITE not in DIRECTIONS[rw]:
            raise ValueError(f"{key}: {rw} writes nothing that could be {verb}")
    if parameters["fsync"] and parameters["fdatasync"]:
        raise ValueError(
            "fdatasync: choose either fsync or fdatasync; together neither is measured"
        )
    if parameters["ioengine"] == "psync" and parameters["iodepth"] != 1:
        raise ValueError("iodepth: psync does one operation at a time; use numjobs, or libaio")
    rate, numjobs = int(parameters["rate_iops"]), int(parameters["numjobs"])
    share = numjobs * len(DIRECTIONS[rw])
    if rate and (rate % numjobs or rate < share):
        raise ValueError(
            f"rate_iops: {rate} is the total and cannot be shared evenly by {numjobs} jobs; "
            f"use a multiple of {numjobs}, at least {share}"
        )
