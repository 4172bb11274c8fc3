"""numpy is imported by the first array operation, not by commands that import the analysis."""

from __future__ import annotations

import subprocess
import sys


def loaded_after(statements: str) -> list[str]:
    """Return whether the analysis and numpy are loaded after some statements."""
    code = f"import sys\n{statements}\nprint('pvebench.analysis' in sys.modules, end=' ')\n"
    code += "print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.split()


def test_commands_import_the_analysis_without_numpy() -> None:
    assert loaded_after("import pvebench.cli.packs, pvebench.cli.progress") == ["True", "False"]


def test_the_first_array_operation_imports_numpy() -> None:
    used = "from pvebench.analysis.arrays import np\nassert np.zeros(3).sum() == 0"
    assert loaded_after(used) == ["True", "True"]
