"""Requests against the schema: which endpoint, which parameters, of which form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pve.refusals import Refused, bad_parameter

UNKNOWN = "property is not defined in schema and the schema does not allow additional properties"
_FAMILY = re.compile(r"(?P<name>.+?)(?P<index>\d+)\Z")


class Schema:
    """The excerpt for one major version, kept beside this file."""

    def __init__(self, major: int) -> None:
        path = Path(__file__).with_name(f"schema-{major}.json")
        self.data: dict[str, Any] = json.loads(path.read_text("utf-8"))
        self._patterns = [
            (method, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path) + r"\Z"), name)
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
        known = self.data["endpoints"][name]["parameters"]
        errors: dict[str, str] = {}
        for key, value in params.items():
            rule = self.rule(known, key)
            complaint = UNKNOWN if rule is None else self._complaint(rule, value)
            if complaint:
                errors[key] = complaint
        for key, rule in known.items():
            if not rule.get("optional") and "[n]" not in key and key not in params:
                errors[key] = "property is missing and it is not optional"
            needs = rule.get("requires")
            if key in params and needs and needs not in params:
                errors[needs] = f"missing property - '{key}' requires this property"
        if errors:
            raise bad_parameter(errors)

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

    def _complaint(self, rule: Mapping[str, Any], value: Any) -> str:
        kind = rule.get("type", "string")
        if kind == "array":
            return "" if isinstance(value, list) else "type check ('array') failed"
        text = str(value)
        complaint = _type_complaint(kind, text) or _limits_complaint(rule, text)
        return complaint or self._format_complaint(str(rule.get("format", "")), text)

    def _format_complaint(self, name: str, text: str) -> str:
        if complaint := _form_complaint(name, text):
            return f"invalid format - {complaint}"
        form = self.data["formats"].get(name)
        if not isinstance(form, dict) or form.get("kind") != "property-string":
            return ""
        for part in text.split(","):
            key, equals, value = part.partition("=")
            rule = form["properties"].get(key) if equals else None
            if equals and rule is None:
                return f"invalid format - format error\n{key}: {UNKNOWN}"
            while rule and "alias" in rule:
                rule = form["properties"][rule["alias"]]
            if rule and (wrong := self._inner_complaint(rule, value)):
                return f"invalid format - format error\n{key}: {wrong}"
        return ""

    @staticmethod
    def _inner_complaint(rule: Mapping[str, Any], value: str) -> str:
        if rule.get("type") == "boolean":
            good = value in ("0", "1", "on", "off", "yes", "no", "true", "false")
            return "" if good else "type check ('boolean') failed"
        return _type_complaint(rule.get("type", "string"), value) or _limits_complaint(rule, value)


def _form_complaint(name: str, text: str) -> str:
    """Check the forms that no table of the schema tells, of what the driver sends."""
    label = "[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
    if name == "dns-name" and not re.fullmatch(rf"{label}(\.{label})*", text):
        return "value does not look like a valid DNS name"
    if name == "inline:memory" and (
        wrong := _type_complaint("integer", text.partition("=")[2] or text)
    ):
        return f"format error\nmemory.current: {wrong}"
    kind = text.partition(",")[0].removeprefix("cputype=")
    if name == "pve-vm-cpu-conf" and not _CPU.match(kind):
        return f"Built-in cputype '{kind}' is not defined (missing 'custom-' prefix?)"
    return ""


_CPU = re.compile(
    r"(host|max|x86-64-v[2-4](-AES)?|kvm(32|64)|qemu(32|64)|custom-.+|[A-Z][\w-]*|486|athlon|phenom"
    r"|core(2)?duo|pentium[23]?)\Z"
)
"""CPU types that the server has built in; those named after processors begin with a capital."""


def _type_complaint(kind: str, text: str) -> str:
    forms = {"integer": r"[+-]?\d+\Z", "number": r"[+-]?\d+(\.\d+)?\Z", "boolean": r"[01]\Z"}
    if kind in forms and not re.match(forms[kind], text):
        return f"type check ('{kind}') failed - got '{text}'"
    return ""


def _limits_complaint(rule: Mapping[str, Any], text: str) -> str:
    if "enum" in rule and text not in rule["enum"]:
        return f"value '{text}' does not have a value in the enumeration '{rule['enum']}'"
    if "pattern" in rule:
        pattern = rule["pattern"].replace("(?^:", "(?:")
        if not re.fullmatch(pattern, text):
            return f"value does not match the regex pattern '{rule['pattern']}'"
    if "maxLength" in rule and len(text) > rule["maxLength"]:
        return f"value may only be {rule['maxLength']} characters long"
    if rule.get("type") in ("integer", "number"):
        if "minimum" in rule and float(text) < rule["minimum"]:
            return f"value must have a minimum value of {rule['minimum']}"
        if "maximum" in rule and float(text) > rule["maximum"]:
            return f"value must have a maximum value of {rule['maximum']}"
    return ""
