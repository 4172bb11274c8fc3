"""Turn published benchmark histories into one file for `bench/detection.py --public`.

    python bench/judging/convert.py FOLDER HISTORIES.json

FOLDER has copies of `data.js` of github-action-benchmark, named PROJECT__PATH.js. The choice
depends on names only, never on values: a project contributes at most EACH histories.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

EACH: Final = 14
LEAST: Final = 80
LATEST: Final = 400
"""Runs of a history; of longer ones, the latest are taken."""
DISTINCT: Final = 20
"""Fewest distinct values: sizes of files and other counts are no measurements."""
RATES: Final = ("benchmarkjs", "customBiggerIsBetter", "pytest")
"""Tools whose results are rates, as opposed to times."""
Entry = Mapping[str, Any]


def histories_of(path: Path) -> Iterator[tuple[str, Entry]]:
    """Yield name and history of each benchmark in a file."""
    text = path.read_text("utf-8", errors="replace")
    data = json.loads(text[text.index("{") :].rstrip().removesuffix(";"))
    for suite, runs in data["entries"].items():
        rate = any(run.get("tool") in RATES for run in runs)
        points = defaultdict[str, list[tuple[float, float]]](list)
        for run in runs:
            for result in run["benches"]:
                value = result["value"]
                if isinstance(value, int | float) and value > 0:
                    points[result["name"]].append((run["date"] / 1000, float(value)))
        for name, pairs in points.items():
            times, values = zip(*sorted(pairs)[-LATEST:], strict=True)
            entry = {"times": times, "values": values, "higher_is_better": rate}
            yield f"{path.stem}/{suite}/{name}", entry


def usable(entry: Entry) -> bool:
    """Return whether a history is long enough, and measured."""
    distinct = {f"{value:.4g}" for value in entry["values"]}
    apart = len(set(entry["times"])) > 0.9 * len(entry["times"])
    return len(entry["values"]) >= LEAST and len(distinct) >= DISTINCT and apart


def chosen(folder: Path) -> dict[str, Entry]:
    """Return the histories of a folder, at most EACH per project, in an order without meaning."""
    projects = defaultdict[str, dict[str, Entry]](dict)
    for path in sorted(folder.glob("*.js")):
        entries = {name: entry for name, entry in histories_of(path) if usable(entry)}
        projects[path.name.partition("__")[0]] |= entries
    names = {
        name: entry
        for entries in projects.values()
        for name, entry in sorted(entries.items(), key=lambda item: _order(item[0]))[:EACH]
    }
    return dict(sorted(names.items(), key=lambda item: _order(item[0])))


def _order(name: str) -> int:
    return zlib.crc32(name.encode())


if __name__ == "__main__":
    histories = chosen(Path(sys.argv[1]))
    Path(sys.argv[2]).write_text(json.dumps(histories), "utf-8")
    print(f"{len(histories)} histories")
