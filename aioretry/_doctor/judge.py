"""What follows from the facts. Pure: nobody is asked."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from aioretry._doctor import about_client, about_servers, about_writes
from aioretry._doctor.facts import Facts
from aioretry._doctor.finding import Finding, Level


class Answer(enum.Enum):
    """The answer in one word; its value is the exit code."""

    CAN = 0
    CAN_WITH_WARNINGS = 1
    CANNOT = 3
    """2 is argparse's, for a command line that makes no sense."""

    UNREACHABLE = 4


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is said of a deployment."""

    answer: Answer
    findings: tuple[Finding, ...]


def judge(facts: Facts) -> Judgement:
    """Say whether writes can be retried there, and what to change.

    Returns:
        The verdict, and the findings, worst first.
    """
    if facts.problem is not None:
        finding = Finding(
            "unreachable",
            Level.PROBLEM,
            f"no server could be asked: {facts.problem}",
            "Check the hosts, the network, TLS and the credentials; nothing else is known.",
        )
        told = (finding, *about_client.ignored(facts.client))
        return Judgement(Answer.UNREACHABLE, told)
    findings = (
        *about_writes.findings(facts),
        *about_servers.findings(facts),
        *about_client.findings(facts),
    )
    ranked = sorted(findings, key=lambda finding: finding.level.value)
    return Judgement(_answer(ranked), tuple(ranked))


def _answer(findings: Sequence[Finding]) -> Answer:
    levels = {finding.level for finding in findings}
    if Level.PROBLEM in levels:
        return Answer.CANNOT
    return Answer.CAN_WITH_WARNINGS if Level.WARNING in levels else Answer.CAN
