"""Tells what was found, to people or as JSON."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from aioretry._doctor.facts import Facts, Unknown
from aioretry._doctor.finding import Finding, Level
from aioretry._doctor.judge import Answer, Judgement

SCHEMA: Final = 1

_VERDICTS: Final = {
    Answer.CAN: "Writes can be retried here.",
    Answer.CAN_WITH_WARNINGS: "Writes can be retried here, but read the warnings.",
    Answer.CANNOT: "Writes can't be retried here.",
    Answer.UNREACHABLE: "No server could be asked.",
}
_MARKS: Final = {
    Level.PROBLEM: "PROBLEM",
    Level.WARNING: "warning",
    Level.UNKNOWN: "unknown",
    Level.OK: "ok",
    Level.NOTE: "note",
}


def text_of(facts: Facts, judgement: Judgement) -> str:
    """Return it as people read it."""
    lines = [_VERDICTS[judgement.answer], *_servers(facts), ""]
    for finding in judgement.findings:
        lines.append(f"{_MARKS[finding.level]:>8}  {finding.text}")
        if finding.advice is not None:
            lines.append(f"{'':>8}  -> {finding.advice}")
    return "\n".join(lines) + "\n"


def json_of(facts: Facts, judgement: Judgement) -> str:
    """Return it as JSON: one object, whose ``schema`` grows if a name changes its meaning."""
    told = {
        "schema": SCHEMA,
        "verdict": judgement.answer.name.lower(),
        "exit_code": judgement.answer.value,
        "findings": [_finding(finding) for finding in judgement.findings],
        "deployment": {
            name: plain(getattr(facts, name))
            for name in (
                "topology",
                "is_direct",
                "set_name",
                "members",
                "absent",
                "default_write_concern",
                "config",
                "problem",
            )
        },
        "client": plain(facts.client),
    }
    return json.dumps(told, indent=2, default=str) + "\n"


def plain(value: Any) -> Any:
    """Return a fact as JSON has it; what is unknown is ``{"unknown": why}``."""
    match value:
        case Unknown(why):
            return {"unknown": why}
        case list() | tuple():
            return [plain(each) for each in value]
        case Mapping():
            return {str(name): plain(each) for name, each in value.items()}
        case _ if is_dataclass(value):
            return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value


def _finding(finding: Finding) -> Mapping[str, str | None]:
    return {
        "id": finding.id,
        "level": finding.level.name.lower(),
        "text": finding.text,
        "advice": finding.advice,
    }


def _servers(facts: Facts) -> Iterator[str]:
    for each in facts.members:
        kind = "MongoDB" if each.look_alike is None else f"{each.look_alike.name}, as MongoDB"
        version = "" if isinstance(each.version, Unknown) else f", {kind} {each.version}"
        yield f"  {each.address}: {each.role}{version}"
    for other in facts.absent:
        yield f"  {other.address}: no answer"
