"""No second table has the same keys: one home per fact.

A table is a constant dictionary of a module, or a `match`, a chain of `if` or a dictionary over the
members of an enum. Two of them with four equal keys are one table in two places, which the next key
may reach in one place only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from testing.packs import ROOT

PRODUCT = ROOT / "exporter"
LEAST = 4
"""Equal keys from which two tables are one."""
REASONS = {
    (
        "pvebench/advice/next_measurements.py",
        "pvebench/verdicts/change_text.py",
    ): "values to try; names in sentences",
    ("pvebench/advice/packages.py", "pvebench/drivers/proxmox/node/node_state.py"): (
        "all packages that users name; those in effect at their installation"
    ),
    ("pvebench/model/units.py", "pvebench/web/tls_and_users.py"): "durations of Go, without days",
    (
        "pvebench/web/tls_and_users.py",
        "pvebench_lab/references/columns.py",
    ): "durations of Go; units of tables",
    ("pvebench/drivers/proxmox/vm/drive.py", "pvebench/drivers/storages/__init__.py"): (
        "storage types of Proxmox VE; kinds of this machine with the same names"
    ),
    ("pvebench/drivers/qemu/block_graph.py", "pvebench_lab/simulated/simulated_tools.py"): (
        "devices in QEMU; simulated speeds"
    ),
    ("pvebench/drivers/qemu/block_graph.py", "pvebench/model/disk.py"): (
        "devices in QEMU; traits of a bus"
    ),
    ("pvebench/model/disk.py", "pvebench_lab/simulated/simulated_tools.py"): (
        "traits of a bus; simulated speeds"
    ),
    (
        "pvebench_fleet/hub/rules.py",
        "pvebench_fleet/hub/store/site_transaction.py",
    ): "limits; kinds of rows",
    ("pvebench_fleet/hub/rules.py", "pvebench_fleet/hub/store/database.py"): (
        "limits; order of removal"
    ),
    (
        "pvebench_fleet/hub/store/database.py",
        "pvebench_fleet/hub/store/site_transaction.py",
    ): "order of removal; kinds of rows",
    (
        "pvebench/model/figure.py",
        "pvebench/report/value_text.py",
    ): "limits of a unit; its format, a layer above",
    (
        "pvebench/model/status.py",
        "pvebench/report/value_text.py",
    ): "states of a phase; its name, a layer above",
    (
        "pvebench/store/tables.py",
        "pvebench_fleet/fleet_log.py",
    ): "definition of the tables; rows to send",
}
"""Modules whose tables have equal keys on purpose -> what each of them says."""


def _key(node: ast.expr | None) -> str:
    """Return a key's text: a string, or `Enum.MEMBER`; empty: neither."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}" if node.value.id[0].isupper() else ""
    return ""


def _keys(node: ast.AST) -> set[str]:
    """Return the keys of a dictionary, a `match` or a chain of `if`; empty: none of them."""
    keys: list[ast.expr | None] = []
    if isinstance(node, ast.Dict):
        keys += node.keys
    elif isinstance(node, ast.Match):
        patterns = [part for case in node.cases for part in ast.walk(case.pattern)]
        keys += [part.value for part in patterns if isinstance(part, ast.MatchValue)]
    while isinstance(node, ast.If):
        tests = [part for part in ast.walk(node.test) if isinstance(part, ast.Compare)]
        keys += [test.comparators[0] for test in tests if isinstance(test.ops[0], ast.Is | ast.Eq)]
        node = node.orelse[0] if len(node.orelse) == 1 else node.test
    return {text for key in keys if (text := _key(key))}


def tables(source: str) -> Iterator[tuple[int, set[str]]]:
    """Yield line and keys of each table of a module."""
    tree = ast.parse(source)
    assigned = (node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign))
    constants = {id(node.value) for node in assigned}
    chained = {
        id(node.orelse[0]) for node in ast.walk(tree) if isinstance(node, ast.If) and node.orelse
    }
    for node in ast.walk(tree):
        keys = _keys(node) if id(node) not in chained else set()
        of_enum = all("." in key and key[0].isupper() for key in keys)
        if len(keys) >= LEAST and (
            of_enum or id(node) in constants or not isinstance(node, ast.Dict)
        ):
            yield getattr(node, "lineno", 0), keys


def _module(path: Path) -> str:
    return str(path.relative_to(PRODUCT))


def test_no_second_table_has_the_same_keys() -> None:
    found = [
        (_module(path), line, keys)
        for path in sorted(PRODUCT.rglob("*.py"))
        for line, keys in tables(path.read_text("utf-8"))
    ]
    assert len(found) > LEAST
    same = {
        (one, other): f"{one}:{line} and {other}:{further}: {sorted(keys & others)}"
        for (one, line, keys), (other, further, others) in combinations(found, 2)
        if len(keys & others) >= LEAST
    }
    assert [text for modules, text in same.items() if modules not in REASONS] == []
    modules = {one for one, _, _ in found}
    assert [pair for pair in REASONS if {*pair} <= modules and pair not in same] == []


def test_tables_of_each_form_are_recognized() -> None:
    members = ("A", "B", "C", "D", "E")
    keys = {f"Kind.{name}" for name in members}
    dictionary = "{" + ", ".join(f"Kind.{name}: 1" for name in members) + "}"
    cases = "".join(f"        case Kind.{name}:\n            pass\n" for name in members)
    chain = "    if kind is Kind.A:\n        pass\n"
    chain += "".join(f"    elif kind == Kind.{name}:\n        pass\n" for name in members[1:])
    for body in (f"    return {dictionary}", f"    match kind:\n{cases}", chain):
        assert keys in [known for _, known in tables(f"def chosen(kind):\n{body}\n")]
    assert list(tables("WORDS = {'a': 1, 'b': 2, 'c': 3, 'd': 4}")) == [(1, {"a", "b", "c", "d"})]
    assert list(tables("def request():\n    return {'a': 1, 'b': 2, 'c': 3, 'd': 4}\n")) == []


ELSEWHERE = {
    "starts the command line": "__main__",
    "interfaces, which each driver implements": "guest ports",
    "values of every test of a run": "scenario volume workload",
    "advice/test_gate.py": "gate_statistic upgrade",
    "advice/test_recommendation.py": "next_measurements recommendation_text",
    "advice/test_audit.py": "vm_findings",
    "by whole histories": "gradual_change levels partial_change performance_index placebos",
    "commands, in the tests of what they show": "cluster notify runs sanitize setup storage",
    "config/test_pack.py": "idle pack_keys",
    "diagnostics/test_doctor.py": "outgoing pipeline",
    "scheduler/test_pacing.py": "storage_use",
    "drivers: by the storages and VMs that use them": """
        ceph_state disk_readback loop node_backends""",
    "proxmox: by tests of a whole VM": "cluster_access vm_copies",
    "node_durability: by the measured durability of a node": "records",
    "references/test_columns.py": "delimited reference_series",
    "report/test_html.py": "table",
    "service/test_instance.py": "startup",
    "store: by results and changes that come back": "changes stored_results",
    "verdicts/test_change_tracker.py": "verdict_collectors",
    "workloads/test_tools.py": "simulated_tools",
    "runner: the node of all its tests": "simulated_hypervisor",
    "hub: by what arrives and is judged": "imported node_effects node_transaction wire",
}
"""Where modules are tested that have no test file of their name, or why not -> the modules."""


def test_each_module_has_a_test_file_of_its_name_or_a_reason() -> None:
    files = (ROOT / "tests").rglob("test_*.py")
    named = {path.stem.removeprefix("test_") for path in files}
    modules = {
        path.stem for path in (ROOT / "exporter").glob("pvebench*/**/*.py") if _is_module(path)
    }
    assert modules - named == {name for names in ELSEWHERE.values() for name in names.split()}


def _is_module(path: Path) -> bool:
    return path.name != "__init__.py" and "migrations" not in path.parts
