"""Settings of an instance, and the JSON schemas of settings and packs."""

from __future__ import annotations

import json
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit
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

from pvebench.config.document import message_of, read_document, validate
from pvebench.config.pack import find_pack, pack_model
from pvebench.drivers import DRIVERS, driver_of
from pvebench.drivers.driver import DriverSettings
from pvebench.errors import ConfigError, Problem
from pvebench.fields import (
    Duration,
    FilePath,
    HostName,
    Listen,
    Network,
    Size,
    Slug,
    Strict,
    Text,
    TimeWindow,
    WebAddress,
    WeeklyMoment,
    Zone,
    is_loopback,
    require_known,
    require_once,
    resolve_paths,
)
from pvebench.files import check_secret
from pvebench.model.units import DAY, GIB
from pvebench.model.week import QuietHours, parse_window

# --- Notifications: `notify` in the settings.


class NotifyTarget(Strict):
    """One receiver of notifications, with an apprise URL, which usually contains a secret.

    Attributes:
        name: name for logs, metrics and the queue, which never show the URL.
        url: the URL; the settings file must then not be readable by others.
        url_file: file with only the URL, not readable by others.
        url_env: environment variable with the URL.
    """

    name: Slug
    url: SecretStr | None = None
    url_file: FilePath | None = None
    url_env: Text | None = None

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        addresses = [self.url, self.url_file, self.url_env]
        if sum(address is not None for address in addresses) != 1:
            raise ValueError("expected exactly one of url, url_file and url_env")
        if self.url_env is not None and not self.url_env.isidentifier():
            raise ValueError("url_env: not a valid name of an environment variable")
        return self


class NotifySettings(Strict):
    """Receivers of notifications, and the time of the weekly summary.

    Attributes:
        to: receivers; each gets every notification.
        weekly: day and time of the weekly summary in `time_zone`; `off`: no summary.
    """

    to: Annotated[tuple[NotifyTarget, ...], Field(min_length=1, max_length=10)]
    weekly: WeeklyMoment = "Mon 08:00"

    @model_validator(mode="after")
    def _no_name_twice(self) -> Self:
        require_once((receiver.name for receiver in self.to), "duplicate name")
        return self


# --- The hub of a fleet: `fleet` in the settings.


class FleetSettings(Strict):
    """The hub that gets all results of this site.

    Attributes:
        url: URL of the hub. Plain `http` only on loopback, because requests have the token.
        token_file: file with only the token of this site, not readable by others.
        ca_file: certificates of the authority that signed the hub's one; default: the system's.
    """

    url: WebAddress
    token_file: FilePath
    ca_file: FilePath | None = None

    @field_validator("url")
    @classmethod
    def _encrypted(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise ValueError("plain http would show the token to the network: use https")
        return url


# --- Settings of this instance; packs list the cases.


def _models() -> tuple[type[DriverSettings], ...]:
    """Return the drivers' models, except base classes of others."""
    models = dict.fromkeys(driver_of(name).settings for name in DRIVERS)
    return tuple(
        model
        for model in models
        if not any(
            other_model is not model and issubclass(other_model, model) for other_model in models
        )
    )


if TYPE_CHECKING:
    # Only a driver reads its own keys, and it knows their model.
    class _KeysOfDrivers(DriverSettings):
        pass

else:
    _KeysOfDrivers = create_model("_KeysOfDrivers", __base__=_models())


DriverName = Annotated[
    StrictStr,
    AfterValidator(partial(require_known, names=DRIVERS)),
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
"""Settings that a running instance applies when their file changes."""


MAX_PACKS: Final = 100
DATABASE: Final = "pvebench.db"
"""Name of the results database in the state directory."""


class WallSettings(Strict):
    """One of the four cases on the wall dashboard.

    Attributes:
        scenario: slug of the scenario.
        workload: slug of the workload.
        direction: direction to show.
        title: title to show; default: scenario and workload.
    """

    scenario: Text
    workload: Text
    direction: Literal["read", "write", "trim"]
    title: Text = ""


class Settings(_KeysOfDrivers):
    """Settings of an instance. Each driver adds its own keys.

    Attributes:
        driver: driver that runs the workloads: `qemu` on this machine, `proxmox` on a Proxmox VE
            cluster, `host` on the host itself without a VM, `simulated` for invented results.
        packs: packs to run, as names or files.
        listen: listen address of the web UI and `/metrics`.
        host_names: host names to accept, in addition to addresses, `localhost` and the machine's
            own name.
        scrape_addresses: addresses and networks with reserved connections, in addition to loopback.
        web_config_file: file with TLS, users and headers, in the format of Prometheus'
            exporter-toolkit.
        known_issues: files with known issues, in addition to the shipped ones.
        max_age: maximum age of results in `/metrics`, in seconds.
        keep_evidence, keep_runs: maximum age of raw output, and of runs with their results, in
            seconds. The newest of each case is always kept.
        keep_backups, backup_max_size: number of daily database backups to keep, and their maximum
            total size in bytes; 0 backups: none is created.
        quiet_hours: time windows without runs, such as `Mon-Fri 08:00-18:00`.
        time_zone: time zone of the quiet hours, such as `Europe/Vienna`.
        wall: up to four cases for the wall dashboard; default: selected from the results.
        notify: receivers of notifications.
        external_url: URL of the web UI, for links in notifications.
        site: name of this site in a fleet, and label `site` of its metrics.
        fleet: hub that gets all results of this site.
    """

    driver: DriverName = "qemu"
    packs: tuple[FilePath, ...] = Field(default=(), max_length=MAX_PACKS)
    listen: Listen = "127.0.0.1:10620"
    host_names: tuple[HostName, ...] = ()
    scrape_addresses: tuple[Network, ...] = Field(default=(), max_length=100)
    web_config_file: FilePath | None = None
    known_issues: tuple[FilePath, ...] = ()
    max_age: Duration = 14 * DAY
    keep_evidence: Duration = 90 * DAY
    keep_runs: Duration = 3 * 365 * DAY
    keep_backups: Annotated[StrictInt, Field(ge=0, le=1000)] = 7
    backup_max_size: Size = 8 * GIB
    wall: tuple[WallSettings, ...] = Field(default=(), max_length=4)
    quiet_hours: tuple[TimeWindow, ...] = ()
    time_zone: Zone = "UTC"
    notify: NotifySettings | None = None
    external_url: WebAddress | None = None
    site: Slug | None = None
    fleet: FleetSettings | None = None

    @model_validator(mode="after")
    def _fleet_has_site(self) -> Self:
        if self.fleet is not None and self.site is None:
            raise ValueError("fleet: requires site, the name of this site; add it")
        return self

    @field_validator("packs")
    @classmethod
    def _no_pack_twice(cls, packs: tuple[Path, ...]) -> tuple[Path, ...]:
        require_once(packs, "duplicate pack")
        return packs

    def with_changes(self, changes: dict[str, Any]) -> Settings:
        """Return these settings, overridden by options of the command line.

        Raises:
            ConfigError: the value of an option is invalid.
        """
        try:
            options = Settings.model_validate(changes)
        except ValidationError as error:
            problems = [
                Problem("command line", 0, 0, f"{_OPTIONS.get(key, f'--{key}')}: {text}")
                for key, text in ((str(e["loc"][0]), message_of(e)) for e in error.errors())
            ]
            raise ConfigError(problems) from error
        return self.model_copy(update={key: getattr(options, key) for key in changes})

    def fixed_differences(self, other: Settings) -> list[str]:
        """Return the changed keys that require a restart."""
        own, others = dict(self), dict(other)
        return [key for key in own if key not in _RELOADABLE and own[key] != others[key]]

    def quiet(self) -> QuietHours | None:
        """Return the quiet hours; None: none are set."""
        if not self.quiet_hours:
            return None
        windows = tuple(parse_window(text) for text in self.quiet_hours)
        return QuietHours(windows, ZoneInfo(self.time_zone))

    @property
    def database(self) -> Path:
        """Path of the results database."""
        return self.state / DATABASE

    def measured_nodes(self) -> tuple[str, ...]:
        """Return the measured nodes; each has its own worker."""
        return driver_of(self.driver).nodes(self)


_OPTIONS: Final = {
    "packs": "--pack",
    "host_names": "--host-name",
    "listen": "--web.listen-address",
    "web_config_file": "--web.config.file",
}
"""Key of the settings -> the option of the command line that overrides it, if its name differs."""


def load_settings(path: Path | None) -> Settings:
    """Return the settings of `path`, or the defaults for None.

    Relative paths in the file are relative to its own directory, so that their meaning does not
    depend on the working directory. Pack names are searched there first.

    Raises:
        ConfigError: with all problems of the file.
    """
    if path is None:
        return Settings()
    parsed = validate(read_document(path), Settings)
    if parsed.notify is not None and any(entry.url is not None for entry in parsed.notify.to):
        check_secret(path)
    settings: Settings = resolve_paths(parsed, path.parent)
    packs = tuple(_resolve_pack(pack, path) for pack in parsed.packs)
    return settings.model_copy(update={"packs": packs} if packs else {})


def _resolve_pack(pack: Path, settings: Path) -> Path:
    """Return a pack's file, which may be missing: only commands that read it report that."""
    base = settings.parent
    file = find_pack(pack, [base], settings)
    if file is None:
        return base / f"{pack}.yaml"
    return base / pack if file == pack else file


# --- JSON schemas, for editors.

MODELS: Final = ("pack", "settings")
_KEYS: Final = "\nAttributes:\n"


def schema_text(name: str) -> str:
    """Return the JSON schema `pack` or `settings` as text."""
    model: type[BaseModel] = pack_model() if name == "pack" else Settings
    schema: dict[str, Any] = model.model_json_schema()
    schema["description"] = _description(model)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def _description(model: type[BaseModel]) -> str:
    """Return the model's description, including the keys of its base classes."""
    texts = [cleandoc(base.__doc__ or "") for base in model.__mro__ if issubclass(base, Strict)]
    keys = [text.partition(_KEYS)[2] for text in texts if _KEYS in text]
    return texts[0].partition(_KEYS)[0] + _KEYS + "\n".join(keys) if keys else texts[0]
