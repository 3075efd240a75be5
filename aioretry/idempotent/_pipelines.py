"""What an update by an aggregation pipeline does when it is run again. Pure.

A pipeline is repeatable if it writes no field that it reads, writes each field in one stage, and
computes what is the same each time. ``_id`` may be read by all: it never changes.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aioretry.idempotent._paths import EVERYTHING, Path, overlap, path_of

_ID: Path = ("_id",)

# Those that compute the same from the same; any other is refused, also one that is not known yet.
# $setUnion, $setIntersection and $setDifference give their elements in an order that is undefined.
_EXPRESSIONS = frozenset(
    """
    $abs $acos $acosh $add $allElementsTrue $and $anyElementTrue $arrayElemAt $arrayToObject $asin
    $asinh $atan $atan2 $atanh $avg $binarySize $bitAnd $bitNot $bitOr $bitXor $bsonSize $ceil $cmp
    $concat $concatArrays $cond $convert $cos $cosh $dateAdd $dateDiff $dateFromParts
    $dateFromString $dateSubtract $dateToParts $dateToString $dateTrunc $dayOfMonth $dayOfWeek
    $dayOfYear $degreesToRadians $divide $eq $exp $filter $first $firstN $floor $getField $gt $gte
    $hour $ifNull $in $indexOfArray $indexOfBytes $indexOfCP $isArray $isNumber $isoDayOfWeek
    $isoWeek $isoWeekYear $last $lastN $let $literal $ln $log $log10 $lt $lte $ltrim $map $max $maxN
    $median $mergeObjects $millisecond $min $minN $minute $mod $month $multiply $ne $not
    $objectToArray $or $percentile $pow $radiansToDegrees $range $reduce $regexFind $regexFindAll
    $regexMatch $replaceAll $replaceOne $reverseArray $round $rtrim $second $setEquals $setField
    $setIsSubset $sin $sinh $size $slice $sortArray $split $sqrt $stdDevPop $stdDevSamp $strLenBytes
    $strLenCP $strcasecmp $substr $substrBytes $substrCP $subtract $sum $switch $tan $tanh $toBool
    $toDate $toDecimal $toDouble $toHashedIndexKey $toInt $toLong $toLower $toObjectId $toString
    $toUUID $toUpper $trim $trunc $tsIncrement $tsSecond $type $unsetField $week $year $zip
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage of a pipeline does."""

    name: str
    writes: tuple[Path, ...]
    reads: tuple[Path, ...] = ()
    changing: tuple[str, ...] = ()
    """Operators and variables in it whose value may be another one each time."""


def stages_of(pipeline: Sequence[Mapping[str, Any]]) -> list[Stage]:
    """Look into the stages of a pipeline.

    Raises:
        UnknownStageError: It has a stage that no update can have.
    """
    return [_stage(each) for each in pipeline]


class UnknownStageError(Exception):
    """A stage is none that is known."""


def problems_of(stages: Sequence[Stage]) -> Iterator[tuple[str, str]]:
    """Yield what makes a pipeline another one when it is run again: a name, and why."""
    reads = {path for stage in stages for path in stage.reads if path[:1] != _ID}
    written: list[Path] = []
    for stage in stages:
        for name in stage.changing:
            yield name, "may have another value each time"
        if _meet(stage.writes, reads):
            yield stage.name, "writes what the pipeline reads"
        elif _meet(stage.writes, written):
            yield stage.name, "writes what an earlier stage writes"
        written += stage.writes


def _meet(paths: Iterable[Path], others: Collection[Path]) -> bool:
    return any(overlap(path, other) for path in paths for other in others)


def changing_in(expression: object) -> tuple[str, ...]:
    """Return what may have another value each time in the variables given to a command."""
    return tuple(name for kind, name in _walk(expression) if kind == "changing")


def _stage(stage: object) -> Stage:
    if not isinstance(stage, Mapping) or len(stage) != 1:
        raise UnknownStageError("the pipeline")
    ((name, body),) = stage.items()
    make = _STAGES.get(name)
    if make is None:
        raise UnknownStageError(name)
    return make(name, body)


def _set(name: str, body: object) -> Stage:
    writes = tuple(_leaves(body))
    return _with_expressions(name, writes, body)


def _unset(name: str, body: object) -> Stage:
    names = [body] if isinstance(body, str) else body
    if not isinstance(names, list | tuple):
        raise UnknownStageError(name)
    return Stage(name, tuple(path_of(str(each)) for each in names))


def _project(name: str, body: object) -> Stage:
    if not isinstance(body, Mapping):
        raise UnknownStageError(name)
    kinds = {bool(value) for key, value in body.items() if key != "_id"}
    plain = all(isinstance(value, bool | int | float) for value in body.values())
    if plain and kinds == {False}:
        return Stage(name, tuple(path_of(key) for key in body))
    if plain and kinds == {True}:
        return Stage(name, (EVERYTHING,))  # all other fields are removed
    # What it computes stands behind what was there already, so that the order may change.
    return Stage(name, (EVERYTHING,), (EVERYTHING,), changing_in(body))


def _replace_root(name: str, body: object) -> Stage:
    return _with_expressions(name, (EVERYTHING,), body)


_STAGES: Mapping[str, Callable[[str, object], Stage]] = {
    "$set": _set,
    "$addFields": _set,
    "$unset": _unset,
    "$project": _project,
    "$replaceRoot": _replace_root,
    "$replaceWith": _replace_root,
}


def _with_expressions(name: str, writes: tuple[Path, ...], body: object) -> Stage:
    found = list(_walk(body))
    reads = tuple(path_of(path) if path else EVERYTHING for kind, path in found if kind == "read")
    return Stage(name, writes, reads, tuple(each for kind, each in found if kind == "changing"))


def _leaves(body: object, within: str = "") -> Iterator[Path]:
    """Yield what a ``$set`` writes: of a document without operators its fields alone."""
    if isinstance(body, Mapping) and body and not any(key.startswith("$") for key in body):
        for key, value in body.items():
            yield from _leaves(value, f"{within}.{key}" if within else key)
    else:
        yield path_of(within)


def _walk(expression: object) -> Iterator[tuple[str, str]]:
    """Yield the fields that an expression reads, and what in it may change.

    As ``("read", path)``, with an empty path for the whole document, and ``("changing", name)``.
    """
    if isinstance(expression, str):
        yield from _walk_text(expression)
    elif isinstance(expression, list | tuple):
        for each in expression:
            yield from _walk(each)
    elif isinstance(expression, Mapping):
        for key, value in expression.items():
            yield from _walk_field(key, value)


def _walk_field(key: str, value: object) -> Iterator[tuple[str, str]]:
    if key == "$literal":
        return
    if key.startswith("$") and key not in _EXPRESSIONS:
        yield "changing", key
    if key == "$getField" and not (isinstance(value, Mapping) and "input" in value):
        yield "read", ""  # of the whole document, by a name that may be computed
    if key == "$let" and isinstance(value, Mapping) and "CURRENT" in (value.get("vars") or {}):
        yield "read", ""  # paths no longer begin at the document
    yield from _walk(value)


def _walk_text(text: str) -> Iterator[tuple[str, str]]:
    if text.startswith("$$"):
        variable, _, rest = text[2:].partition(".")
        if variable in {"ROOT", "CURRENT"}:
            yield "read", rest
        elif variable != "REMOVE" and not variable[:1].islower():
            yield "changing", f"$${variable}"
    elif text.startswith("$") and len(text) > 1:
        yield "read", text[1:]
