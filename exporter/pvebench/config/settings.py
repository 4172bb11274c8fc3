"""JSON schemas of packs and settings, for editors."""

from __future__ import annotations

import json
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    SecretStr,
    StrictInt,
    StrictStr,
    ValidationError,
    WithJsonSchema,
    create_model,
    field_validator,
    model_validator,
)

from pvebench.config.document import read_document, validate
from pvebench.config.pack import is_pack_name, pack_named
from pvebench.config.pack_keys import PackFile
from pvebench.drivers import DRIVERS, driver_of
from pvebench.drivers.driver import DriverSettings
from pvebench.errors import ConfigError, Problem
from pvebench.fields import (
    Duration,
    FilePath,
    HostName,
    Listen,
    Size,
    Slug,
    Strict,
    Text,
    TimeWindow,
    WebAddress,
    WeeklyMoment,
    Zone,
    require_once,
)
from pvebench.files import check_secret
from pvebench.model.units import GIB
from pvebench.model.week import QuietHours, parse_window

# --- Who is told of changes: `notify` in the settings.


class NotifyTarget(Strict):
    """One way to people, by an address in the form of apprise. It holds a secret as a rule.

    Attributes:
        name: for logs, metrics and the list of what is queued, where the address never stands.
        url: the address itself; the settings must then be nobody else's to read.
        url_file: a file with the address and nothing else, nobody else's to read.
        url_env: the environment variable that holds it.
    """

    name: Slug
    url: SecretStr | None = None
    url_file: FilePath | None = None
    url_env: Text | None = None

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        given = [self.url, self.url_file, self.url_env]
        if sum(one is not None for one in given) != 1:
            raise ValueError("needs one of url, url_file and url_env")
        if self.url_env is not None and not self.url_env.isidentifier():
            raise ValueError("url_env: it is no name of an environment variable")
        return self


class NotifySettings(Strict):
    """Who is told of changes, and when the week is summed up.

    Attributes:
        to: each gets every message.
        weekly: day and hour of the summary, in `time_zone`; `off`: there is none.
    """

    to: Annotated[tuple[NotifyTarget, ...], Field(min_length=1, max_length=10)]
    weekly: WeeklyMoment = "Mon 08:00"

    @model_validator(mode="after")
    def _no_name_twice(self) -> Self:
        require_once((one.name for one in self.to), "a name stands twice")
        return self


# --- Settings: how this instance runs. What it measures is in packs.


def _models() -> tuple[type[DriverSettings], ...]:
    """Return the drivers' models, without those that another one extends."""
    models = dict.fromkeys(driver_of(name).settings for name in DRIVERS)
    return tuple(
        model
        for model in models
        if not any(other is not model and issubclass(other, model) for other in models)
    )


if TYPE_CHECKING:
    # Nobody but a driver reads its own keys, and it knows their model.
    class _KeysOfDrivers(DriverSettings):
        pass

else:
    _KeysOfDrivers = create_model("_KeysOfDrivers", __base__=_models())


def _known_driver(name: str) -> str:
    if name not in DRIVERS:
        *most, last = (repr(known) for known in DRIVERS)
        raise ValueError(f"{name!r} is not one of {', '.join(most)} or {last}")
    return name


DriverName = Annotated[
    StrictStr,
    AfterValidator(_known_driver),
    WithJsonSchema({"type": "string", "enum": list(DRIVERS)}),
]

_RELOADABLE: Final = (
    "packs",
    "max_age",
    "keep_evidence",
    "keep_runs",
    "keep_backups",
    "backup_max_size",
    "wall",
    "notify",
    "external_url",
)
"""Settings that a running instance takes over when their file changes."""


MOST_PACKS: Final = 100


class WallSettings(Strict):
    """One of the four places of the wall dashboard; see `model.wall.WallSlot`."""

    scenario: Text
    workload: Text
    direction: Literal["read", "write", "trim"]
    title: Text = ""


class Settings(_KeysOfDrivers):
    """How this instance runs. The drivers' models add the keys that concern them.

    Attributes:
        driver: what runs the workloads: real QEMU here, a Proxmox VE cluster, `host`: no guest,
            only the host's own rows; or a simulation.
        packs: pack files to run; in the file also names of packs.
        listen: address of /metrics and the status page.
        host_names: names that clients may call it by, beside addresses, `localhost` and the
            machine's own.
        web_config_file: TLS, users and headers, in the form of Prometheus' exporter-toolkit.
        known_issues: files of known issues beside those that pvebench knows.
        max_age: results older than this (seconds) leave /metrics.
        keep_evidence, keep_runs: raw evidence, and runs with their numbers, older than this
            (seconds) are removed; each case keeps its newest.
        keep_backups, backup_max_size: how many daily copies of the database stay, and what they may
            take together (bytes); 0 copies: none is made.
        quiet_hours: windows in which nothing is measured, such as `Mon-Fri 08:00-18:00`.
        time_zone: zone of the quiet hours, such as `Europe/Vienna`.
        wall: up to four cases for the wall dashboard. Empty: chosen from the results.
        notify: who is told of changes.
        external_url: address under which people reach the page, for links in messages.
    """

    driver: DriverName = "qemu"
    packs: tuple[FilePath, ...] = Field(default=(), max_length=MOST_PACKS)
    listen: Listen = "127.0.0.1:9620"
    host_names: tuple[HostName, ...] = ()
    web_config_file: FilePath | None = None
    known_issues: tuple[FilePath, ...] = ()
    max_age: Duration = 14 * 86400.0
    keep_evidence: Duration = 90 * 86400.0
    keep_runs: Duration = 3 * 365 * 86400.0
    keep_backups: Annotated[StrictInt, Field(ge=0, le=1000)] = 7
    backup_max_size: Size = 8 * GIB
    wall: tuple[WallSettings, ...] = Field(default=(), max_length=4)
    quiet_hours: tuple[TimeWindow, ...] = ()
    time_zone: Zone = "UTC"
    notify: NotifySettings | None = None
    external_url: WebAddress | None = None

    @field_validator("packs")
    @classmethod
    def _no_pack_twice(cls, packs: tuple[Path, ...]) -> tuple[Path, ...]:
        require_once(packs, "listed twice")
        return packs

    def with_changes(self, changes: dict[str, Any]) -> Settings:
        """Return these settings with options of the command line put over them.

        Raises:
            ConfigError: an option's value is not valid.
        """
        try:
            given = Settings.model_validate(changes)
        except ValidationError as error:
            problems = [
                Problem("command line", 0, 0, f"--{fault['loc'][0]}: {fault['ctx']['error']}")
                for fault in error.errors()
            ]
            raise ConfigError(problems) from error
        return self.model_copy(update={key: getattr(given, key) for key in changes})

    def fixed_differences(self, other: Settings) -> list[str]:
        """Return the keys that differ and cannot be changed while running."""
        mine, others = dict(self), dict(other)
        return [key for key in mine if key not in _RELOADABLE and mine[key] != others[key]]

    def quiet(self) -> QuietHours | None:
        """Return the quiet hours; None: there are none."""
        if not self.quiet_hours:
            return None
        windows = tuple(parse_window(text) for text in self.quiet_hours)
        return QuietHours(windows, ZoneInfo(self.time_zone))

    def nodes_in_force(self) -> tuple[str, ...]:
        """Return the nodes that are measured, each by a worker of its own."""
        return driver_of(self.driver).nodes(self)


def load_settings(path: Path | None) -> Settings:
    """Return the settings of `path`, or the defaults when it is None.

    Relative paths in the file are taken from the file's own directory, so that it means the
    same wherever pvebench is started; names of packs are looked for there first.

    Raises:
        ConfigError: with every fault of the file.
    """
    if path is None:
        return Settings()
    read = validate(read_document(path), Settings)
    if read.notify is not None and any(one.url is not None for one in read.notify.to):
        check_secret(path)
    found: Settings = _below(read, path.parent)
    packs = tuple(_pack_below(pack, path.parent) for pack in read.packs)
    return found.model_copy(update={"packs": packs} if packs else {})


def _pack_below(given: Path, base: Path) -> Path:
    """Return a pack's file. One that is not there is missed when it is read: not all need it."""
    if not is_pack_name(given):
        return base / given
    return pack_named(str(given), [base]) or base / f"{given}.yaml"


def _below(value: Any, base: Path) -> Any:
    """Return `value` with every relative path in it taken from `base`."""
    if isinstance(value, Path):
        return base / value
    if isinstance(value, BaseModel):
        given = {key: _below(getattr(value, key), base) for key in value.model_fields_set}
        return value.model_copy(update=given)
    if isinstance(value, dict):
        return {key: _below(entry, base) for key, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(_below(entry, base) for entry in value)
    return value


MODELS: Final[dict[str, type[BaseModel]]] = {"pack": PackFile, "settings": Settings}
_KEYS: Final = "\nAttributes:\n"


def schema_text(name: str) -> str:
    """Return the JSON schema `pack` or `settings` as the text of its file."""
    schema: dict[str, Any] = MODELS[name].model_json_schema()
    schema["description"] = _description(MODELS[name])
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def _description(model: type[BaseModel]) -> str:
    """Return what the model says of itself, with the keys that it has of others."""
    texts = [cleandoc(base.__doc__ or "") for base in model.__mro__ if issubclass(base, Strict)]
    keys = [text.partition(_KEYS)[2] for text in texts if _KEYS in text]
    return texts[0].partition(_KEYS)[0] + _KEYS + "\n".join(keys) if keys else texts[0]
