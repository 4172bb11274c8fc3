"""The contracts of imports cover every library, and each module has a test file of its name."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from testing.packs import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EVERYWHERE = {"typing-extensions", "tzdata"}
"""Libraries that any package may import, and data without a module."""

ELSEWHERE = {
    "starts the command line": "__main__",
    "interfaces, which each driver implements": "guest ports",
    "values of every test of a run": "scenario volume workload",
    "advice/test_gate.py": "gate_bound gate_text upgrade",
    "advice/test_recommendation.py": "advise next_measurements sentences",
    "advice/test_audit.py": "vm_findings",
    "analysis: by the verdicts on whole histories": """
        gradual_change judge_cache levels partial_change performance_index""",
    "commands, in the tests of what they show": "cluster export notify runs storage",
    "config/test_pack.py": "idle pack_keys",
    "diagnostics/test_doctor.py": "outgoing",
    "scheduler/test_pacing.py": "storage_use",
    "drivers: by the storages and VMs that use them": """
        ceph_state disk_readback local_backends loop network node_backends own_files""",
    "proxmox: by tests of a whole VM": "backup_archives cluster_access vm_snapshots",
    "node_durability: by the measured durability of a node": "records",
    "references/test_columns.py": "delimited reference_series",
    "report/test_html.py": "table",
    "terminals: by what each command prints": "sanitize",
    "service/test_instance.py": "startup",
    "store: by results and changes that come back": "changes stored_results",
    "verdicts/test_change_tracker.py": "node_verdicts",
    "workloads/test_tools.py": "bonnie dd hdparm ioping simulated_tools sysbench",
    "runner: the node of all its tests": "simulated_hypervisor",
    "hub: by what arrives and is judged": "imported node_effects node_transaction wire",
}
"""Where modules are tested that have no test file of their name -> the modules."""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_library_has_a_contract_that_says_who_may_import_it() -> None:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    # The first one is of `model`, which imports no library at all.
    contained = [
        module
        for contract in contracts
        if contract["type"] == "forbidden" and len(contract["forbidden_modules"]) < 10
        for module in contract["forbidden_modules"]
    ]
    covered = {
        _normal(name)
        for module, names in packages_distributions().items()
        if module in contained
        for name in names
    }
    dependencies = {
        _normal(re.split(r"[<>=\[; ]", text)[0]) for text in PROJECT["project"]["dependencies"]
    }
    assert dependencies - covered - EVERYWHERE == set()


def test_each_module_has_a_test_file_of_its_name_or_a_reason() -> None:
    files = (ROOT / "tests").rglob("test_*.py")
    named = {path.stem.removeprefix("test_") for path in files}
    modules = {
        path.stem for path in (ROOT / "exporter").glob("pvebench*/**/*.py") if _is_module(path)
    }
    assert modules - named == {name for names in ELSEWHERE.values() for name in names.split()}


def _is_module(path: Path) -> bool:
    return path.name != "__init__.py" and "migrations" not in path.parts
