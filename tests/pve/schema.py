"""Requests against the recorded schema: which endpoint, which parameters, each of which form.

The rules are those of Proxmox's JSONSchema.pm (pve-common), in its order and with its words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pve.formats import VALIDATORS, complaint
from pve.refusals import Refused, bad_parameter

UNKNOWN = "property is not defined in schema and the schema does not allow additional properties"
MISSING = "property is missing and it is not optional"
_FAMILY = re.compile(r"(?P<name>.+?)(?P<index>\d+)\Z")
_TYPES = {
    "integer": r"[+-]?\d+",
    "number": r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?",
    "boolean": r"[01]",
}
_BOOLEANS = dict.fromkeys(("1", "on", "yes", "true"), "1")
_BOOLEANS |= dict.fromkeys(("0", "off", "no", "false"), "0")


def _pattern(path: str) -> re.Pattern[str]:
    """Return what matches a path; only volumes have slashes (`fragmentDelimiter`, pve-storage)."""
    volume = path.replace("{volume}", "(?P<volume>.+)")
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", volume) + r"\Z")


class Schema:
    """The excerpt for one major version, kept beside this file; see `excerpt.py`."""

    def __init__(self, major: int) -> None:
        path = Path(__file__).with_name(f"schema-{major}.json")
        self.data: dict[str, Any] = json.loads(path.read_text("utf-8"))
        self.privileges = frozenset(self.data["roles"]["Administrator"])
        self._patterns = [
            (method, _pattern(path), name)
            for name in self.data["endpoints"]
            for method, _, path in [name.partition(" ")]
        ]

    def endpoint(self, method: str, path: str) -> tuple[str, dict[str, str]]:
        """Return the endpoint's name and what its path says; 501 where there is none."""
        for wanted, pattern, name in self._patterns:
            if wanted == method and (match := pattern.match(path)):
                return name, match.groupdict()
        raise Refused(501, f"Method '{method} {path}' not implemented")

    def permissions(self, name: str) -> Mapping[str, Any]:
        return self.data["endpoints"][name]["permissions"] or {}

    def check(self, name: str, params: Mapping[str, Any]) -> None:
        """Refuse parameters that the schema does not allow."""
        errors = self._object(self.data["endpoints"][name]["parameters"], params, "")
        if errors:
            raise bad_parameter(errors)

    def _object(
        self, known: Mapping[str, Any], found: Mapping[str, Any], prefix: str
    ) -> dict[str, str]:
        """Return member -> complaint, for the parameters of a call or of a list of properties."""
        errors: dict[str, str] = {}
        for key, rule in known.items():
            if "index" in rule or "alias" in rule or rule.get("optional") or key in found:
                continue
            errors[f"{prefix}{key}"] = MISSING
        for key, value in found.items():
            rule = self.rule(known, key)
            if wrong := UNKNOWN if rule is None else self._value(rule, value, f"{prefix}{key}"):
                errors[f"{prefix}{key}"] = wrong
            needs = rule.get("requires") if rule else None
            if needs and needs not in found:
                errors[f"{prefix}{needs}"] = f"missing property required by '{prefix}{key}'"
        return errors

    @staticmethod
    def rule(known: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
        if key in known:
            return known[key]
        match = _FAMILY.match(key)
        rule = known.get(f"{match['name']}[n]") if match else None
        if rule is None or match is None:
            return None
        low, high = rule["index"]
        return rule if low <= int(match["index"]) <= high else None

    def _value(self, rule: Mapping[str, Any], value: Any, place: str) -> str:
        kind = rule.get("type", "string")
        if kind == "array":
            return "" if isinstance(value, list) else "type check ('array') failed"
        text = str(value)
        if kind in _TYPES and not re.fullmatch(_TYPES[kind], text):
            return f"type check ('{kind}') failed - got '{text}'"
        if wrong := self._format(str(rule.get("format", "")), text, place):
            return f"invalid format - {wrong}"
        return _limits(rule, text)

    def _format(self, name: str, text: str, place: str) -> str:
        if not name:
            return ""
        form = self.data["formats"].get(name, {})
        if form.get("kind") != "property-string":
            return complaint(name, text, self.privileges)
        found, wrong = _properties(form["properties"], text)
        if wrong:
            return wrong
        errors = self._object(form["properties"], found, f"{place}.")
        if errors:
            return "".join(["format error", *(f"\n{key}: {why}" for key, why in errors.items())])
        return VALIDATORS[name](found) if name in VALIDATORS else ""


def _properties(known: Mapping[str, Any], text: str) -> tuple[dict[str, str], str]:
    """Return (member -> value, or else the complaint) of `VALUE,KEY=VALUE,…`."""
    found: dict[str, str] = {}
    default = next((key for key, rule in known.items() if rule.get("default_key")), "")
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            key, value = default, part
            if not default:
                return {}, "value without key, but schema does not define a default key"
        elif not (key and value):
            return {}, "missing key in comma-separated list property"
        alias = known.get(key, {})
        key = str(alias.get("alias", key))
        if alias.get("keyAlias"):
            found[str(alias["keyAlias"])] = part.partition("=")[0]
        if key in found:
            return {}, f"duplicate key in comma-separated list property: {key}"
        boolean = known.get(key, {}).get("type") == "boolean"
        found[key] = _BOOLEANS.get(value.lower(), value) if boolean else value
    return found, ""


def _limits(rule: Mapping[str, Any], text: str) -> str:
    pattern = rule.get("pattern")
    if pattern and not re.fullmatch(re.sub(r"\(\?\^[a-z]*:", "(?:", pattern), text):
        return "value does not match the regex pattern"
    if len(text) > rule.get("maxLength", len(text)):
        return f"value may only be {rule['maxLength']} characters long"
    if len(text) < rule.get("minLength", 0):
        return f"value must be at least {rule['minLength']} characters long"
    if re.fullmatch(_TYPES["number"], text) and (wrong := _range(rule, float(text))):
        return wrong
    if "enum" in rule and text not in rule["enum"]:
        known = ", ".join(rule["enum"])
        return f"value '{text}' does not have a value in the enumeration '{known}'"
    return ""


def _range(rule: Mapping[str, Any], value: float) -> str:
    if value > rule.get("maximum", value):
        return f"value must have a maximum value of {rule['maximum']}"
    if value < rule.get("minimum", value):
        return f"value must have a minimum value of {rule['minimum']}"
    return ""
