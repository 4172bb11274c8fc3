"""One broken file for each error; the whole message is the expectation."""

from __future__ import annotations

from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.cli.run import serve
from pvebench.config import Settings, load_pack
from pvebench.drivers.storages import KINDS
from pvebench.errors import ConfigError
from pvebench.model.units import GIB
from pvebench.scheduler.plan import check_slugs, expand
from testing.packs import SMALL, STORAGES, write_pack


def message(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_pack(path)
    return str(caught.value).replace(str(path.parent) + "/", "")


BROKEN = {
    "area larger than the volume": (
        SMALL.replace("iodepth: 8", "iodepth: 8, size: 4G"),
        "pack.yaml:14:51: size: 4G exceeds the volume or test file; use at most 64M",
    ),
    "area larger than the test file": (
        SMALL.replace("cache: [none]", "cache: [none]\n  filesystem: [none, ext4]").replace(
            "iodepth: 8", "iodepth: 8, size: [16M, 33M]"
        ),
        "pack.yaml:15:51: size: 33M exceeds the volume or test file; use at most 32M",
    ),
    "area of ioping larger than the volume": (
        SMALL + "  - ioping: {size: 65M}\n",
        "pack.yaml:15:20: size: 65M exceeds the volume or test file; use at most 64M",
    ),
    "more blocks than the volume has": (
        SMALL + "  - dd: {rw: write, bs: 1M, count: 65}\n",
        "pack.yaml:15:36: count: 65M exceeds the volume or test file; use at most 64M",
    ),
    "files of a tool larger than the test file": (
        SMALL.replace("cache: [none]", "cache: [none]\n  filesystem: [ext4]")
        + "  - bonnie++: {size: 33M}\n  - sysbench: {mode: rndrd, size: 33M, bs: 1M}\n",
        "pack.yaml:16:22: size: 33M exceeds the volume or test file; use at most 32M\n"
        "pack.yaml:17:35: size: 33M exceeds the volume or test file; use at most 32M",
    ),
    "area that sequential jobs cannot divide": (
        SMALL.replace("rw: randread, bs: 4k", "rw: read, bs: 1M, numjobs: 3, size: 10M"),
        "pack.yaml:14:47: workloads.0.fio.size: 10485760 bytes cannot be divided among 3 jobs with "
        "whole blocks of 1048576 bytes",
    ),
    "rate that a mix cannot divide": (
        SMALL.replace("rw: randread", "rw: randrw, rwmixread: 99, rate_iops: 50"),
        "pack.yaml:14:49: workloads.0.fio.rate_iops: 50 cannot be divided into 99% reads and 1% "
        "writes for each of 1 jobs",
    ),
    "volume that is not whole MiB": (
        SMALL.replace("size: 64M", "size: 100000000"),
        "pack.yaml:9:9: volume.size: 100000000 bytes is not a whole number of MiB",
    ),
    "memory that is not whole MiB": (
        SMALL + "guest: {memory: 1000000000}\n",
        "pack.yaml:15:17: guest.memory: 1000000000 bytes is not a whole number of MiB",
    ),
    "part of a millisecond": (
        SMALL.replace("ramp: 1s", "ramp: 1.00005s"),
        "pack.yaml:11:9: measure.ramp: 1.00005 s is not a whole number of milliseconds",
    ),
    "a window too short for an operation": (
        SMALL.replace("iodepth: 8", "iodepth: 8, during: backup, runtime: 2s"),
        "pack.yaml:14:70: workloads.0.fio.runtime: too short for workloads with during; "
        "use at least 9s",
    ),
    "part of a microsecond": (
        SMALL.replace("iodepth: 8", "iodepth: 8, latency_target: 0.0015ms"),
        "pack.yaml:14:61: workloads.0.fio.latency_target: '0.0015ms' is not a whole number of "
        "microseconds",
    ),
    "unknown key with a near name": (
        SMALL.replace("every: 10m", "every: 10m\nvolum: {size: 1G}"),
        "pack.yaml:4:1: unknown key 'volum'; did you mean 'volume'?",
    ),
    "unknown key without a near name": (
        SMALL.replace("  size: 64M", "  size: 64M\n  colour: red"),
        "pack.yaml:10:3: unknown key 'colour'; known keys: compress, file, file_name, fill, size",
    ),
    "missing key": (SMALL.replace("pack: small\n", ""), "pack.yaml:1:1: missing key 'pack'"),
    "wrong type": (
        SMALL.replace("every: 10m", "every: 10m\nseed: one"),
        "pack.yaml:4:7: seed: expected a whole number, found 'one'",
    ),
    "size with an ambiguous unit": (
        SMALL.replace("64M", "64MB"),
        "pack.yaml:9:9: volume.size: invalid size '64MB': write bytes, or a whole number with "
        "k, M, G or T (steps of 1024, as in fio and Proxmox)",
    ),
    "duration without unit": (
        SMALL.replace("10m", "10"),
        "pack.yaml:3:8: every: invalid duration 10: write a number with its unit, ms, s, m, h or d",
    ),
    "unknown cache mode": (
        SMALL.replace("cache: [none]", "cache: [none, fast]"),
        "pack.yaml:7:17: axes.cache.1: 'fast' is not one of 'none', 'directsync', "
        "'writethrough', 'writeback' or 'unsafe'",
    ),
    "empty axis": (
        SMALL.replace("cache: [none]", "cache: []"),
        "pack.yaml:7:10: axes.cache: axis without values; add at least one",
    ),
    "value twice on an axis": (
        SMALL.replace("cache: [none]", "cache: [none, none]"),
        "pack.yaml:7:10: axes.cache: duplicate value: none",
    ),
    "option both axis and fixed": (
        SMALL.replace("volume:", "fixed: {cache: none}\nvolume:"),
        "pack.yaml:8:16: fixed.cache: also in axes; keep one of the two",
    ),
    "volume too small": (
        SMALL.replace("64M", "1M"),
        "pack.yaml:9:9: volume.size: 1048576 bytes are too small for a benchmark; use at least 16M",
    ),
    "too little memory to boot": (
        SMALL + "guest: {memory: 256M}\n",
        "pack.yaml:15:17: guest.memory: the guest does not boot with 256M; use at least 512M",
    ),
    "runtime too short for an operation": (
        SMALL.replace("iodepth: 8", "during: backup"),
        "pack.yaml:12:12: measure.runtime: too short for workloads with during; use at least 9s",
    ),
    "a target without any rate": (
        SMALL.replace("2s", "9s").replace("iodepth: 8", "during: backup, target_rate: 0"),
        "pack.yaml:14:62: workloads.0.fio.target_rate: expected 1 or more, found 0",
    ),
    "more VMs than a storage of kind dir can have": (
        SMALL.replace("iodepth: 8", f"vms: {STORAGES['local'].vms + 1}"),
        "pack.yaml:14:38: workloads.0.fio.vms: expected 8 or less, found 9",
    ),
    "runtime too short": (
        SMALL.replace("runtime: 2s", "runtime: 500ms"),
        "pack.yaml:12:12: measure.runtime: too short for a measurement; use at least 1s",
    ),
    "same workload twice": (
        SMALL + "  - fio: {rw: randread, bs: 4096, iodepth: 8}\n",
        "pack.yaml:15:5: same workload as entry 1: randread-4k-qd8",
    ),
    "unknown tool": (
        SMALL.replace("- fio:", "- foi:"),
        "pack.yaml:14:5: unknown key 'foi'; did you mean 'fio'?",
    ),
    "two tools in one entry": (
        SMALL + "    idle: {}\n",
        "pack.yaml:14:5: workloads.0: expected exactly one key: a tool's name, with its options "
        "below it",
    ),
    "a tool without its options": (
        SMALL + "  - idle: 5m\n",
        "pack.yaml:15:11: workloads.1.idle: expected a mapping of keys to values, found '5m'",
    ),
    "a sweep over nothing": (
        SMALL.replace("iodepth: 8", "iodepth: []"),
        "pack.yaml:14:42: workloads.0.fio.iodepth: empty list; add at least one value",
    ),
    "no workloads": (
        SMALL.partition("  - fio")[0].replace("workloads:", "workloads: []"),
        "pack.yaml:13:12: workloads: no workloads; add at least one",
    ),
    "repeated key": (SMALL + "every: 5m\n", 'pack.yaml:15:1: found duplicate key "every"'),
    "not YAML": (SMALL.replace("[none]", "[none"), "pack.yaml:8:7: expected ',' or ']', found ':'"),
    "a name that would break slugs": (
        SMALL.replace("pack: small", "pack: a.b"),
        "pack.yaml:1:7: pack: invalid name 'a.b': use letters, digits, '-' and '_'; "
        "dots and slashes separate the parts of slugs",
    ),
    "read-ahead in broken sectors": (
        SMALL.replace("volume:", "fixed: {read_ahead: 1000}\nvolume:"),
        "pack.yaml:8:21: fixed.read_ahead: invalid read-ahead of 1000 bytes: use whole sectors of "
        "512, up to 1G",
    ),
    "queues that are none": (
        SMALL.replace("volume:", "fixed: {queues: 1}\nvolume:"),
        "pack.yaml:8:17: fixed.queues: expected 2 or more, found 1",
    ),
    "mount options that are a command": (
        SMALL.replace("volume:", "fixed: {mount_options: 'ro; x'}\nvolume:"),
        "pack.yaml:8:24: fixed.mount_options: invalid mount options 'ro; x': write them as for "
        "mount -o: noatime,commit=30",
    ),
    "a scheduler that is a path": (
        SMALL.replace("volume:", "fixed: {scheduler: ../x}\nvolume:"),
        "pack.yaml:8:20: fixed.scheduler: invalid I/O scheduler '../x': write it as in "
        "/sys/block/*/queue/scheduler",
    ),
    "empty exclude": (
        SMALL.replace("volume:", "exclude: [{}]\nvolume:"),
        "pack.yaml:8:10: exclude: empty entry; remove it or add an option",
    ),
}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [b", "1:6: expected ',' or ']', found the end of the file"),
        ("a:\n\tb: 1", "2:1: found a tab; indent with spaces"),
        ("a: b: c", "1:5: unexpected ':'; check the indentation, or quote"),
        ('a: "b', "1:6: a quotation mark is missing before the end of the file"),
        ("a:\n  - b\n c: 1", "3:2: expected a line with less indentation, found a line with more"),
        (
            f"{SMALL}guest: {{cpus: true}}\n",
            "15:15: guest.cpus: expected a whole number, found true",
        ),
    ],
)
def test_errors_of_the_parser_are_in_words_of_users(text: str, words: str, tmp_path: Path) -> None:
    assert words in message(write_pack(tmp_path, text))


@pytest.mark.lab
def test_a_first_pack_has_what_is_obvious_and_all_its_errors_at_once(tmp_path: Path) -> None:
    pack = load_pack(write_pack(tmp_path, "pack: mine\nworkloads:\n  fio: {rw: read, bs: 4k}\n"))
    assert (pack.title, pack.every_seconds, pack.volume_bytes) == ("mine", 21600.0, GIB)
    assert {key: values[0] for key, values in pack.axes.items()} == {
        "storage": "local", "bus": "scsi", "format": "raw", "cache": "none",
    }  # fmt: skip
    options = "rwmixwrite: 3, blocksize: 4k, rate: 1M, verify: md5, direct: 1, iodpeth: 1"
    text = f"every: 9\nworkloads:\n  fio: {{rw: randrw, bs: 4k, {options}}}\n  dd: {{bs: 1M}}\n"
    with pytest.raises(ConfigError) as raised:
        load_pack(write_pack(tmp_path, text))
    said = [problem.message for problem in raised.value.problems]
    assert said[0] == "missing key 'pack'"
    assert said[1].startswith("every: invalid duration 9")
    keys = [part.split(":")[0] for part in options.split(", ")[:-1]]
    assert [text.split("'")[1] for text in said[2:7]] == keys
    assert [text for text in said if "did you mean" in text] == [
        "unknown key 'iodpeth'; did you mean 'iodepth'?"
    ]
    assert said[-1] == "missing key 'rw'"


def test_a_workload_may_have_its_own_window(tmp_path: Path) -> None:
    pack = load_pack(write_pack(tmp_path, SMALL.replace("iodepth: 8", "runtime: [1m, 90s, 2s]")))
    assert [(each.slug, each.runtime_seconds) for each in pack.workloads] == [
        ("randread-4k-qd1-run60s", 60.0),
        ("randread-4k-qd1-run90s", 90.0),
        ("randread-4k-qd1-run2s", 2.0),
    ]


@pytest.mark.parametrize(
    ("command", "workload"),
    [
        ("fio --name=a --rw=randread --bs=4k --iodepth=32 --ioengine=libaio", "randread-4k-qd32"),
        (
            "$ sudo fio –name=a –rw randrw –rwmixwrite=30 –blocksize 16kb",
            "randrw-16k-qd1-mix70-psync",
        ),
        (
            "fio --name=a --rw=write --bs=1m --rate=100m --numjobs=2",
            "write-1M-qd1-j2-psync-rate200",
        ),
        ("[global]\nrw=randwrite\n[a]\nbs=4k\ndirect=1\nsync=1\n", "randwrite-4k-qd1-sync-psync"),
        ("fio --sync=1 --rw=read --bs=4K --loops=5 --rwmixread=9 --name x", "read-4k-qd1-psync"),
        ("fio --name=a --bssplit=4k/50", "bssplit: pvebench measures one block size"),
        ("fio --name=a --rw=randrw --rate=1m", "rate: limits one direction"),
        ("fio --name=a --direct=0", "direct: must be 1"),
        (
            "fio --name=a --thinktime=9 --name=b --numjobs=x",
            "thinktime: pvebench has no such option",
        ),
        ("fio --name=a --runtime=9 --name=b --runtime=8", "runtime: differs between the jobs"),
        ("fio --name='a", "a quotation mark is missing"),
        ("fio --name=a --rw=read \\\n--bs=8k", "read-8k-qd1-psync"),
        ("", "no options of fio"),
        ("dd if=/dev/zero of=x bs=1M", "no options of fio"),
        ("fio --name=a --rw=read; fio --bs=8k --name=b", "several commands; pass them one by one"),
        ("fio --rw=randread --bs=3k", "not a power of two"),
    ],
)
def test_jobs_of_fio_become_a_pack_or_the_reason_is_named(
    command: str, workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_cli(["packs", "--from-fio", command])
    said = capsys.readouterr()
    if code:
        assert workload in said.err
        return
    assert said.out.startswith("# direct: pvebench always bypasses the page cache")
    pack = load_pack(write_pack(tmp_path, said.out))
    assert [each.slug for each in pack.workloads] == [workload]


@pytest.mark.parametrize(
    ("command", "note"),
    [
        ("fio --name=a --rw=read --iodepth=16", "# iodepth: fio ignores it with read and psync"),
        ("fio --name=a --rw=read --fsync=1", "# fsync: fio ignores it with read and psync"),
        ("fio --name=a --rw=read --name=b --rw=write", "# jobs: pvebench measures one at a time"),
    ],
)
def test_what_a_pack_of_fio_leaves_out_is_said(
    command: str, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["packs", "--from-fio", command]) == 0
    assert note in capsys.readouterr().out.splitlines()


OF_LAB = {
    "area of ioping larger than the volume",
    "more blocks than the volume has",
    "files of a tool larger than the test file",
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.lab) if n in OF_LAB else n for n in BROKEN]
)
def test_a_broken_pack_is_reported_with_file_line_and_column(tmp_path: Path, name: str) -> None:
    text, expected = BROKEN[name]
    assert message(write_pack(tmp_path, text)) == expected


def test_an_option_of_a_workload_is_pointed_at(tmp_path: Path) -> None:
    text = message(write_pack(tmp_path, SMALL.replace("bs: 4k", "bs: 4kib8")))
    assert text.startswith("pack.yaml:14:29: workloads.0.fio.bs: ")


def test_a_fault_in_a_sweep_is_reported_once_and_where_it_stands(tmp_path: Path) -> None:
    text = SMALL.replace("bs: 4k, iodepth: 8", "bs: [4k, 3k], iodepth: [1, 8]")
    assert message(write_pack(tmp_path, text)) == (
        "pack.yaml:14:29: workloads.0.fio.bs: 3072 bytes is not a power of two from 512 to 64M"
    )


def test_a_rule_about_several_options_points_at_the_one_it_names(tmp_path: Path) -> None:
    text = SMALL.replace("iodepth: 8", "rwmixread: [30, 70]")
    assert message(write_pack(tmp_path, text)) == (
        "pack.yaml:14:44: workloads.0.fio.rwmixread: only rw and randrw mix reads and writes, "
        "randread does not"
    )


def test_every_fault_of_a_file_is_reported_in_the_order_of_its_lines(tmp_path: Path) -> None:
    text = SMALL.replace("every: 10m", "every: 10").replace("64M", "64MB")
    lines = message(write_pack(tmp_path, text)).splitlines()
    assert [line.split(": ")[0] for line in lines] == ["pack.yaml:3:8", "pack.yaml:9:9"]


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    assert message(tmp_path / "no.yaml").startswith("no.yaml: file not found; ")


def test_an_empty_file_is_reported(tmp_path: Path) -> None:
    assert message(write_pack(tmp_path, "# nothing\n")) == "pack.yaml:1:1: empty file"


def test_a_pack_whose_combinations_are_all_impossible_is_an_empty_matrix(tmp_path: Path) -> None:
    text = SMALL.replace("cache: [none]", "cache: [writeback]\n  aio: [native]")
    pack = load_pack(write_pack(tmp_path, text))
    with pytest.raises(ConfigError) as caught:
        expand(pack, node="lab", storages=STORAGES)
    place = "pack.yaml:5:3: empty matrix: every combination is excluded (aio=native needs O_DIRECT"
    assert place in str(caught.value)
    assert "change what excludes them" in caught.value.next_step


def test_workloads_that_exclude_all_combinations_are_an_empty_matrix_too(tmp_path: Path) -> None:
    pack = load_pack(write_pack(tmp_path, SMALL.replace("iodepth: 8", "touch: first")))
    with pytest.raises(ConfigError) as caught:
        expand(pack, node="lab", storages=STORAGES)
    assert "pack.yaml:14:3: empty matrix: every combination is excluded (touch" in str(caught.value)


def test_a_storage_that_is_not_configured_is_named_with_those_that_are(tmp_path: Path) -> None:
    text = SMALL.replace("axes:", "axes:\n  storage: [fast]")
    pack = load_pack(write_pack(tmp_path, text))
    with pytest.raises(ConfigError) as caught:
        expand(pack, node="lab", storages=STORAGES)
    place = "pack.yaml:5:12: storage fast is not configured on lab; known: local"
    assert place in str(caught.value)
    assert "axes: {storage: [local]} in the pack, or name a storage of the settings fast" in (
        caught.value.next_step
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("64M", "128M", "volume.size; use equal values or run one of the packs"),
        ("axes:", "guest: {memory: 2G, cpus: 2}\naxes:", "guest.memory, guest.cpus; use equal"),
        (
            "2s",
            "9s",
            "measure.runtime; use equal values, raise its version or run one of the packs",
        ),
    ],
)
def test_one_slug_with_two_meanings_is_refused(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    first = load_pack(write_pack(tmp_path, SMALL, "a.yaml"))
    second = load_pack(write_pack(tmp_path, SMALL.replace(old, new), "b.yaml"))
    both = [(pack, expand(pack, node="lab", storages=STORAGES)) for pack in (first, second)]
    with pytest.raises(ConfigError) as caught:
        check_slugs(both)
    assert f"has another definition in {first.path}: different {message}" in str(caught.value)


def test_the_same_case_in_two_packs_is_fine(tmp_path: Path) -> None:
    packs = [load_pack(write_pack(tmp_path, SMALL, name)) for name in ("a.yaml", "b.yaml")]
    check_slugs([(pack, expand(pack, node="lab", storages=STORAGES)) for pack in packs])


@pytest.mark.parametrize("key", ["storage", "bus", "cache", "format", "iothread"])
def test_an_option_beside_the_axes_is_named_as_one(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_pack(write_pack(tmp_path, f"{SMALL}\n{key}: x\n", "a.yaml"))
    assert f"no key '{key}': it is an option; write it below `fixed`" in str(refused.value)


@pytest.mark.lab
def test_the_storage_table_knows_what_each_kind_can_hold() -> None:
    held = {name: {str(one) for one in kind.holds.formats} for name, kind in KINDS.items()}
    assert held == {
        "dir": {"raw", "qcow2", "vmdk"},
        "loop": {"raw", "qcow2"},
        "block": {"raw"},
        "nbd": {"raw"},
        "nfs": {"raw", "qcow2"},
        "rbd": {"raw"},
        "lvmthin": {"raw"},
        "zfs": {"raw"},
    }


def test_an_invalid_option_is_named_as_it_is_typed() -> None:
    options = {option.name: option.opts[0] for option in serve.params}
    names = {key: options[key] for key in Settings.model_fields if key in options}
    assert {"host_names", "packs", "web_config_file", "listen", "state"} <= set(names)
    for key, option in names.items():
        with pytest.raises(ConfigError, match=f"^command line: {option}: "):
            Settings().with_changes({key: 1 if key != "packs" else ["x"] * 101})


@pytest.mark.parametrize(
    ("sync", "hint"), [("1", "; to flush after writes, use fsync: 1"), ("0", "")]
)
def test_a_number_for_sync_is_answered_with_fsync(tmp_path: Path, sync: str, hint: str) -> None:
    text = SMALL.replace("rw: randread", f"rw: randwrite, sync: {sync}")
    with pytest.raises(ConfigError) as caught:
        load_pack(write_pack(tmp_path, text))
    message = f"sync: expected true (O_SYNC) or false, found {sync}{hint}"
    assert str(caught.value).splitlines()[0].endswith(message)
