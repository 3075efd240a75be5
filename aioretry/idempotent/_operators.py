"""What an update does when it is run again: the classification of all update operators. Pure.

An update is repeatable if running it on its own result changes nothing, or if its filter leaves out
what it has marked. The server updates each document at once, so that a run which was cut off has
updated some documents, and none of them by half; the next run then does the rest.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import bson
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from bson.errors import BSONError

from aioretry.idempotent import _pipelines
from aioretry.idempotent._filters import left_out_by, paths_read, pins_of, unrepeatable_in
from aioretry.idempotent._paths import EVERYTHING, Path, overlap, path_of

Document: TypeAlias = Mapping[str, Any]
Update: TypeAlias = Document | Sequence[Document]

OPERATORS: Mapping[str, str | None] = {
    "$set": None,
    "$unset": None,
    "$setOnInsert": None,
    "$min": None,
    "$max": None,
    "$addToSet": None,
    "$pull": None,
    "$pullAll": None,
    # A document gets its new name and loses its old one at once; without the old one, it stays.
    "$rename": None,
    "$bit": None,  # `and` and `or`; see _bit_problems
    "$inc": "would add again",
    "$mul": "would multiply again",
    "$push": "would append again",
    "$pushAll": "would append again",
    "$pop": "would remove another element",
    "$currentDate": "would set a later time",
}
"""Every update operator of MongoDB up to 8.0: None, or why it can't be run again."""

_REPEATABLE_BITS = {"and", "or"}
_WRITES_A_VALUE = {"$set", "$setOnInsert"}
_MARKS = {"$set", "$addToSet"}
_STANDARD: CodecOptions[Any] = CodecOptions(uuid_representation=UuidRepresentation.STANDARD)
_NAMED_ELEMENT = re.compile(r"\$\[(\w+)\]")
_ID: Path = ("_id",)
_COMPUTED = object()  # a value that nobody knows: it equals none


class NotIdempotentError(ValueError):
    """A write that might do more when it is run again than once; nothing was sent.

    The text says why. It names operators, and neither fields nor values.
    """

    operators: tuple[str, ...]
    """Operators, stages, variables and ``upsert`` that can't be run again."""

    def __init__(self, message: str, operators: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.operators = operators


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a write that stands against running it again."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Change:
    """One field that an operator changes."""

    operator: str
    name: str
    value: Any

    @property
    def path(self) -> Path:
        return path_of(self.name) if self.name else EVERYTHING


@dataclass(frozen=True, slots=True)
class UpdateMany:
    """An update of many documents, as it was called."""

    filter: Document
    update: Update
    upsert: bool = False
    array_filters: Sequence[Document] = ()
    let: Document | None = None
    unique_key: Sequence[str] = ()

    def problems(self) -> list[Problem]:
        """Return what stands against running it again; empty if nothing does."""
        return list(dict.fromkeys(self._problems()))

    def _problems(self) -> Iterator[Problem]:
        yield from problems_of_filter(self.filter, self.let)
        if isinstance(self.update, Mapping):
            changes = list(_changes_of(self.update))
            if self.upsert or not _leaves_a_mark(changes, self.filter):
                yield from _operator_problems(self.update)
                yield from _element_problems(changes, self.filter)
                yield from _array_filter_problems(changes, self.array_filters)
        else:
            try:
                stages = _pipelines.stages_of(self.update)
            except _pipelines.UnknownStageError as exc:
                yield Problem(str(exc), "is no stage of an update that is known")
                return
            for name in _pipelines.changing_in(self.let):
                yield Problem(name, "may have another value each time")
            yield from (Problem(*each) for each in _pipelines.problems_of(stages))
            if self.upsert:
                yield from _pipeline_upsert_problems(self.filter, stages)
            changes = [
                _Change(stage.name, ".".join(path), _COMPUTED)
                for stage in stages
                for path in stage.writes
            ]
        if self.upsert:
            yield from _upsert_problems(self.filter, changes, self.unique_key)


def problems_of_filter(filter: Document, let: Document | None) -> Iterator[Problem]:
    """Yield what could make a filter choose by chance."""
    for name in (*unrepeatable_in(filter), *unrepeatable_in(let)):
        yield Problem(name, "may choose other documents each time")


def refuse(operation: str, problems: Sequence[Problem]) -> None:
    """Raise a NotIdempotentError if there is anything against running a write again."""
    if problems:
        reasons = "; ".join(f"{problem.name} {problem.reason}" for problem in problems)
        names = tuple(dict.fromkeys(problem.name for problem in problems))
        raise NotIdempotentError(f"{operation} can't be repeated safely: {reasons}", names)


def _changes_of(update: Document) -> Iterator[_Change]:
    for operator, fields in update.items():
        if isinstance(fields, Mapping):
            for name, value in fields.items():
                yield _Change(operator, name, value)
                if operator == "$rename":
                    yield _Change(operator, str(value), _COMPUTED)


def _leaves_a_mark(changes: Sequence[_Change], filter: Document) -> bool:
    """Tell whether what was updated matches no more, by a mark that it must not have.

    A filter reads no positional name, but a field that is called ``$`` or ``$[]``, and never is.
    """
    return any(
        change.name == name
        and "$" not in name
        and change.operator in _MARKS
        and _are_equal(change.value, value)
        for name, value in left_out_by(filter)
        for change in changes
    )


def _operator_problems(update: Document) -> Iterator[Problem]:
    for operator, fields in update.items():
        reason = OPERATORS.get(operator, "is not known to be idempotent")
        if reason is not None:
            yield Problem(operator, reason)
        if operator == "$bit":
            yield from _bit_problems(fields)
        if operator == "$pull":
            for name in unrepeatable_in(fields):
                yield Problem(name, "may choose other elements each time")


def _bit_problems(fields: object) -> Iterator[Problem]:
    for change in _changes_of({"$bit": fields}):
        if not (isinstance(change.value, Mapping) and set(change.value) <= _REPEATABLE_BITS):
            yield Problem("$bit", "would turn bits back, unless it has `and` and `or` alone")


def _element_problems(changes: Sequence[_Change], filter: Document) -> Iterator[Problem]:
    """The positional ``$`` means the element that the filter finds first: always the same?"""
    if not any("$" in change.name.split(".") for change in changes):
        return
    reads = list(paths_read(filter))
    if any(overlap(change.path, read) for change in changes for read in reads):
        yield Problem("$", "would find another element, if the update changes what it is found by")


def _array_filter_problems(
    changes: Sequence[_Change], array_filters: Sequence[Document]
) -> Iterator[Problem]:
    for condition in array_filters:
        for name in unrepeatable_in(condition):
            yield Problem(name, "may choose other elements each time")
    reads = _reads_by_identifier(array_filters)
    for change in changes:
        parts = change.name.split(".")
        for index, part in enumerate(parts):
            named = _NAMED_ELEMENT.fullmatch(part)
            for read in reads.get(named[1], ()) if named else ():
                path = path_of(".".join(parts[:index])) + read
                if _is_written_elsewhere(path, parts[: index + 1], changes):
                    yield Problem(part, "would find other elements, changed by another operator")


def _is_written_elsewhere(path: Path, way: list[str], changes: Sequence[_Change]) -> bool:
    """Tell whether a path is changed otherwise than through the same array filter."""
    return any(
        overlap(path, change.path) and change.name.split(".")[: len(way)] != way
        for change in changes
    )


def _reads_by_identifier(array_filters: Sequence[Document]) -> dict[str, list[Path]]:
    reads: dict[str, list[Path]] = {}
    for condition in array_filters:
        paths = list(paths_read(condition))
        for identifier in {path[0] for path in _leaf_paths(condition) if path}:
            own = [path[1:] for path in paths if path[:1] == (identifier,)]
            # With branches, anything in the element may decide.
            reads.setdefault(identifier, []).extend([()] if EVERYTHING in paths else own)
    return reads


def _leaf_paths(condition: object) -> Iterator[Path]:
    if isinstance(condition, Mapping):
        for key, value in condition.items():
            if key.startswith("$"):
                yield from _leaf_paths(value)
            else:
                yield path_of(key)
    elif isinstance(condition, list | tuple):
        for each in condition:
            yield from _leaf_paths(each)


def _upsert_problems(
    filter: Document, changes: Sequence[_Change], unique_key: Sequence[str]
) -> Iterator[Problem]:
    pins = pins_of(filter)
    if pins is None:
        yield Problem("upsert", "might insert again: its filter asks for more than equality")
        return
    if "_id" not in pins and not (unique_key and set(unique_key) <= set(pins)):
        yield Problem("upsert", "might insert again: its filter has no _id and no unique key")
    for change in changes:
        if any(
            overlap(change.path, path_of(pin)) and not _sets_to(change, pin, value)
            for pin, value in pins.items()
        ):
            yield Problem(change.operator, "changes what the filter of the upsert asks for")


def _pipeline_upsert_problems(
    filter: Document, stages: Sequence[_pipelines.Stage]
) -> Iterator[Problem]:
    # An _id that the filter doesn't give is made after the pipeline: only the next run can read it.
    if any(path_of(pin)[:1] == _ID for pin in pins_of(filter) or ()):
        return
    for stage in stages:
        if any(overlap(read, _ID) for read in stage.reads):
            yield Problem(stage.name, "reads the _id, which an upsert without one makes later")


def _sets_to(change: _Change, pin: str, value: Any) -> bool:
    is_set = change.operator in _WRITES_A_VALUE and change.name == pin
    return is_set and _are_equal(change.value, value)


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bson.encode({"": one}, codec_options=_STANDARD) == bson.encode(
            {"": other}, codec_options=_STANDARD
        )
    except (BSONError, OverflowError, ValueError):  # a type of the user's own: nobody can tell
        return False
