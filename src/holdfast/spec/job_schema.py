"""The JSON schema of job files, made from the table of fields."""

from __future__ import annotations

from typing import Any

from holdfast.spec.job_fields import FIELDS, ROLE, SECTIONS, Field
from holdfast.spec.job_kinds import NAME


def job_schema() -> dict[str, Any]:
    sections = {name: _object("" if name == "roles" else name, text) for name, text in SECTIONS.items()}
    sections["roles"] = {
        "type": "object",
        "description": SECTIONS["roles"],
        "propertyNames": {"pattern": NAME.schema["pattern"]},
        "minProperties": 1,
        "additionalProperties": _object(ROLE, "A role."),
    }
    top = _object("", "A job for `holdfast submit`.")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Holdfast job",
        **top,
        "properties": {**top["properties"], **sections},
        "required": ["roles"],
    }


def _object(section: str, text: str) -> dict[str, Any]:
    fields = [field for field in FIELDS if field.section == section]
    schema: dict[str, Any] = {
        "type": "object",
        "description": text,
        "additionalProperties": False,
        "properties": {field.name: _property(field) for field in fields},
    }
    required = [field.name for field in fields if field.required]
    return {**schema, "required": required} if required else schema


def _property(field: Field) -> dict[str, Any]:
    usual = {} if field.default is None else {"default": field.default}
    return {"description": field.help, **field.kind.schema, **usual}
