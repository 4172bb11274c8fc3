"""Tables of every key of settings and packs, made of their JSON schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Rules = Mapping[str, Any]

_DAY = 86_400


def keys_text(title: str, intro: str, schema_text: str) -> str:
    """Return a page with a table of the keys at the top, and one for each value that has keys."""
    schema = json.loads(schema_text)
    schema = _inlined(schema, schema["$defs"])
    parts = {"At the top": schema, **_with_keys(schema["$defs"])}
    lines = [f"# {title}", "", "Generated from the schema by `make generate`.", "", intro]
    for name, part in parts.items():
        lines += ["", f"## {name}", "", "| key | form | default |", "|---|---|---|"]
        lines += _rows(part)
    return "\n".join(lines) + "\n"


def _inlined(value: Any, definitions: Rules) -> Any:
    """Return the schema with references to single words, which have no table, resolved."""
    if isinstance(value, list):
        return [_inlined(one, definitions) for one in value]
    if not isinstance(value, dict):
        return value
    name = str(value.get("$ref", "")).rpartition("/")[2]
    if name and "properties" not in definitions[name]:
        return definitions[name]
    return {key: _inlined(one, definitions) for key, one in value.items()}


def _with_keys(definitions: Rules) -> dict[str, Rules]:
    return {name: one for name, one in definitions.items() if "properties" in one}


def _rows(part: Rules) -> Iterator[str]:
    required = part.get("required", ())
    for key, rule in part["properties"].items():
        default = rule.get("default")
        told = "required" if key in required else _default(rule, default)
        yield f"| `{key}` | {_form(rule)} | {told} |"


def _default(rule: Rules, value: Any) -> str:
    # Whole sections are told by their own table.
    if value is None or value == "" or isinstance(value, dict):
        return ""
    if isinstance(value, float) and "30m" in rule.get("examples", ()):
        return f"`{value:g}s`" if value < _DAY else f"`{value / _DAY:g}d`"
    return f"`{json.dumps(value)}`"


def _form(rule: Rules) -> str:
    if "anyOf" in rule:
        return " or ".join(_form(one) for one in rule["anyOf"] if one.get("type") != "null")
    if "$ref" in rule:
        name = rule["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in rule:
        return ", ".join(f"`{word}`" for word in rule["enum"])
    if rule.get("type") == "array":
        return f"list of {_form(rule.get('items', {}))}"
    if rule.get("type") == "object":
        return _form_of_names(rule)
    return _form_of_value(rule)


def _form_of_names(rule: Rules) -> str:
    values = [*rule.get("patternProperties", {}).values(), rule.get("additionalProperties")]
    told = [_form(one) for one in values if isinstance(one, dict)]
    return f"name: {' or '.join(told)}" if told else "keys"


def _form_of_value(rule: Rules) -> str:
    kind = rule.get("type", "any")
    kinds = kind if isinstance(kind, list) else [kind]
    told = " or ".join({"string": "text", "boolean": "true, false"}.get(one, one) for one in kinds)
    low, high = rule.get("minimum"), rule.get("maximum")
    if low is not None and high is not None:
        told += f", {low} to {high}"
    if rule.get("examples"):
        told += f", as {', '.join(f'`{one}`' for one in rule['examples'])}"
    return told
