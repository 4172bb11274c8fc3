"""JSON schemas of packs and settings, for editors."""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import BaseModel

from pvebench.config.pack_file import PackFile
from pvebench.config.settings import Settings

MODELS: Final[dict[str, type[BaseModel]]] = {"pack": PackFile, "settings": Settings}


def schema_text(name: str) -> str:
    """Return the JSON schema `pack` or `settings` as the text of its file."""
    schema: dict[str, Any] = MODELS[name].model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"
