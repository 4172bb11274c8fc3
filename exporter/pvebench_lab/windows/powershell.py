"""PowerShell lines for a Windows guest, as data: each prints its answer as JSON.

A line is passed as `-EncodedCommand`, so no quoting rules apply to it. Values are inserted only by
`Line.argv`, and only those whose text cannot end a string or a word.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from pvebench.errors import OutputUnreadable, SwitchFailed

PROGRAM: Final = r"C:\Windows\System32\WindowsPowerShell\v1.0\powershell.exe"
_OPTIONS: Final = (
    *("-NoLogo", "-NoProfile", "-NonInteractive"),
    *("-ExecutionPolicy", "Bypass", "-OutputFormat", "Text", "-EncodedCommand"),
)
_BEFORE: Final = (
    "$ErrorActionPreference = 'Stop'; $ProgressPreference = 'SilentlyContinue'; "
    "[Console]::OutputEncoding = [Text.Encoding]::UTF8; "
)
_VALUE: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,100}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Line:
    """Line of PowerShell; `%(name)s` stands for a value."""

    text: str

    def argv(self, **values: str | int) -> list[str]:
        """Return the command that runs it.

        Raises SwitchFailed: a value has other characters than letters, digits and `_.:/-`.
        """
        for name, value in values.items():
            if not _VALUE.fullmatch(str(value)):
                raise SwitchFailed(f"{name} {value!r:.50} cannot be part of a PowerShell line")
        line = _BEFORE + self.text % values
        coded = base64.b64encode(line.encode("utf-16-le")).decode("ascii")
        return [PROGRAM, *_OPTIONS, coded]


_DISK: Final = "Number, SerialNumber, Size, IsOffline, IsReadOnly, PartitionStyle"
DISKS: Final = Line(
    "Update-HostStorageCache; "
    f"ConvertTo-Json -Compress -InputObject @(Get-Disk | Select-Object {_DISK})"
)
CACHE: Final = Line(
    "$disk = Get-PhysicalDisk | Where-Object DeviceId -eq %(number)d; "
    "$cache = $disk | Get-StorageAdvancedProperty; "
    "ConvertTo-Json -Compress -InputObject @{MediaType = [string]$disk.MediaType; "
    "WriteCache = $cache.IsDeviceCacheEnabled}"
)
_STATE: Final = (
    f"; ConvertTo-Json -Compress -InputObject (Get-Disk -Number %(number)d | Select-Object {_DISK})"
)
OFFLINE: Final = Line(
    "Set-Disk -Number %(number)d -IsReadOnly $false; "
    "Set-Disk -Number %(number)d -IsOffline $true" + _STATE
)
"""Raw writes: Windows denies them while a volume on the disk is mounted."""
ONLINE: Final = Line(
    "Set-Disk -Number %(number)d -IsOffline $false; "
    "Set-Disk -Number %(number)d -IsReadOnly $false" + _STATE
)
FORMAT: Final = Line(
    "if ((Get-Disk -Number %(number)d).PartitionStyle -ne 'RAW') "
    "{ Clear-Disk -Number %(number)d -RemoveData -RemoveOEM -Confirm:$false }; "
    "Initialize-Disk -Number %(number)d -PartitionStyle GPT; "
    "$part = New-Partition -DiskNumber %(number)d -UseMaximumSize; "
    "$volume = $part | Format-Volume -FileSystem %(filesystem)s -Confirm:$false; "
    "ConvertTo-Json -Compress -InputObject @{FileSystem = $volume.FileSystem}"
)
LETTER: Final = Line(
    "$part = Get-Partition -DiskNumber %(number)d | Where-Object Type -eq 'Basic'; "
    "if ($part.DriveLetter -ne '%(letter)s') { $part | Set-Partition -NewDriveLetter %(letter)s }; "
    "$volume = Get-Volume -DriveLetter %(letter)s; "
    "ConvertTo-Json -Compress -InputObject @{FileSystem = $volume.FileSystem}"
)
DIRECTORY: Final = Line(
    "$made = New-Item -ItemType Directory -Force -Path '%(path)s'; "
    "ConvertTo-Json -Compress -InputObject @{Exists = $made.Exists}"
)
FIO: Final = "C:/Program Files/fio/fio.exe"
"""Place of fio's own installer."""
FIO_VERSION: Final = "^fio-([3-9]|[1-9][0-9])"
"""What its first versions print has another form."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """What an image needs.

    Attributes:
        what: name in messages.
        condition: expression that is true if it is there.
        remedy: line that adds it; `$virtio` is the drive of the virtio-win disc, `$here` that of
            the user's files. A comment is a step outside Windows.
    """

    what: str
    condition: str
    remedy: str

    @property
    def missing(self) -> str:
        """Its name with the step that adds it."""
        _, outside, step = self.remedy.rpartition("# ")
        return f"{self.what}: {step if outside else f'run `{self.remedy}`'}"


_DRIVERS: Final = 'Start-Process -Wait msiexec "/i $virtio\\virtio-win-gt-x64.msi /qn"'
_POWER: Final = r"HKLM:\SYSTEM\CurrentControlSet\Control\Session Manager\Power"
REQUIREMENTS: Final = {
    **{
        name: Requirement(
            f"driver {name}", rf"Test-Path C:\Windows\System32\drivers\{name}.sys", _DRIVERS
        )
        for name in ("viostor", "vioscsi")
    },
    "agent": Requirement(
        "running guest agent",
        "(Get-Service QEMU-GA -ErrorAction SilentlyContinue).Status -eq 'Running'",
        'Start-Process -Wait msiexec "/i $virtio\\guest-agent\\qemu-ga-x86_64.msi /qn"',
    ),
    "fio": Requirement(
        f"fio 3 or later at {FIO}",
        f"(Test-Path '{FIO}') -and [string](& '{FIO}' --version) -match '{FIO_VERSION}'",
        'Start-Process -Wait msiexec "/i $here\\fio-x64.msi /qn"',
    ),
    "policy": Requirement(
        "policy that keeps new disks offline",
        "[string](Get-StorageSetting).NewDiskPolicy -in 'OfflineAll', 'OfflineShared'",
        "Set-StorageSetting -NewDiskPolicy OfflineAll",
    ),
    "shutdown": Requirement(
        "shutdown without fast startup",
        f"(Get-ItemProperty '{_POWER}').HiberbootEnabled -ne 1",
        "powercfg /h off",
    ),
    "memory": Requirement(
        "512 MiB of free memory, below which Windows pages",
        "(Get-CimInstance Win32_OperatingSystem).FreePhysicalMemory -ge 512KB",
        "# set a larger guest.memory in the pack",
    ),
}
_SETTINGS: Final = (
    "Set-Service wuauserv -StartupType Disabled",
    "Set-Service defragsvc -StartupType Disabled",
    "Add-MpPreference -ExclusionPath C:\\pvebench -ErrorAction SilentlyContinue",
    "powercfg /setactive 8c5e7fda-e8bf-4a96-9a85-a6e23a8c635c",
)
_HEAD: Final = (
    "# Generated by scripts/generate. Run as administrator; fio-x64.msi is beside this script.",
    "$virtio = (Get-Volume | Where-Object FileSystemLabel -like 'virtio-win*').DriveLetter + ':'",
    "$here = $PSScriptRoot",
)


def setup_script() -> str:
    """Return the script that prepares an image."""
    remedies = dict.fromkeys(need.remedy for need in REQUIREMENTS.values())
    lines = [line for line in remedies if not line.startswith("#")]
    return "\n".join([*_HEAD, *lines, *_SETTINGS, ""])


def check_script() -> str:
    """Return the script that prints what an image lacks, each with the line that adds it."""
    lines = [
        f"if (-not ({need.condition})) {{ 'missing: {need.missing}' }}"
        for need in REQUIREMENTS.values()
    ]
    head = "# Generated by scripts/generate. $virtio: drive of the virtio-win disc; $here: of fio."
    return "\n".join([head, *lines, "'check complete'", ""])


_GOOD: Final = "; ".join(
    f"{name} = $(try {{ {need.condition} }} catch {{ $false }})"
    for name, need in REQUIREMENTS.items()
)
"""An error in one condition must not hide what else is missing."""
SYSTEM: Final = Line(
    r"$key = Get-ItemProperty 'HKLM:\SOFTWARE\Microsoft\Windows NT\CurrentVersion'; "
    r"$drivers = Get-ChildItem C:\Windows\System32\drivers -Filter vio*.sys; "
    "ConvertTo-Json -Compress -Depth 3 -InputObject @{Product = $key.ProductName; "
    f"Build = $key.CurrentBuild; Revision = $key.UBR; Good = @{{{_GOOD}}}; "
    "Drivers = @($drivers | ForEach-Object { @{Name = $_.Name; "
    "Version = $_.VersionInfo.FileVersion} })}"
)
JOIN: Final = Line(
    f"$made = New-Item -ItemType Directory -Force -Path '{FIO.rpartition('/')[0]}'; "
    f"$file = [IO.File]::Create('{FIO}'); "
    "0..%(last)d | ForEach-Object { $part = [IO.File]::ReadAllBytes('%(path)s' + $_); "
    "$file.Write($part, 0, $part.Length) }; $file.Close(); Remove-Item '%(path)s*'; "
    f"ConvertTo-Json -Compress -InputObject @{{Hash = (Get-FileHash '{FIO}').Hash}}"
)
"""Parts, as Proxmox VE writes no file that is longer than one of them."""
_TIMES: Final = "Name, PercentUserTime, PercentPrivilegedTime, Timestamp_Sys100NS"
CPU: Final = Line(
    "ConvertTo-Json -Compress -InputObject @(Get-CimInstance Win32_PerfRawData_PerfOS_Processor "
    f"| Select-Object {_TIMES})"
)
"""Raw counters of each CPU, in units of 100 ns; the instance `_Total` has their mean."""
STUCK: Final = Line(
    "$tool = Get-Process -Id %(pid)d -ErrorAction SilentlyContinue; "
    "$events = Get-WinEvent -MaxEvents 40 -ErrorAction SilentlyContinue "
    "-FilterHashtable @{LogName = 'System'; Level = 1, 2, 3}; "
    "ConvertTo-Json -Compress -Depth 3 -InputObject @{Threads = $tool.Threads.Count; "
    "Processor = $tool.CPU; Events = @($events | ForEach-Object { "
    "'{0:u} {1} {2}' -f $_.TimeCreated, $_.ProviderName, $_.Id })}"
)
"""Event 129 of vioscsi, viostor or disk is a reset after a lost request."""


def text_of(output: bytes) -> str:
    """Return the text of a program's output, in UTF-16, UTF-8 or a code page."""
    if output.startswith((b"\xff\xfe", b"\xfe\xff")):
        return output.decode("utf-16", "replace")
    if output[1:2] == b"\0":
        return output.decode("utf-16-le", "replace")
    try:
        return output.decode("utf-8-sig")
    except UnicodeDecodeError:
        return output.decode("cp1252", "replace")  # only letters beyond ASCII can be wrong


def answer(output: bytes) -> Any:
    """Return the JSON in the output of a line, after any other text.

    Raises:
        OutputUnreadable: there is none.
    """
    text = text_of(output)
    starts = [place for place in (text.find("{"), text.find("[")) if place >= 0]
    try:
        return json.JSONDecoder().raw_decode(text, min(starts, default=0))[0]
    except (ValueError, RecursionError) as error:
        raise OutputUnreadable(
            "PowerShell printed no JSON",
            cause="a policy or another program replaces it",
            evidence=text[:200],
        ) from error


def fault(error: bytes) -> str:
    """Return the first line of an error of PowerShell."""
    text = re.sub(r"<[^>]*>|#< CLIXML|_x000D_|_x000A_", " ", text_of(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"
