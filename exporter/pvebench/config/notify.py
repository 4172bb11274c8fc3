"""Who is told of changes: `notify` in the settings."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, SecretStr, model_validator

from pvebench.fields import FilePath, Slug, Strict, Text, WeeklyMoment, require_once


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
