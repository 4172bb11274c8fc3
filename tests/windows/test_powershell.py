"""PowerShell lines: balanced, and of known cmdlets and parameters only; nothing here runs them."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import tree_sitter_pwsh  # type: ignore[import-untyped] # it has no types
from tree_sitter import Language, Parser

from pvebench.errors import OutputUnreadable
from pvebench_lab.windows import powershell
from pvebench_lab.windows.powershell import Line

pytestmark = pytest.mark.lab

DOCS = Path(__file__).parents[2] / "docs/windows"

LINES = {name: line for name, line in vars(powershell).items() if isinstance(line, Line)}
VALUES = {
    "number": 1,
    "filesystem": "NTFS",
    "letter": "T",
    "path": "C:/pvebench",
    "pid": 7,
    "last": 9,
}
CMDLETS = {
    # Names and parameters of Windows PowerShell 5.1 and its Storage module, by its documentation.
    "Add-MpPreference": {"ExclusionPath", "ErrorAction"},
    "Clear-Disk": {"Number", "RemoveData", "RemoveOEM", "Confirm"},
    "ConvertTo-Json": {"Compress", "Depth", "InputObject"},
    "ForEach-Object": set(),
    "Format-Volume": {"FileSystem", "Confirm"},
    "Get-ChildItem": {"Filter"},
    "Get-CimInstance": set(),
    "Get-Disk": {"Number"},
    "Get-FileHash": set(),
    "Get-ItemProperty": set(),
    "Get-Partition": {"DiskNumber"},
    "Get-PhysicalDisk": set(),
    "Get-Process": {"Id", "ErrorAction"},
    "Get-Service": {"ErrorAction"},
    "Get-StorageAdvancedProperty": set(),
    "Get-StorageSetting": set(),
    "Get-Volume": {"DriveLetter"},
    "Get-WinEvent": {"MaxEvents", "ErrorAction", "FilterHashtable"},
    "Initialize-Disk": {"Number", "PartitionStyle"},
    "New-Item": {"ItemType", "Force", "Path"},
    "New-Partition": {"DiskNumber", "UseMaximumSize"},
    "Remove-Item": set(),
    "Select-Object": set(),
    "Set-Disk": {"Number", "IsReadOnly", "IsOffline"},
    "Set-Partition": {"NewDriveLetter"},
    "Set-Service": {"StartupType"},
    "Set-StorageSetting": {"NewDiskPolicy"},
    "Start-Process": {"Wait"},
    "Test-Path": set(),
    "Update-HostStorageCache": set(),
    "Where-Object": set(),
}
MAX_CHARACTERS = 32_000  # a longer command line than 32,767 is cut silently
OPERATORS = {"eq", "ne", "f", "in", "ge", "like", "not", "and", "match"}
SCRIPTS = {"check": powershell.check_script(), "setup": powershell.setup_script()}


def decoded(line: Line) -> str:
    return base64.b64decode(line.argv(**VALUES)[-1]).decode("utf-16-le")


def faults(text: str) -> list[str]:
    """Return unknown words and missing ends; later versions of PowerShell accept more."""
    bare = re.sub(r"'[^']*'", "''", text)
    found = [f"unpaired {mark}" for mark in "'\"" if bare.count(mark) % 2]
    found += [
        f"unpaired {first}"
        for first, last in ("()", "{}", "[]")
        if bare.count(first) != bare.count(last)
    ]
    found += ["empty pipe or item"] * bool(re.search(r"\|\s*(\||;|$)|,\s*,|&&|\|\|", bare))
    for statement in re.split(r"[;|(){}=\n]", bare):
        words = statement.split()
        if not words or not re.fullmatch(r"[A-Za-z]+-[A-Za-z]+", words[0]):
            continue
        known = CMDLETS.get(words[0])
        if known is None:
            found.append(f"unknown cmdlet {words[0]}")
            continue
        given = {word[1:].split(":")[0] for word in words[1:] if re.match(r"-[A-Za-z]", word)}
        found += [f"{words[0]}: unknown -{name}" for name in sorted(given - known - OPERATORS)]
    return found


def parses(text: str) -> bool:
    """Return whether the grammar of PowerShell accepts a text; it has no names of cmdlets."""
    tree = Parser(Language(tree_sitter_pwsh.language())).parse(text.encode())
    return not tree.root_node.has_error


@pytest.mark.parametrize("text", [*map(decoded, LINES.values()), *SCRIPTS.values()])
def test_a_line_and_a_script_parse_and_have_known_cmdlets_and_parameters_only(text: str) -> None:
    assert parses(text)
    assert faults(re.sub(r"^#.*$", "", text, flags=re.MULTILINE)) == []


def test_the_scripts_have_each_requirement_of_the_agent() -> None:
    for need in powershell.REQUIREMENTS.values():
        caught = f"$(try {{ {need.condition} }} catch {{ $false }})"
        assert caught in decoded(powershell.SYSTEM)  # one error must not hide what else is missing
        assert need.condition in SCRIPTS["check"]
        assert need.remedy in SCRIPTS["setup"] or need.remedy.startswith("#")


def test_the_answer_file_runs_the_script_and_has_only_known_elements() -> None:
    """Elements and their order by the reference of the unattended setup; Windows never read it."""
    space = "{urn:schemas-microsoft-com:unattend}"
    root = ET.fromstring((DOCS / "autounattend.xml").read_text("utf-8"))
    passes = [settings.get("pass") for settings in root.iter(f"{space}settings")]
    assert passes == ["windowsPE", "oobeSystem"]
    commands = [node.text or "" for node in root.iter(f"{space}CommandLine")]
    assert commands[-1] == "shutdown /s /t 0"
    (inside,) = re.findall(r'-Command "(.*)"', commands[0])
    assert parses(inside)
    assert "setup.ps1" in inside
    passwords = {node.findtext(f"{space}Value") for node in root.iter() if "assword" in node.tag}
    assert len(passwords) == 1


@pytest.mark.parametrize("name", LINES)
def test_a_line_fits_into_a_command_line_of_windows(name: str) -> None:
    assert len(" ".join(LINES[name].argv(**VALUES))) < MAX_CHARACTERS


@pytest.mark.parametrize(
    "text",
    [
        *("Get-Disks", "Get-Disk -Nummer 1", "Get-Disk | ", "Get-Disk || Get-Volume"),
        *("Select-Object Number,,Size", "'a", "(Get-Disk", "if (1) { Get-Disk"),
    ],
)
def test_a_mistake_in_a_line_is_found(text: str) -> None:
    assert faults(text)
    assert not parses(text) or text[0] not in "'(i"


@pytest.mark.parametrize(
    "output",
    [
        b'{"Size": 1}',
        b'\xef\xbb\xbf{"Size": 1}\r\n',
        b'WARNING: something\r\n{"Size": 1}\r\n',
        '{"Size": 1}\r\n'.encode("utf-16"),
        '{"Size": 1}'.encode("utf-16-le"),
        '{"Size": 1, "Name": "Größe"}'.encode("cp1252"),
    ],
)
def test_an_answer_is_found_in_any_encoding(output: bytes) -> None:
    assert powershell.answer(output)["Size"] == 1


@pytest.mark.parametrize("output", [b"", b"no JSON", b'{"Size": ', b"{" * 100_000])
def test_no_answer_is_an_error_even_if_powershell_ended_well(output: bytes) -> None:
    with pytest.raises(OutputUnreadable, match="PowerShell printed no JSON"):
        powershell.answer(output)


def test_the_first_line_of_an_error_is_shown_without_its_markup() -> None:
    error = b'#< CLIXML\r\n<Objs><S S="Error">Set-Disk : Access denied_x000D__x000A_</S></Objs>'
    assert powershell.fault(error) == "Set-Disk : Access denied"
