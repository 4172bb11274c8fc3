"""The images that compose.yaml names: those that are there, those that can be pulled, stand-ins."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from engine import Docker
from ruamel.yaml import YAML
from stand_ins import MARK, build_context, make_base

from pvebench.errors import ToolFailed
from testing.packs import ROOT

EXPORTER: Final = "pvebench:compose-test"
HUB: Final = "pvebench-hub:compose-test"
PULL_SECONDS: Final = 600.0
BUILD_SECONDS: Final = 1800.0


def expected() -> dict[str, str]:
    """Return image -> service of what compose.yaml does not build itself."""
    services: dict[str, Any] = YAML(typ="safe").load(ROOT / "compose.yaml")["services"]
    found: dict[str, str] = {}
    for name, one in services.items():
        if "${" not in one["image"]:
            found.setdefault(one["image"], name)
    return found


def base_image() -> str:
    """Return the image that the exporter's own is built on."""
    text = (ROOT / "exporter" / "Dockerfile").read_text("utf-8")
    found = set(re.findall(r"(?m)^FROM (?:--platform=\S+ )?(\S+:\S+)", text))
    assert len(found) == 1, f"exporter/Dockerfile has several bases: {found}"
    return found.pop()


class Images:
    """The images of the stack.

    Args:
        directory: for a while, to build in.

    Attributes:
        stand_ins: names of the images that are not the real ones.
    """

    def __init__(self, docker: Docker, directory: Path) -> None:
        self._docker = docker
        self._directory = directory
        self._made: list[str] = []
        self._unreachable: set[str] = set()
        self.stand_ins: set[str] = set()
        directory.mkdir(parents=True)
        try:
            self._provide()
        except BaseException:
            self.remove(docker)
            raise

    def remove(self, docker: Docker) -> None:
        """Take away what was made or pulled; an engine of our own keeps it until it goes itself."""
        if not docker.ours:
            for image in reversed(self._made):
                docker.succeeds("image", "rm", "--force", image)

    def _provide(self) -> None:
        base = base_image()
        if not self._is_there(base) and not self._pulled(base):
            print(f"images: {base} cannot be pulled; made of this machine's Debian packages")
            make_base(self._docker, base, self._directory)
            self._note(base)
        missing = {
            image: service
            for image, service in expected().items()
            if not self._is_there(image) and not self._pulled(image)
        }
        self._stand_in(missing, base)
        for image, options in ((HUB, ["--target", "hub"]), (EXPORTER, [])):
            print(f"images: building {image}", flush=True)
            self._build("exporter/Dockerfile", ROOT, image, *options)
            self._made.append(image)

    def _stand_in(self, missing: dict[str, str], base: str) -> None:
        if not missing:
            return
        context = build_context(self._directory / "context")
        for image, service in missing.items():
            print(f"images: {image} cannot be pulled; a stand-in is made of Debian packages")
            self._build(
                str(context / "Dockerfile"),
                context,
                image,
                "--target",
                service,
                "--build-arg",
                f"BASE={base}",
                "--label",
                f"{MARK}={service}",
            )
            self._note(image)

    def _note(self, image: str) -> None:
        self._made.append(image)
        self.stand_ins.add(image)

    def _build(self, file: str, context: Path, image: str, *options: str) -> None:
        self._docker(
            "build",
            "--network=host",
            "--file",
            str(context / file),
            "--tag",
            image,
            *options,
            str(context),
            seconds=BUILD_SECONDS,
        )

    def _is_there(self, image: str) -> bool:
        """Whether it is there: the real one, or a stand-in of an earlier run."""
        form = "{{json .Config.Labels}}"
        try:
            labels = json.loads(self._docker("image", "inspect", "--format", form, image))
        except ToolFailed:
            return False
        if MARK in (labels or {}):
            self._note(image)
        return True

    def _pulled(self, image: str) -> bool:
        """Try to pull; a registry that cannot be reached is not asked a second time."""
        first, slash, _ = image.partition("/")
        registry = first if slash and "." in first else ""
        if registry in self._unreachable:
            return False
        try:
            self._docker("pull", "--quiet", image, seconds=PULL_SECONDS)
        except ToolFailed as error:
            if "not found" not in error.cause:
                self._unreachable.add(registry)
            return False
        self._made.append(image)
        return True
