"""JSON schemas of packs and settings, for editors."""

from __future__ import annotations

import json
from inspect import cleandoc
from typing import Any, Final

from pydantic import BaseModel

from pvebench.config.pack_file import PackFile
from pvebench.config.settings import Settings
from pvebench.fields import Strict

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
