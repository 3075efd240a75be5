"""The servers: who is there, how they are set up, what their clocks say. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from aioretry._doctor.facts import Clock, Facts, Member, SetConfig, Unknown
from aioretry._doctor.finding import Finding, Level

_MOST_SKEW: Final = 2.0
_LEAST_OPLOG_HOURS: Final = 1.0
_MANY_SESSIONS: Final = 0.8


def findings(facts: Facts) -> Iterator[Finding]:
    """Return what there is to say."""
    for each in facts.absent:
        yield Finding(
            "member-absent",
            Level.WARNING,
            f"{each.address} does not answer: {each.why}",
            "A failover needs the others; see that it comes back.",
        )
    if facts.topology in {"sharded", "load balanced"}:
        yield Finding(
            "shards",
            Level.NOTE,
            "the servers behind it were not asked: run this for each shard too",
        )
    yield from _versions(facts)
    yield from _config(facts)
    yield from _clocks(facts.members)
    yield from _limits(facts)
    yield from _oplogs(facts.members)
    yield from _session_counts(facts.members)


def _versions(facts: Facts) -> Iterator[Finding]:
    members = facts.members
    known = sorted({each.version for each in members if isinstance(each.version, str)})
    if len(known) > 1:
        yield Finding(
            "versions",
            Level.WARNING,
            f"the servers have different versions: {', '.join(known)}",
            "Finish the upgrade.",
        )
    elif known:
        told = "MongoDB" if facts.look_alike is None else "it calls itself MongoDB"
        yield Finding("versions", Level.OK, f"{told} {known[0]}")
    else:
        why = _why(each.version for each in members)
        yield Finding("versions", Level.UNKNOWN, f"the version: {why}")


def _config(facts: Facts) -> Iterator[Finding]:
    config = facts.config
    if config is None:
        return
    if isinstance(config, Unknown):
        yield Finding(
            "set-config", Level.UNKNOWN, f"the configuration of the replica set: {config.why}"
        )
        return
    yield from _voters(config)
    if config.arbiters:
        yield Finding(
            "arbiters",
            Level.WARNING,
            f"{config.arbiters} arbiter(s): with one member of data lost, w: majority may not be "
            "acknowledged, and the default write concern may be w: 1",
            "Have members of data instead.",
        )
    if config.hidden:
        yield Finding(
            "hidden-members",
            Level.NOTE,
            f"{config.hidden} hidden member(s) were not asked: no client is told of them",
        )
    if not config.majority_journals:
        yield Finding(
            "majority-journals",
            Level.WARNING,
            "writeConcernMajorityJournalDefault is false: what a majority acknowledged can be lost "
            "when its servers crash",
            "Set it to true, or say journal=true in the connection string.",
        )


def _voters(config: SetConfig) -> Iterator[Finding]:
    if config.voting < 3:
        yield Finding(
            "voting-members",
            Level.WARNING,
            f"{config.voting} voting member(s): if one is lost, nobody takes writes",
            "Have three or more, on different machines.",
        )
    else:
        text = f"{config.voting} voting members; {config.majority} of them elect a primary"
        yield Finding("voting-members", Level.OK, text)
    if config.electable < 2:
        yield Finding(
            "electable-members",
            Level.WARNING,
            f"{config.electable} member(s) can become primary: if the primary is lost, no other "
            "takes its place",
            "Give two or more members of data a priority above 0.",
        )


def _clocks(members: Sequence[Member]) -> Iterator[Finding]:
    clocks = {each.address: each.clock for each in members if isinstance(each.clock, Clock)}
    far = {
        address: clock
        for address, clock in clocks.items()
        if abs(clock.ahead) - clock.error > _MOST_SKEW
    }
    told = ", ".join(f"{address} by {clock.ahead:+.1f} s" for address, clock in far.items())
    if far:
        yield Finding(
            "clock",
            Level.WARNING,
            f"clocks differ from the one here: {told}; waits and ages are measured by single "
            "clocks, but logs will not match",
            "Have all machines set their clocks by NTP.",
        )
    elif clocks:
        most = max(abs(clock.ahead) for clock in clocks.values())
        yield Finding("clock", Level.OK, f"clocks are within {most:.2f} s of the one here")
        yield from _skew(list(clocks.values()))


def _skew(clocks: Sequence[Clock]) -> Iterator[Finding]:
    ahead = [clock.ahead for clock in clocks]
    error = max(clock.error for clock in clocks)
    if max(ahead) - min(ahead) - 2 * error > _MOST_SKEW:
        yield Finding(
            "clock-skew",
            Level.WARNING,
            f"the servers' clocks differ from each other by {max(ahead) - min(ahead):.1f} s",
            "Have all machines set their clocks by NTP.",
        )


def _limits(facts: Facts) -> Iterator[Finding]:
    for each in facts.writable[:1]:
        lifetime = each.transaction_lifetime
        seconds = lifetime.why if isinstance(lifetime, Unknown) else f"{lifetime:g} s"
        yield Finding(
            "limits",
            Level.NOTE,
            f"documents up to {each.max_document_bytes / 2**20:g} MiB, commands up to "
            f"{each.max_batch} statements; transactions live for: {seconds}",
        )


def _oplogs(members: Sequence[Member]) -> Iterator[Finding]:
    hours = [each.oplog_hours for each in members if isinstance(each.oplog_hours, float)]
    replicated = [each for each in members if each.role in {"primary", "secondary"}]
    if hours and min(hours) < _LEAST_OPLOG_HOURS:
        yield Finding(
            "oplog",
            Level.NOTE,
            f"the oplog goes back {min(hours):.2f} hours; if that is not because the set is new, a "
            "change stream or a member that was away for longer can't go on",
        )
    elif hours:
        yield Finding("oplog", Level.OK, f"the oplog goes back {min(hours):.1f} hours")
    elif replicated:
        why = _why(each.oplog_hours for each in replicated)
        yield Finding("oplog", Level.UNKNOWN, f"how far the oplog goes back: {why}")


def _session_counts(members: Sequence[Member]) -> Iterator[Finding]:
    for each in members:
        active, most = each.active_sessions, each.max_sessions
        if isinstance(active, Unknown) or isinstance(most, Unknown):
            continue
        if active > most * _MANY_SESSIONS:
            yield Finding(
                "session-count",
                Level.WARNING,
                f"{each.address} has {active} sessions of {most} that it allows: beyond that it "
                "refuses every new one, of all clients",
                "Find who opens them, and end sessions after use.",
            )


def _why(parts: Iterable[object]) -> str:
    return next((part.why for part in parts if isinstance(part, Unknown)), "nobody said")
