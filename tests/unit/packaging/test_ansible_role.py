"""The role says of itself what it takes; `make ansible-test` lints it and plays it."""

from __future__ import annotations

import re

from testing.packs import ROOT

PACKAGING = ROOT / "packaging"


def test_the_role_has_a_default_for_every_option_that_is_not_required() -> None:
    role = PACKAGING / "ansible/roles/pvebench"
    specs = (role / "meta/argument_specs.yml").read_text("utf-8")
    told = set(re.findall(r"^      (pvebench_\w+):", specs, re.MULTILINE))
    defaults = set(
        re.findall(
            r"^(pvebench_\w+):", (role / "defaults/main.yml").read_text("utf-8"), re.MULTILINE
        )
    )
    assert told - defaults == {"pvebench_deb"}
    assert defaults - told == {"pvebench_settings_base"}
