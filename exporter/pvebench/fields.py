"""Field types of YAML files: settings, packs, options of tools and drivers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StrictStr,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from pvebench.model.units import MIB, parse_duration, parse_size, plain_number
from pvebench.model.week import parse_weekly, parse_window

MAX_NAME: Final = 100
"""Maximum characters of a name: it becomes a part of labels, URLs and file names."""
MAX_TEXT: Final = 300
"""Maximum characters of a title: it becomes a label too."""
_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9._-]{0,250}[a-z0-9_])?")
_PORT = re.compile(r"[0-9]{1,5}")
_SLUG = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?\Z")


MAX_NAMED: Final = 10
"""Maximum number of values that an error message lists."""


def require_once(values: Iterable[object], message: str) -> None:
    """Raise ValueError if a value occurs twice; there may be tens of thousands."""
    twice = sorted(str(value) for value, count in Counter(values).items() if count > 1)
    if twice:
        more = f" and {len(twice) - MAX_NAMED} more" if len(twice) > MAX_NAMED else ""
        raise ValueError(f"{message}: {', '.join(twice[:MAX_NAMED])}{more}")


def require_known(name: object, names: Collection[str], key: str = "") -> str:
    """Return a name; raises ValueError, about `key`, if it is not one of the names."""
    if isinstance(name, str) and name in names:
        return name
    *most, last = map(repr, names)
    where = f"{key}: " if key else ""
    raise ValueError(f"{where}{name!r} is not one of {', '.join(most)} or {last}")


def _slug(value: Any) -> str:
    if not isinstance(value, str) or not _SLUG.match(value):
        raise ValueError(
            f"invalid name {value!r}: use letters, digits, '-' and '_'; "
            f"dots and slashes separate the parts of slugs"
        )
    if len(value) > MAX_NAME:
        raise ValueError(f"name has {len(value)} characters; use at most {MAX_NAME}")
    return value


def _scale(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 100:
        raise ValueError(f"invalid scale {value!r}: use a number above 0 and at most 100")
    return float(value)


def _ratio(value: Any) -> float:
    """Parse `0.2` or `20%`."""
    text = str(value).strip()
    percent = text.endswith("%")
    number = plain_number(text.removesuffix("%"))
    ratio = -1.0 if number is None else number / (100 if percent else 1)
    if isinstance(value, bool) or not 0 < ratio <= 10:
        raise ValueError(f"invalid ratio {value!r}: write 0.2 or 20%")
    return ratio


def listen_address(value: Any) -> str:
    """Return a listen address; raises ValueError for another text, such as a Unix socket.

    As in Prometheus' exporters, `:10620` is every IPv4 address.
    """
    host, port = host_and_port(str(value))
    host = host or "0.0.0.0"  # noqa: S104 # the user's choice
    bare = ":" in host and not re.fullmatch(r"\[[^\[\]]+\]", host)
    if not (
        ":" in str(value) and _PORT.fullmatch(port) and 0 < int(port) < 65536 and _is_host(host)
    ):
        example = "[::1]:10620" if bare else "127.0.0.1:10620"
        raise ValueError(f"invalid listen address {value!r}: write it as {example}")
    return f"{host}:{port}"


def host_and_port(address: str) -> tuple[str, str]:
    """Return the parts of HOST:PORT; an IPv6 address stays in its brackets."""
    host, _, port = address.rpartition(":")
    return host, port


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine: IPv6 with or without its brackets."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _is_host(host: str) -> bool:
    """Return whether a socket may listen there: an address, IPv6 in brackets, or a name."""
    if re.fullmatch(r"[0-9.]+|\[.*\]", host):
        try:
            return (ip_address(host.strip("[]")).version == 6) is host.startswith("[")
        except ValueError:
            return False
    labels = host.split(".")
    return all(0 < len(label) < 64 and _HOST_NAME.fullmatch(label.lower()) for label in labels)


def _host_name(value: Any) -> str:
    name = str(value).lower().rstrip(".")
    if not _HOST_NAME.fullmatch(name):
        raise ValueError(f"invalid host name {str(value)[:60]!r}: write it as bench.example.org")
    return name


def _network(value: Any) -> str:
    try:
        return str(ip_network(str(value)))
    except ValueError:
        raise ValueError(
            f"invalid network {str(value)[:60]!r}: write it as 10.0.0.5 or 10.0.0.0/24"
        ) from None


def _window(value: Any) -> str:
    parse_window(str(value))
    return str(value)


def _zone(value: Any) -> str:
    try:
        ZoneInfo(str(value))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"unknown time zone {value!r}: write it as Europe/Vienna") from None
    return str(value)


def _whole_mib(size: int) -> int:
    if size % MIB:
        raise ValueError(f"{size} bytes is not a whole number of MiB")
    return size


def whole_milliseconds(seconds: float) -> float:
    """Return a duration; raises ValueError for parts of a millisecond, which no tool gets."""
    if abs(seconds * 1000 - round(seconds * 1000)) > 1e-6:
        raise ValueError(f"{seconds:.10g} s is not a whole number of milliseconds")
    return seconds


def _weekly(value: Any) -> str:
    if value not in ("off", False):  # YAML 1.1 reads `off` as false, and some editors write that
        parse_weekly(str(value))
        return str(value)
    return "off"


def _web_address(value: Any) -> str:
    text = str(value)
    parts = urlsplit(text)
    valid = parts.scheme in {"http", "https"} and parts.hostname and text.isprintable()
    if not valid or " " in text or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(
            "invalid web address: write it as https://bench.example.org, without a login"
        )
    return text.rstrip("/")


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError(f"invalid path {value!r}")
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError(f"unknown user in path {str(value)!r}") from error


def resolve_paths(value: Any, base: Path) -> Any:
    """Return `value` with every relative path joined to `base`."""
    if isinstance(value, Path):
        return base / value
    if isinstance(value, BaseModel):
        fields = {key: resolve_paths(getattr(value, key), base) for key in value.model_fields_set}
        return value.model_copy(update=fields)
    if isinstance(value, dict):
        return {key: resolve_paths(entry, base) for key, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(resolve_paths(entry, base) for entry in value)
    return value


class ParsedField:
    """Type of a field that `read` parses; the JSON schema has `examples` of files."""

    def __init__(
        self, read: Callable[[Any], object], *examples: object, types: str | list[str] = "string"
    ) -> None:
        self._read = read
        self._json: dict[str, Any] = {"type": types, "examples": [*examples]}

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the schema of what `read` returns."""
        return core_schema.no_info_before_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(self, *_: object) -> dict[str, Any]:
        """Return type and examples."""
        return dict(self._json)


Slug = Annotated[
    str,
    BeforeValidator(_slug),
    WithJsonSchema({"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$"}),
]
Text = Annotated[StrictStr, Field(max_length=MAX_TEXT)]
Size = Annotated[int, ParsedField(parse_size, "256M", "4k", types=["string", "integer"])]
WholeMib = Annotated[Size, AfterValidator(_whole_mib)]
WriteBudget = Annotated[
    int,
    ParsedField(
        lambda value: 0 if value == "off" else parse_size(value),
        *("20G", "off"),
        types=["string", "integer"],
    ),
]
"""Bytes per 24 hours; `off`, 0: no limit."""
Duration = Annotated[
    float, ParsedField(lambda value: whole_milliseconds(parse_duration(value)), "8s", "30m", "1d")
]
Scale = Annotated[
    float, BeforeValidator(_scale), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]
Ratio = Annotated[float, ParsedField(_ratio, 0.2, "20%", types=["number", "string"])]
Listen = Annotated[str, ParsedField(listen_address, "127.0.0.1:10620")]
HostName = Annotated[str, ParsedField(_host_name, "bench.example.org")]
Network = Annotated[str, ParsedField(_network, "10.0.0.5")]
TimeWindow = Annotated[str, ParsedField(_window, "22:00-06:00", "Mon-Fri 08:00-18:00")]
Zone = Annotated[str, ParsedField(_zone, "Europe/Vienna")]
FilePath = Annotated[Path, BeforeValidator(_path), WithJsonSchema({"type": "string"})]
WeeklyMoment = Annotated[str, ParsedField(_weekly, "Mon 08:00", "off")]
WebAddress = Annotated[str, ParsedField(_web_address, "https://bench.example.org")]


class OneOf:
    """Choice of words, for a list that is needed elsewhere too: `Annotated[str, OneOf(*W)]`."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Return the schema that pydantic creates for a Literal."""
        return core_schema.literal_schema(list(self._words))


class ByKind:
    """Choice of a model by the key `kind`: `Annotated[Base, ByKind(default, models)]`.

    Args:
        default: the kind of a value without that key.
        models: returns kind -> model.
    """

    def __init__(self, default: str, models: Callable[[], Mapping[str, type[BaseModel]]]) -> None:
        self._default = default
        self._models = models

    def model_of(self, value: object) -> type[BaseModel]:
        """Return the model of a value. Raises ValueError: its kind does not exist."""
        kind = value.get("kind", self._default) if isinstance(value, Mapping) else self._default
        models = self._models()
        return models[require_known(kind, models, "kind")]

    def _validate(self, value: object) -> BaseModel:
        if isinstance(value, BaseModel):
            return value
        keys = {"kind": self._default, **value} if isinstance(value, Mapping) else value
        return self.model_of(value).model_validate(keys)

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return a schema that validates by the model, and has all models in the JSON schema."""
        models = dict.fromkeys(self._models().values())
        return core_schema.json_or_python_schema(
            json_schema=core_schema.union_schema([*map(handler.generate_schema, models)]),
            python_schema=core_schema.no_info_plain_validator_function(self._validate),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return a choice of the models; each allows only the names of its kinds."""
        choice = handler(schema)
        for reference in choice["anyOf"]:
            keys = handler.resolve_ref_schema(reference)
            models = self._models().items()
            kinds = [name for name, model in models if model.__name__ == keys["title"]]
            keys["properties"]["kind"] = {"enum": kinds}
            if self._default in kinds:
                keys["properties"]["kind"]["default"] = self._default
                keys["required"].remove("kind")
        return choice


class Strict(BaseModel):
    """Base of all settings models: unknown keys are rejected, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
