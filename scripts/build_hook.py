"""Puts the commit into wheel and sdist: what was built has no repository to ask."""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {"wheel": "pvebench", "sdist": "exporter/pvebench"}


class CommitHook(BuildHookInterface):  # type: ignore[type-arg] # of a configuration that we have none of
    """A wheel that is built from an sdist has the sdist's commit, as one of its files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Have the file included; an editable install asks the checkout itself."""
        module = runpy.run_path(str(Path(self.root) / "exporter/pvebench/version.py"))
        commit = module["commit_of"](Path(self.root))
        if version == "editable" or not commit:
            return
        self._file = tempfile.NamedTemporaryFile("w", encoding="utf-8")  # noqa: SIM115 # until the build ends
        self._file.write(f"{commit}\n")
        self._file.flush()
        Path(self._file.name).chmod(0o644)  # others' too, as every file that is installed
        place = f"{PLACES[self.target_name]}/{module['COMMIT_FILE']}"
        build_data["force_include"][self._file.name] = place
