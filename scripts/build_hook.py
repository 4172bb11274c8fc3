"""Build hook that adds the commit to wheel and sdist, which have no repository."""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {"wheel": "pvebench", "sdist": "exporter/pvebench"}


class CommitHook(BuildHookInterface):  # type: ignore[type-arg] # no configuration class
    """Hook that includes the commit file; a wheel built from an sdist uses that of the sdist."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Include the file; an editable install reads the commit from the checkout."""
        module = runpy.run_path(str(Path(self.root) / "exporter/pvebench/version.py"))
        commit = module["commit_of"](Path(self.root))
        if version == "editable" or not commit:
            return
        self._file = tempfile.NamedTemporaryFile("w", encoding="utf-8")  # noqa: SIM115 # must exist until the build ends
        self._file.write(f"{commit}\n")
        self._file.flush()
        Path(self._file.name).chmod(0o644)  # readable by all, like every installed file
        place = f"{PLACES[self.target_name]}/{module['COMMIT_FILE']}"
        build_data["force_include"][self._file.name] = place
