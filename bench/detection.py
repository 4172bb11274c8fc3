"""Quality of change detection: false alarms, power, groups, known issues, speed, other methods.

Prints each result with its target, and ends with status 1 if a target is missed. Every number comes
from the seed. See docs/detection.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from judging import creep, hosts, incidents, known, nodes, real, rivals, speed, unknown
from judging.real import Method
from judging.rivals import Alarms

MOST_INDEPENDENT = 1.0
MOST_OTHERS = 3.0
MOST_QUIET = 0.3
MOST_CREEPS = 0.1
LATEST_CREEP = 200
STATED = {"sticky modes": 0.03}
"""Rates above 1% at which an upgrade without effect confirms a single case: rare, lasting jumps of
a case are not always distinguishable from a change."""


@dataclass(frozen=True, slots=True)
class Row:
    """One result, its target, and whether it is reached; None: only for comparison."""

    name: str
    aim: str
    reached: str
    good: bool | None


def known_time(rng: np.random.Generator, scale: float) -> Iterator[Row]:
    """Yield the results of upgrades at a known time."""
    seeds = max(10, round(100 * scale))
    for ratio, runs, least in ((0.95, 1, 0.95), (0.97, 3, 0.9)):
        event, named = known.group_step(rng, seeds, ratio=ratio, runs=runs)
        what = f"{1 - ratio:.0%} in one of three buses, 144 cases, after {runs} cycle(s)"
        yield Row(f"{what}: detected", f">= {least:.0%}", f"{event:.0%}", event >= least)
        yield Row(f"{what}: named correctly", f">= {least:.0%}", f"{named:.0%}", named >= least)
    for what, ratio, runs in (("all", 0.95, 1), ("pair", 0.95, 3), ("case", 0.8, 5)):
        share = known.shape(rng, seeds // 2, what=what, ratio=ratio, runs=runs)
        yield Row(
            f"{1 - ratio:.0%} in {what}, after {runs} cycle(s): reported", "", f"{share:.0%}", None
        )
    worst = 0.0
    for runs, share in known.false_events(rng, 2 * seeds).items():
        worst = max(worst, share)
        yield Row(f"upgrade without effect, after {runs}: reported", "", f"{share:.1%}", None)
    yield Row("false events per upgrade, worst case", "<= 0.05", f"{worst:.3f}", worst <= 0.05)
    for ratio, runs, least in ((0.8, 3, 0.9), (0.9, 5, 0.85)):
        share = known.one_case(rng, 4 * seeds, ratio=ratio, runs=runs)
        name = f"{1 - ratio:.0%} in a single case, CV 3%, after {runs} runs: confirmed"
        yield Row(name, f">= {least:.0%}", f"{share:.1%}", share >= least)


def null_series(rng: np.random.Generator, scale: float) -> Iterator[Row]:
    """Yield how often unchanged single cases are confirmed."""
    shares = known.null_confirmed(rng, round(10_000 * scale))
    for kind, share in shares.items():
        most = STATED.get(kind, 0.01)
        name = f"confirmed without a change: {kind}"
        yield Row(name, f"<= {most:.0%}", f"{share:.2%}", share <= most)


def unknown_time(rng: np.random.Generator, scale: float) -> Iterator[Row]:
    """Yield the results of changes at an unknown time, for pvebench only."""
    for kind, rate in unknown.false_alarms(unknown.ours, rng, round(16_000 * scale)).items():
        most = MOST_INDEPENDENT if kind == "independent" else MOST_OTHERS
        name = f"alarms per 1,000 runs without a change: {kind}"
        yield Row(name, f"<= {most:g}", f"{rate:.2f}", rate <= most)
    series = max(20, round(300 * scale))
    yield from _seen_and_told(rng, series)
    share = unknown.glitch_alarms(unknown.ours, rng, series)
    yield Row("single glitch raises an alarm", "<= 2%", f"{share:.1%}", share <= 0.02)
    delay = unknown.ramp_delay(unknown.ours, rng, series // 4)
    yield Row(
        "ramp of 1% per run detected after (median)", "<= 18 runs", f"{delay:g} runs", delay <= 18
    )


def _seen_and_told(rng: np.random.Generator, series: int) -> Iterator[Row]:
    """Yield how soon a change is possible, and confirmed; confirmed changes are not retracted."""
    recall = unknown.step_recall(unknown.ours, rng, series, ratio=0.95)
    yield Row("-5% at CV 3%, within 10 runs", ">= 90%", f"{recall[10]:.0%}", recall[10] >= 0.9)
    yield Row("-5% at CV 3%, within 20 runs", "", f"{recall[20]:.0%}", None)
    for ratio, runs, least in ((1.0, 10, None), (0.95, 10, 0.9), (0.9, 5, 0.9), (0.5, 3, 0.9)):
        seen, sure = unknown.seen_recall(rng, series // 4, ratio=ratio, runs=runs)
        name = f"{ratio - 1:+.0%} at CV 3% within {runs} runs, possible (confirmed)"
        good = None if least is None else seen >= least
        aim = "" if least is None else f">= {least:.0%}"
        yield Row(name, aim, f"{seen:.0%} ({sure:.0%})", good)
    for ratio in (0.98, 1.05, 0.9, 0.5):
        share = unknown.step_recall(unknown.ours, rng, series // 4, ratio=ratio)[10]
        yield Row(f"{ratio - 1:+.0%} at CV 3%, within 10 runs", "", f"{share:.0%}", None)


def creeps(rng: np.random.Generator, scale: float) -> Iterator[Row]:
    """Yield the results of gradual changes."""
    for kind, rate in creep.false_creeps(rng, round(16_000 * scale)).items():
        name = f"false gradual changes per 1,000 runs: {kind}"
        yield Row(name, f"<= {MOST_CREEPS}", f"{rate:.2f}", rate <= MOST_CREEPS)
    for ratio, aim in ((0.999, LATEST_CREEP), (0.9995, None), (0.997, None)):
        runs = creep.delay(rng, max(20, round(60 * scale)), ratio=ratio)
        name = f"gradual change of {1 - ratio:.2%} per run at CV 3%, after (median)"
        yield Row(
            name, f"<= {aim} runs" if aim else "", f"{runs:g} runs", runs <= aim if aim else None
        )


def real_rows(_: np.random.Generator, __: float) -> Iterator[Row]:
    """Yield how reported changes match human labels in real histories."""
    for name, method in {"pvebench": unknown.reported, **_whole_histories()}.items():
        score = real.score(method)
        ours = name == "pvebench"
        yield Row(f"{name}: F1", ">= 0.55", f"{score.f1:.2f}", score.f1 >= 0.55 if ours else None)
        good = score.rate <= MOST_QUIET if ours else None
        yield Row(
            f"{name}: changes per 1,000 quiet runs", f"<= {MOST_QUIET}", f"{score.rate:.2f}", good
        )
        for kind, (hit, count) in sorted(score.clear.items()):
            share = hit / count
            good = share >= 0.95 if ours else None
            yield Row(f"{name}: clear changes {kind}", ">= 95%", f"{share:.0%} of {count}", good)


def _whole_histories() -> dict[str, Method]:
    """Return the installed other methods; they analyze each complete history."""
    if rivals.install():
        return {}
    return {
        "otava, defaults": rivals.otava_once(),
        "otava, p <= 1e-4, size >= 3%": rivals.otava_once(max_pvalue=1e-4, min_magnitude=0.03),
        "ruptures PELT l2, 6 log n": rivals.pelt_once(),
    }


def host_rows(rng: np.random.Generator, scale: float) -> Iterator[Row]:
    """Yield the results with the noise of real hosts."""
    series = max(8, round(50 * scale))
    for kind in hosts.HOSTS:
        red, alarms = hosts.red_at_end(kind, rng, series)
        good = red <= 0.02 if kind != "nightly backups" else None
        name = f"unchanged, but reported at the end: {kind}"
        yield Row(name, "<= 2%", f"{red:.1%} ({alarms:.1f})", good)
    for kind in hosts.FOUND:
        shares = hosts.recall(kind, rng, series, 0.8)
        text = f"{shares.doubted:.0%} ({shares.reported:.0%})"
        name = f"-20% within 10 runs, possible (confirmed): {kind}"
        yield Row(name, ">= 80%", text, shares.doubted >= 0.8)
    for ratio, least in ((0.95, 0.85), (0.9, 0.97)):
        shares = hosts.recall("independent", rng, 2 * series, ratio)
        name = f"{ratio - 1:.0%} at CV 3%, confirmed and still so 60 runs later"
        yield Row(name, f">= {least:.0%}", f"{shares.kept:.0%}", shares.kept >= least)


def node_rows(rng: np.random.Generator, scale: float) -> Iterator[Row]:
    """Yield the results of whole nodes, analyzed like those of a user."""
    fleets = max(4, round(20 * scale))
    for ratio in (0.95, 0.9):
        share = nodes.lone(rng, fleets, ratio)
        name = f"{ratio - 1:.0%} in one case of 144 at an upgrade, reported 60 runs later"
        yield Row(name, ">= 80%", f"{share:.0%}", share >= 0.8)
    reported, lost = nodes.withdrawn(rng, max(3, fleets // 2))
    share = lost / max(1, reported)
    yield Row("retracted changes of single cases", "<= 10%", f"{lost} of {reported}", share <= 0.1)
    for before in nodes.UNEQUAL:
        share = nodes.unequal_hours(rng, fleets, before)
        name = f"false events, {before} before an upgrade and a working day after it"
        yield Row(name, "<= 0.05", f"{share:.3f}", share <= 0.05)
    for before, least in ((5, 0.8), (10, 0.95), (15, 0.99)):
        share, same = nodes.few_before(rng, fleets, before)
        name = f"-20% in one of three buses, {before} runs before, one cycle after: named"
        yield Row(name, f">= {least:.0%}", f"{share:.0%}", share >= least)
        name = f"affected cases unchanged within three cycles, {before} runs before"
        yield Row(name, "0", str(same), same == 0)
    for apart in (2, 5):
        for ratio in (0.95, 0.8):
            wrong, both = nodes.close_events(rng, 10 * fleets, apart=apart, ratio=ratio)
            name = f"{ratio - 1:.0%}, two upgrades {apart} runs apart: wrong one (both) named"
            yield Row(name, "<= 2%", f"{wrong:.1%} ({both:.0%})", wrong <= 0.02)


def incident_rows(rng: np.random.Generator, _: float) -> Iterator[Row]:
    """Yield whether the known regressions are recognized."""
    results = incidents.recognized(rng)
    wrong = [f"{issue.id} reported as {kind}" for issue, right, _, kind in results if not right]
    unnamed = [issue.id for issue, _, named, _ in results if not named]
    count = len(results)
    right = ", ".join([str(count - len(wrong)), *wrong])
    yield Row("known regressions with the correct class", f"{count}", right, not wrong)
    named = ", not ".join([str(count - len(unnamed)), *unnamed])
    yield Row("known regressions named", "", named, None)


def speeds(rng: np.random.Generator, _: float) -> Iterator[Row]:
    """Yield the duration of the analysis."""
    seconds = speed.one_run(rng)
    yield Row(
        "one run of a 1,000-run history", "< 5 ms", f"{1e3 * seconds:.1f} ms", seconds < 0.005
    )
    seconds = speed.an_upgrade(rng)
    yield Row("1,350 cases × 120 runs at an upgrade", "< 3 s", f"{seconds:.2f} s", seconds < 3)


def compared(rng: np.random.Generator, scale: float) -> Iterator[Row]:
    """Yield the same results of the other methods, on fewer series."""
    methods: dict[str, Alarms] = dict(rivals.SIMPLE)
    missing = rivals.install()
    if missing:
        yield Row(
            "apache-otava, ruptures", "", f"not compared, installation failed: {missing}", None
        )
    else:
        methods = {
            "otava, defaults": rivals.otava(),
            "otava, p <= 1e-4, size >= 3%": rivals.otava(max_pvalue=1e-4, min_magnitude=0.03),
            "ruptures PELT l2, 6 log n": rivals.pelt(),
            **methods,
        }
    for name, method in {"pvebench": unknown.ours, **methods}.items():
        runs, series = round(600 * scale), max(5, round(20 * scale))
        rates = unknown.false_alarms(method, rng, runs)
        recall = unknown.step_recall(method, rng, series, ratio=0.95)
        glitch = unknown.glitch_alarms(method, rng, series)
        text = " ".join(f"{rate:.1f}" for rate in rates.values())
        text += f" | {recall[3]:.0%} {recall[10]:.0%} {recall[20]:.0%} | {glitch:.0%}"
        yield Row(name, "", text, None)
    if not missing:
        values = unknown.KINDS["independent"](rng, 1000, 0.03)
        whole = rivals.otava_once()
        yield Row(
            "otava, one 1,000-run history",
            "",
            f"{1e3 * speed.best_seconds(lambda: whole(values), 3):.0f} ms",
            None,
        )


Part = Callable[[np.random.Generator, float], Iterator[Row]]
PARTS: dict[str, Part] = {
    "Real histories: reported changes": real_rows,
    "Noise of real hosts (alarms per 1,000 runs)": host_rows,
    "Whole nodes": node_rows,
    "Speed": speeds,
    "Upgrades (known time)": known_time,
    "Cases that did not change (known time)": null_series,
    "Unknown time": unknown_time,
    "Gradual changes": creeps,
    "Known regressions": incident_rows,
    "Other methods: alarms per 1,000 runs by kind | 5% within 3, 10, 20 runs | glitch": compared,
}


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of series")
    parser.add_argument(
        "--part", action="append", help="only run parts with this text in the title"
    )
    options = parser.parse_args()
    missed = 0
    for title, part in PARTS.items():
        if options.part and not any(text in title for text in options.part):
            continue
        begun = time.perf_counter()
        print(f"\n{title}\n", flush=True)
        for row in part(np.random.default_rng(options.seed), options.scale):
            missed += row.good is False
            mark = {True: "reached", False: "MISSED", None: ""}[row.good]
            print(f"  {row.name:<66} {row.aim:>12}  {row.reached:<16} {mark}", flush=True)
        print(f"  ({time.perf_counter() - begun:.0f} s)")
    print(
        f"\nseed {options.seed}: {missed} targets missed"
        if missed
        else f"\nseed {options.seed}: all targets reached"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
