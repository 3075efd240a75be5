"""Whether writes can be retried, and what their acknowledgement is worth. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from aioretry._doctor.facts import Facts, Maybe, Member, SetConfig, Unknown
from aioretry._doctor.finding import Finding, Level

_FIRST_RETRYING_WIRE_VERSION: Final = 6
_LEAST_MINUTES: Final = 30


def findings(facts: Facts) -> Iterator[Finding]:
    """Return what there is to say."""
    yield _topology(facts)
    yield from _look_alike(facts)
    if facts.topology != "standalone":
        yield from _sessions(facts)
        yield from _servers(facts)
    yield _option(facts)
    yield from _acknowledgement(facts)


def _topology(facts: Facts) -> Finding:
    match facts.topology:
        case "standalone":
            return Finding(
                "topology",
                Level.PROBLEM,
                "a standalone server: it knows no transaction ids, and so every write is sent once",
                None
                if facts.look_alike
                else "Run it as a replica set, if need be of one member: start it with --replSet "
                "and call rs.initiate().",
            )
        case "unknown":
            return Finding("topology", Level.PROBLEM, "no server of it takes writes")
        case "replica set" if not any(each.role == "primary" for each in facts.members):
            return Finding(
                "topology",
                Level.WARNING,
                f"a {_named(facts)} without a primary at the moment"
                + (
                    ", or this direct connection leads to another member" if facts.is_direct else ""
                ),
                "See rs.status(); a majority of the voting members has to be up.",
            )
        case _:
            return Finding("topology", Level.OK, f"a {_named(facts)}")


def _look_alike(facts: Facts) -> Iterator[Finding]:
    found = facts.look_alike
    if found is not None:
        level = Level.WARNING if found.may_retry else Level.PROBLEM
        text = f"this is {found.name}, not MongoDB: {found.retries}"
        yield Finding("look-alike", level, text, found.advice)


def _named(facts: Facts) -> str:
    if facts.topology == "replica set" and facts.set_name:
        return f"replica set ({facts.set_name})"
    return f"{facts.topology} cluster" if facts.topology == "sharded" else facts.topology


def _sessions(facts: Facts) -> Iterator[Finding]:
    without = [each.address for each in facts.members if each.session_minutes is None]
    if without and facts.topology != "load balanced":
        yield Finding(
            "sessions",
            Level.PROBLEM,
            f"no sessions on {', '.join(without)}: nothing can be retried there",
            "Use MongoDB 4.2 or newer.",
        )
        return
    minutes = min((each.session_minutes or _LEAST_MINUTES for each in facts.members), default=0)
    if minutes < _LEAST_MINUTES:
        yield Finding(
            "sessions",
            Level.WARNING,
            f"sessions are forgotten after {minutes} minutes (logicalSessionTimeoutMinutes): "
            f"resolve() and keys can be relied on for {minutes * 5 / 6:.0f} minutes only",
            "Leave localLogicalSessionTimeoutMinutes at 30.",
        )
    else:
        yield Finding("sessions", Level.OK, f"sessions are remembered for {minutes} minutes")


def _servers(facts: Facts) -> Iterator[Finding]:
    for each in facts.members:
        if each.wire_version < _FIRST_RETRYING_WIRE_VERSION:
            yield Finding(
                "wire-version",
                Level.PROBLEM,
                f"{each.address} is too old (wire version {each.wire_version})",
                "Use MongoDB 4.2 or newer.",
            )
        if each.storage_engine == "mmapv1":
            yield Finding(
                "storage-engine",
                Level.PROBLEM,
                f"{each.address} has the storage engine MMAPv1, which refuses transaction ids",
                "Use WiredTiger.",
            )
    unknown = [each for each in facts.members if _hides_engine(each)]
    if unknown:
        why = unknown[0].storage_engine
        yield Finding(
            "storage-engine",
            Level.UNKNOWN,
            f"the storage engine: {why.why if isinstance(why, Unknown) else why}",
        )


def _hides_engine(member: Member) -> bool:
    return member.role != "mongos" and isinstance(member.storage_engine, Unknown)


def _option(facts: Facts) -> Finding:
    if not facts.client.retry_writes:
        return Finding(
            "retry-writes",
            Level.PROBLEM,
            "the connection string says retryWrites=false: every write is sent once, and where its "
            "answer is lost its outcome stays unknown",
            None if facts.look_alike else "Leave the option out.",
        )
    return Finding("retry-writes", Level.OK, "the client may retry writes")


def _acknowledgement(facts: Facts) -> Iterator[Finding]:
    own, default = facts.client.write_concern, facts.default_write_concern
    if facts.topology == "standalone":
        if not own:
            return
        default = {"w": 1}  # it has no such default
    whose, concern = "the connection string's", own
    if "w" not in own:
        if isinstance(default, Unknown):
            yield Finding(
                "write-concern",
                Level.UNKNOWN,
                f"the deployment's default write concern: {default.why}",
                "Say w=majority in the connection string.",
            )
            return
        if own:
            # The server takes the w that a write does not name, and only that, from its default.
            whose += ", with the deployment's default,"
            concern = {"w": default.get("w", 1), **own}
        else:
            whose, concern = "the deployment's default", default
    yield _worth(f"{whose} write concern is {_shown(concern)}", concern, facts.config)
    if concern.get("wtimeout"):
        yield Finding(
            "wtimeout",
            Level.NOTE,
            "wtimeout is left out under a deadline, which takes its place",
        )


def _worth(text: str, concern: Mapping[str, Any], config: Maybe[SetConfig] | None) -> Finding:
    w = concern.get("w", 1)
    if w == 0 and not concern.get("j"):
        level, what = (
            Level.PROBLEM,
            "writes are not acknowledged, and so neither retried nor told of",
        )
    elif isinstance(w, int):
        level, what = _worth_of_count(w, config)
    elif w != "majority":
        level, what = Level.UNKNOWN, "whether that is a majority was not looked at"
    elif concern.get("j") is False:
        level = Level.WARNING
        what = "without journals, what was acknowledged can be lost when servers crash"
    else:
        return Finding("write-concern", Level.OK, text)
    if level is Level.OK:
        return Finding("write-concern", level, text)
    return Finding(
        "write-concern", level, f"{text}: {what}", "Say w=majority in the connection string."
    )


def _worth_of_count(w: int, config: Maybe[SetConfig] | None) -> tuple[Level, str]:
    if w <= 1:
        return Level.WARNING, "what was acknowledged may be rolled back by a failover"
    if not isinstance(config, SetConfig):
        return Level.UNKNOWN, "whether that is a majority is not known"
    if w < config.majority:
        return Level.WARNING, (
            f"less than a majority of {config.voting} voting members, and so what was acknowledged "
            "may be rolled back by a failover"
        )
    return Level.OK, ""


def _shown(concern: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in concern.items()) or "w: 1"
