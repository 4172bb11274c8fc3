"""Settings: errors with their place, paths relative to the file, and the schema of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from pvebench.config import load_settings
from pvebench.errors import ConfigError


def settings_message(tmp_path: Path, text: str) -> str:
    path = tmp_path / "pvebench.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    return str(caught.value).replace(str(tmp_path) + "/", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "listen: 10620\n",
            "pvebench.yaml:1:9: listen: invalid listen address 10620: write it as 127.0.0.1:10620",
        ),
        (
            "listen: '::1:10620'\n",
            "pvebench.yaml:1:9: listen: invalid listen address '::1:10620': "
            "write it as [::1]:10620",
        ),
        (
            "accelerator: xen\n",
            "pvebench.yaml:1:14: accelerator: 'xen' is not one of 'auto', 'kvm' or 'tcg'",
        ),
        ("storages:\n  a: {kind: dir}\n", "pvebench.yaml:2:6: missing key 'path'"),
        pytest.param(
            "storages:\n  a: {kind: zfs, vgname: pve}\n",
            "pvebench.yaml:2:6: missing key 'dataset'\n"
            "pvebench.yaml:2:18: unknown key 'vgname'; known keys: dataset, faults, kind, "
            "write_budget",
            marks=pytest.mark.lab,
        ),
        pytest.param(
            "storages:\n  a: {kind: nfs, server: s, export: /e, path: p}\n",
            "pvebench.yaml:2:41: unknown key 'path'; known keys: export, faults, kind, "
            "link_bits_per_second, server, write_budget",
            marks=pytest.mark.lab,
        ),
        ("packs: [a.yaml, a.yaml]\n", "pvebench.yaml:1:8: packs: duplicate pack: a.yaml"),
        (
            "max_age: 3\n",
            "pvebench.yaml:1:10: max_age: invalid duration 3: write a number with "
            "its unit, ms, s, m, h or d",
        ),
    ],
)
def test_broken_settings_are_reported_with_file_line_and_column(
    tmp_path: Path, text: str, expected: str
) -> None:
    assert settings_message(tmp_path, text) == expected


def test_paths_in_settings_are_taken_from_the_files_own_directory(tmp_path: Path) -> None:
    path = tmp_path / "pvebench.yaml"
    path.write_text("state: s\npacks: [p.yaml]\nstorages: {a: {path: v}}\n", "utf-8")
    settings = load_settings(path)
    assert settings.state == tmp_path / "s"
    assert settings.packs == (tmp_path / "p.yaml",)
    assert settings.storages["a"].path == tmp_path / "v"
