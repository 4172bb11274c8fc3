"""Known issues from YAML; problems have file:line:column, as those of settings and packs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pvebench.config.document import Document, read_document, validate
from pvebench.errors import ConfigError
from pvebench.fields import Strict, Text
from pvebench.model.environment import Affected, IssueKind, KnownIssue, Version
from pvebench.model.run_metrics import JUDGED

SHIPPED = Path(__file__).with_name("known_issues.yaml")
_VERSION = re.compile(r"\d[A-Za-z0-9.+~:-]*")


def _version(value: Any) -> str:
    if not isinstance(value, str) or not _VERSION.fullmatch(value):
        raise ValueError(
            f"invalid version {value!r}; write it as Debian does, and quote it if YAML would read "
            "a number"
        )
    return value


def _judged(name: str) -> str:
    if name not in JUDGED:
        raise ValueError(f"{name!r} is not one of {', '.join(JUDGED)}")
    return name


VersionText = Annotated[str, BeforeValidator(_version)]


class _Range(Strict):
    fact: str
    since: VersionText
    before: VersionText | Literal[""] = ""
    fixed_in: str = ""
    also: list[_Range] = Field(default_factory=list, alias="and")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.before and not Version(self.since) < Version(self.before):
            raise ValueError(f"before: {self.before} is not after since: {self.since}")
        return self

    def model(self) -> Affected:
        also = tuple(other_range.model() for other_range in self.also)
        return Affected(**dict(self) | {"also": also})


class _Issue(Strict):
    id: Text
    title: Text
    kind: IssueKind
    affected: list[_Range] = Field(min_length=1)
    moves: list[Annotated[str, AfterValidator(_judged)]] = Field(default_factory=list)
    options: dict[str, list[str]] = Field(default_factory=dict)
    ratio: float | None = Field(default=None, gt=0)
    workaround: Text = ""
    source: Text


class _File(Strict):
    issues: list[_Issue]


class _Issues(Sequence[KnownIssue]):
    """Issues of several files. The shipped one is read at the first use: few commands have one."""

    def __init__(self, more: Iterable[Path]) -> None:
        self._more = [issue for path in more for issue in _read(path)]

    @cached_property
    def _all(self) -> tuple[KnownIssue, ...]:
        return tuple({issue.id: issue for issue in (*_read(SHIPPED), *self._more)}.values())

    def __getitem__(self, place: Any) -> Any:
        return self._all[place]

    def __len__(self) -> int:
        return len(self._all)


def load_known_issues(*more: Path) -> Sequence[KnownIssue]:
    """Return the shipped issues, then those of further files.

    An id of a later file replaces the same id of an earlier one. Each file is read once.

    Raises:
        ConfigError: a further file is wrong; carries all problems of the first such file.
    """
    return _Issues(more)


@cache
def _read(path: Path) -> Iterable[KnownIssue]:
    document = read_document(path)
    entries = validate(document, _File).issues
    _refuse_duplicates(document, [entry.id for entry in entries])
    return [
        KnownIssue(
            **dict(entry)
            | {
                "affected": tuple(span.model() for span in entry.affected),
                "moves": tuple(entry.moves),
                "options": {key: tuple(values) for key, values in entry.options.items()},
            }
        )
        for entry in entries
    ]


def _refuse_duplicates(document: Document, ids: list[str]) -> None:
    problems = [
        document.problem(("issues", place, "id"), f"duplicate id {name!r}")
        for place, name in enumerate(ids)
        if name in ids[:place]
    ]
    if problems:
        raise ConfigError(problems)
