"""Messages of the protocol `pvebench-fleet/1`, which both sides and the published schema share.

A push is NDJSON: a `Head`, then one line per entry of the site's log. Readers ignore unknown keys.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from pvebench.model.run import Outcome, Sample
from pvebench.model.workload import Direction
from pvebench_fleet import FleetMessageInvalid

PROTOCOL: Final = "pvebench-fleet/1"
RUNS: Final = "pvebench-runs/1"
"""Format of files of runs."""
MAJOR: Final = 1
MAX_VALUES: Final = 400
"""Maximum numbers of one run; the tools of pvebench report at most 90."""
MAX_DATA: Final = 32_768
"""Maximum characters of a definition, and of the facts of an environment."""
MAX_LINES: Final = 5000
MAX_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a push, uncompressed."""


def _clean(text: str) -> str:
    """Reject what PostgreSQL cannot store; SQLite can."""
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("text contains NUL or a lone surrogate")
    return text


def _clean_data(value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(text) > MAX_DATA:
        raise ValueError(f"more than {MAX_DATA} characters of JSON")
    _clean(text.replace("\\u0000", "\0"))
    return value


Text = Annotated[str, Field(max_length=300), AfterValidator(_clean)]
LongText = Annotated[str, Field(max_length=10_000), AfterValidator(_clean)]
Measured = Annotated[FiniteFloat, Field(ge=-1e18, le=1e18)]
"""Value of a run; what is computed from larger ones would not be finite."""
Seconds = Annotated[FiniteFloat, Field(ge=0, le=1e9)]
Time = Annotated[float, Field(ge=0, le=32_503_680_000)]
"""UNIX seconds until the year 3000."""
Count = Annotated[int, Field(ge=0, lt=2**31)]
Sequence64 = Annotated[int, Field(ge=0, lt=2**62)]
Process = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
Chain = Annotated[str, Field(pattern="^([0-9a-f]{32})?$")]
Position = tuple[Sequence64, Chain]
Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Name = Annotated[str, Field(pattern=r"^[^\x00-\x20/\x7f]{1,300}$"), AfterValidator(_clean)]
"""Part of a case's key."""
AT_MOST: Final = Field(max_length=MAX_VALUES)
Uid = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_clean)]


class Message(BaseModel):
    """Base of all messages: unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


# --- Lines of a push.


class Shape(Message):
    """Names of the numbers of runs: (metric, direction, part, unit) of each place.

    It has no number of its own: each push has the shapes that its runs use, before their use.
    """

    kind: Literal["shape"] = "shape"
    shape: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    numbers: Annotated[list[tuple[Text, Text, Text, Text]], AT_MOST]

    @model_validator(mode="after")
    def _is_its_own(self) -> Self:
        """Reject another digest: all sites of a hub share its shapes."""
        if self.shape != _digest(self.numbers):
            raise ValueError("the digest is not that of the numbers")
        return self


class EnvironmentLine(Message):
    """Environment that runs refer to by its digest."""

    kind: Literal["environment"] = "environment"
    seq: Sequence64
    digest: Uid
    node: Text
    slug: Text
    facts: Annotated[dict[Text, Text], AT_MOST, BeforeValidator(_clean_data)]


class CycleLine(Message):
    """Cycle that runs belong to; a later line has its end. Times are UNIX seconds."""

    kind: Literal["cycle"] = "cycle"
    seq: Sequence64
    uid: Uid
    node: Text
    pack: Text
    tier: Text
    planned: Count
    started: Time
    finished: Time | None = None


class Kept(Message):
    """Part of a definition; keys of a newer version are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Labels(Kept):
    """Labels of a case."""

    node: Name
    storage: Name
    bus: Name
    cache: Name
    format: Name
    scenario: Name


class WorkloadData(Kept):
    """What a case runs; `parameters` are those of its tool."""

    slug: Name
    tool: Text
    title: Text
    directions: Annotated[list[Direction], Field(max_length=len(Direction))]
    ramp_seconds: Seconds
    runtime_seconds: Seconds
    parameters: Annotated[dict[Text, Integer | FiniteFloat | bool | LongText], AT_MOST]
    caveats: Annotated[list[Text], AT_MOST]
    steady: Annotated[dict[Text, FiniteFloat], AT_MOST] = {}


class DefinitionData(Kept):
    """Definition of a case, as `Definition.as_data`; `scenario`: options of disk and VM."""

    labels: Labels
    scenario: Annotated[dict[Text, Text], AT_MOST]
    workload: WorkloadData
    scale: Annotated[float, Field(gt=0, le=100)]
    fingerprint: Name

    def as_data(self) -> dict[str, Any]:
        """Return it as plain data, as it was sent."""
        return self.model_dump(mode="json", exclude_unset=True)


class DefinitionLine(Message):
    """Definition of a case; a later line has newer words."""

    kind: Literal["definition"] = "definition"
    seq: Sequence64
    key: Text
    definition: Annotated[DefinitionData, BeforeValidator(_clean_data)]
    first_started: Time


class DecisionLine(Message):
    """Decision of a user about baselines."""

    kind: Literal["decision"] = "decision"
    seq: Sequence64
    number: Count
    made: Time
    decision: Literal["accept", "reset"]
    cases: Text
    until: Time
    reason: LongText


class RunLine(Message):
    """Finished run. A corrected run is a later line with a higher revision."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    kind: Literal["run"] = "run"
    seq: Sequence64
    uid: Uid
    revision: Count
    number: Sequence64
    case: Text
    cycle: Uid
    environment: Uid
    started: Time
    finished: Time
    outcome: Outcome
    reason: LongText
    pass_number: Count = Field(alias="pass")
    shape: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    values: Annotated[list[Measured], AT_MOST]


class Skip(Message):
    """Line without content: a later line has it, or the site removed it."""

    kind: Literal["skip"] = "skip"
    seq: Sequence64


Line = Shape | EnvironmentLine | CycleLine | DefinitionLine | DecisionLine | RunLine | Skip
LINE: Final[TypeAdapter[Line]] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])


# --- Files of runs: NDJSON, a head, then lines as of a push; `seq` counts them.


class RunsHead(Message):
    """First line of a file of runs.

    Attributes:
        version: of the pvebench that wrote it.
        simulated: whether its results come from the simulation.
        anonymous: whether names are pseudonyms, and reasons are left out.
    """

    kind: Literal["runs"] = "runs"
    format: Literal["pvebench-runs/1"] = RUNS
    version: Text
    simulated: bool
    anonymous: bool


FileLine = RunsHead | Shape | EnvironmentLine | CycleLine | DefinitionLine | RunLine
FILE_LINE: Final[TypeAdapter[FileLine]] = TypeAdapter(
    Annotated[FileLine, Field(discriminator="kind")]
)


# --- Requests and answers.


class Hello(Message):
    """Request for the turn to push; `seen` is the newest turn known to the process.

    `site` is the name in its settings: the hub refuses the token of another site.
    """

    process: Process
    site: Text = ""
    seen: Sequence64
    version: Text
    schemas: Annotated[list[Count], Field(max_length=10)]
    now: Time


class Head(Message):
    """First line of a push: from which place the lines lead to which."""

    turn: Sequence64
    process: Process
    after: Sequence64
    chain: Chain
    to: Position
    count: Annotated[int, Field(ge=0, le=2 * MAX_LINES)]
    now: Time


class Rewind(Message):
    """Request to move the cursor from `seen` back to `to`, which both sides have."""

    turn: Sequence64
    process: Process
    seen: Position
    to: Position


class Limits(Message):
    """Limits of a push, and the minimum time between two."""

    lines: Annotated[int, Field(ge=1, le=MAX_LINES)] = 1000
    bytes: Annotated[int, Field(ge=2 * 1024 * 1024, le=MAX_BYTES)] = 4 * 1024 * 1024
    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 1.0


class Answer(Message):
    """Answer of the hub: its cursor, and its turn where the request's one was wrong.

    Attributes:
        refused: numbers of lines that the hub cannot store.
        mail: reserved; sites ignore words that they do not know.
    """

    turn: Sequence64 = 0
    acked: Sequence64 = 0
    chain: Chain = ""
    now: Time = 0.0
    refused: Annotated[list[Sequence64], Field(max_length=2 * MAX_LINES)] = []
    limits: Limits = Limits()
    mail: Annotated[list[dict[str, Any]], Field(max_length=100)] = []
    error: LongText = ""


class Marks(Message):
    """Places of the hub's cursor, newest first; `more`: there are older ones."""

    marks: Annotated[list[Position], Field(max_length=1000)]
    more: bool = False


SCHEMAS: Final[dict[str, type[Message]]] = {
    "hello": Hello,
    "head": Head,
    "rewind": Rewind,
    "answer": Answer,
    "marks": Marks,
}


def runs_schema_text() -> str:
    """Return the JSON schema of each line of a file of runs as text."""
    schema = FILE_LINE.json_schema()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": RUNS}
    return json.dumps({**head, **schema}, indent=2, sort_keys=True) + "\n"


def schema_text() -> str:
    """Return the JSON schema of all messages as text."""
    definitions: dict[str, Any] = {"line": LINE.json_schema(ref_template="#/$defs/{model}")}
    definitions |= definitions["line"].pop("$defs")
    for name, model in SCHEMAS.items():
        schema = model.model_json_schema(ref_template="#/$defs/{model}")
        definitions |= schema.pop("$defs", {})
        definitions[name] = schema
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": PROTOCOL}
    return json.dumps({**head, "$defs": definitions}, indent=2, sort_keys=True) + "\n"


# --- Reading and writing.

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def read_message(kind: type[M], content: bytes) -> M:
    """Return a message; raises FleetMessageInvalid."""
    return _read(kind.model_validate_json, content)


def read_line(content: bytes) -> Line:
    """Return a line of a push; raises FleetMessageInvalid."""
    return _read(LINE.validate_json, content)


def read_file_line(content: bytes) -> FileLine:
    """Return a line of a file of runs; raises FleetMessageInvalid."""
    return _read(FILE_LINE.validate_json, content)


def _read(validate: Callable[[bytes], T], content: bytes) -> T:
    try:
        return validate(content)
    except ValidationError as error:
        raise _invalid(error, content) from error


def _invalid(error: ValidationError, content: bytes) -> FleetMessageInvalid:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    text = f"{place}: {first['msg']}" if place else first["msg"]
    return FleetMessageInvalid(text[:300], column=_column(first["loc"], first["msg"], content))


def _column(place: Sequence[int | str], message: str, content: bytes) -> int:
    """Return where the innermost key of an invalid value is, from 1."""
    if syntax := re.search(r"column (\d+)", message):
        return max(1, int(syntax[1]))
    keys = (json.dumps(key).encode() for key in reversed(place) if isinstance(key, str))
    found = (at for key in keys if (at := content.find(key)) >= 0)
    return len(content[: next(found, 0)].decode("utf-8", "replace")) + 1


def unpack(content: bytes, most: int = MAX_BYTES) -> bytes:
    """Return gzipped content of at most `most` bytes; raises FleetMessageInvalid."""
    unzip = zlib.decompressobj(wbits=31)
    try:
        unpacked = unzip.decompress(content, most + 1)
    except zlib.error as error:
        raise FleetMessageInvalid(f"not gzip: {error}") from error
    if len(unpacked) > most:
        raise FleetMessageInvalid(f"more than {most} bytes uncompressed", too_large=True)
    if not unzip.eof or unzip.unused_data:
        raise FleetMessageInvalid("gzip stream incomplete or followed by other data")
    return unpacked


def pack(head: Head, lines: Iterable[bytes]) -> bytes:
    """Return a push as gzipped NDJSON."""
    text = b"\n".join((head.model_dump_json().encode(), *lines, b""))
    return gzip.compress(text, compresslevel=5, mtime=0)


def shape_of(samples: Sequence[Sample]) -> Shape:
    """Return the shape of a run with these samples; raises FleetMessageInvalid."""
    numbers = [(*sample.key, str(sample.unit)) for sample in samples]
    try:
        return Shape(shape=_digest(numbers), numbers=numbers)
    except ValidationError as error:
        raise _invalid(error, b"") from error


def _digest(numbers: Sequence[tuple[str, str, str, str]]) -> str:
    return hashlib.sha256(json.dumps(numbers).encode()).hexdigest()[:16]
