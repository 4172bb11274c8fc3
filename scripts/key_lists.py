"""Lists of all keys of settings and packs, generated from their JSON schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Rules = Mapping[str, Any]

_DAY = 86_400


_FORMATS = {"8s": "duration", "256M": "size", "0.2": "share"}
"""First example of a format -> its word, which the page explains once."""
_FORMATS_TEXT = (
    "Defaults are in parentheses. A *duration* is a number with a unit, such as `8s`, `30m` or "
    "`1d`; a *size* is a\nnumber of bytes or has a unit, such as `256M` or `4k`; a *share* is a "
    "number or a percentage, such as `0.2` or `20%`."
)


def keys_text(title: str, intro: str, schema_text: str) -> str:
    """Return a page with one list of the top-level keys, and one for each nested mapping."""
    schema = json.loads(schema_text)
    schema = _inlined(schema, schema["$defs"])
    parts = {"Top level": schema, **_with_keys(schema["$defs"])}
    kinds = {name: part for name, part in parts.items() if "faults" in part["properties"]}
    parts = {name: part for name, part in parts.items() if name not in kinds}
    lines = [f"# {title}", "", "Generated from the schema by `make generate`.", intro]
    lines += ["", _FORMATS_TEXT]
    for name, part in parts.items():
        lines += ["", f"## {name}", ""]
        lines += _lists_of_options(part, parts) or _rows(part)
    if kinds:
        lines += ["", "## Storages", "", *_rows_by_kind([*kinds.values()])]
    return "\n".join(lines) + "\n"


def _rows_by_kind(parts: list[Rules]) -> Iterator[str]:
    """Yield the keys of storages, each with the kinds that have it."""
    kinds: dict[str, list[str]] = {}
    for part in parts:
        for row in _rows(part):
            if not row.startswith("- `kind`"):
                kinds.setdefault(row, []).extend(part["properties"]["kind"]["enum"])
    every = sum(len(part["properties"]["kind"]["enum"]) for part in parts)
    yield "- `kind`: one of the names below (`dir`)"
    for row, names in sorted(kinds.items()):
        yield row if len(names) == every else f"{row}; {', '.join(names)}"


def _lists_of_options(part: Rules, parts: Rules) -> list[str]:
    """Return a sentence for a mapping that has a list for each key of another one."""
    options = parts.get("Options", {}).get("properties", {})
    formats = {key: _format(rule) for key, rule in part["properties"].items()}
    lists = {key: f"list of {_format(rule)}" for key, rule in options.items()}
    if not options or formats != lists:
        return []
    return ["For each key of [Options](#options), a list of such values."]


def _inlined(value: Any, definitions: Rules) -> Any:
    """Return the schema with references to enumerations, which have no table, resolved."""
    if isinstance(value, list):
        return [_inlined(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    name = str(value.get("$ref", "")).rpartition("/")[2]
    if name and "properties" not in definitions[name]:
        return definitions[name]
    if name and "faults" in definitions[name]["properties"]:
        return {"$ref": "#/$defs/Storages"}  # one list for all kinds
    return {key: _inlined(item, definitions) for key, item in value.items()}


def _with_keys(definitions: Rules) -> dict[str, Rules]:
    return {name: rules for name, rules in definitions.items() if "properties" in rules}


def _first_example(rule: Rules) -> str:
    return str(rule.get("examples", ("",))[0])


def _rows(part: Rules) -> Iterator[str]:
    required = part.get("required", ())
    for key, rule in part["properties"].items():
        text = "required" if key in required else _default(rule, rule.get("default"))
        yield f"- `{key}`: {_format(rule)}{text and f' ({text})'}"


def _default(rule: Rules, value: Any) -> str:
    # Nested mappings have their own list.
    if value is None or value in ("", []) or isinstance(value, dict):
        return ""
    word = _FORMATS.get(_first_example(rule))
    if word == "duration":
        return f"`{value:g}s`" if value < _DAY else f"`{value / _DAY:g}d`"
    if word == "size" and value:
        units = min(3, ((value & -value).bit_length() - 1) // 10)
        return f"`{value >> 10 * units}{('', 'k', 'M', 'G')[units]}`"
    return f"`{json.dumps(value)}`"


def _format(rule: Rules) -> str:
    if "anyOf" in rule:
        parts = [_format(part) for part in rule["anyOf"] if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(parts))
    if "$ref" in rule:
        name = rule["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in rule:
        return ", ".join(f"`{word}`" for word in rule["enum"])
    if rule.get("type") == "array":
        return f"list of {_format(rule.get('items', {}))}"
    if rule.get("type") == "object":
        return _format_of_mapping(rule)
    return _format_of_value(rule)


def _format_of_mapping(rule: Rules) -> str:
    values = [*rule.get("patternProperties", {}).values(), rule.get("additionalProperties")]
    formats = [_format(value) for value in values if isinstance(value, dict)]
    return f"name: {' or '.join(formats)}" if formats else "keys"


def _format_of_value(rule: Rules) -> str:
    word = _FORMATS.get(_first_example(rule))
    if word:
        return word
    kind = rule.get("type", "any")
    kinds = kind if isinstance(kind, list) else [kind]
    text = " or ".join("text" if kind == "string" else kind for kind in kinds)
    low, high = rule.get("minimum"), rule.get("maximum")
    if low is not None and high is not None:
        text += f", {low} to {high}"
    if rule.get("examples"):
        text += f", for example {', '.join(f'`{example}`' for example in rule['examples'])}"
    return text
