"""Where changes come from."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from bson.objectid import ObjectId
from pymongo.results import InsertOneResult

from aioretry._faces import Client, Collection, Session
from aioretry.streams._changes import Change, ChangeKind, Position
from aioretry.streams._errors import SourceChangedError, SourceError

_ENDS = frozenset({"drop", "rename", "dropDatabase", "invalidate"})
_KINDS = {kind.value: kind for kind in ChangeKind}


class Source(Protocol):
    """What an aggregator follows, and what it is rebuilt from."""

    @property
    def watched(self) -> Collection:
        """The collection whose change stream is followed."""
        ...

    @property
    def documents(self) -> Collection:
        """The collection that a rebuild reads.

        Raises:
            SourceError: There is none.
        """
        ...

    @property
    def projection(self) -> Mapping[str, Any] | None:
        """What of its documents a rebuild reads; None for all."""
        ...

    def watching(self) -> dict[str, Any]:
        """Return the arguments of ``watch``, the position apart."""
        ...

    def change_of(self, event: Mapping[str, Any]) -> Change:
        """Read an event of the change stream.

        Raises:
            SourceChangedError: It tells of the end of the collection.
            SourceError: It can't be understood.
        """
        ...

    def change_of_document(self, document: Mapping[str, Any], position: Position) -> Change:
        """Read a document during a rebuild."""
        ...

    async def check(self) -> None:
        """Look whether it can be followed.

        Raises:
            SourceError: It can't.
        """
        ...


class ChangeStreamSource:
    """The documents of a collection, and its change stream with images (servers from 6.0 on).

    The collection must have been told to keep them: ``changeStreamPreAndPostImages: {"enabled":
    True}``, by ``create_collection`` or by the command ``collMod``.

    Args:
        collection: The collection.
        fields: Which fields ``before`` and ``after`` have, beside ``_id``; None for all.

    Raises:
        TypeError: ``fields`` is one string, or has something else than strings.
        ValueError: A name in it can't be that of a field.
    """

    def __init__(self, collection: Collection, *, fields: Sequence[str] | None = None) -> None:
        self._collection = collection
        self._fields = None if fields is None else ("_id", *_names(fields))

    def __repr__(self) -> str:
        return f"<ChangeStreamSource {self._collection.full_name}>"

    @property
    def watched(self) -> Collection:
        """The collection."""
        return self._collection

    @property
    def documents(self) -> Collection:
        """The collection."""
        return self._collection

    @property
    def projection(self) -> Mapping[str, Any] | None:
        """The fields."""
        return None if self._fields is None else dict.fromkeys(self._fields, 1)

    def watching(self) -> dict[str, Any]:
        """Return the arguments of ``watch``, the position apart."""
        pipeline: list[dict[str, Any]] = []
        if self._fields is not None:
            shown = ["operationType", "clusterTime", "documentKey"]
            images = ("fullDocument", "fullDocumentBeforeChange")
            shown += [f"{image}.{field}" for image in images for field in self._fields]
            pipeline = [{"$project": dict.fromkeys(shown, 1)}]
        return {
            "pipeline": pipeline,
            "full_document": "required",
            "full_document_before_change": "required",
        }

    def change_of(self, event: Mapping[str, Any]) -> Change:
        """Read an event; raises as :meth:`Source.change_of`."""
        kind = _kind_of(event, str(self._collection.full_name))
        return Change(
            kind,
            event["documentKey"]["_id"],
            None if kind is ChangeKind.INSERT else event["fullDocumentBeforeChange"],
            None if kind is ChangeKind.DELETE else event["fullDocument"],
            Position(event["clusterTime"], event["_id"]),
        )

    def change_of_document(self, document: Mapping[str, Any], position: Position) -> Change:
        """Tell of a document as of a new one."""
        return Change(ChangeKind.INSERT, document["_id"], None, document, position)

    async def check(self) -> None:
        """Look whether the collection keeps images.

        Raises:
            SourceError: It doesn't, or it is not there.
        """
        options = await self._collection.options()
        images: Mapping[str, Any] = options.get("changeStreamPreAndPostImages", {})
        if not images.get("enabled"):
            raise SourceError(
                f"{self._collection.full_name} keeps no images of its documents; run the command "
                f"{{collMod: '{self._collection.name}', changeStreamPreAndPostImages: "
                "{enabled: true}} (servers from 6.0 on), or use a QueueSource"
            )


class QueueSource:
    """A collection of entries that tell of changes, each with the old and the new document.

    Entries are appended by the writes themselves, with :func:`append`, in the transaction that
    changes the document. They are not changed later, and stay until a TTL index or the size of a
    capped collection removes them, so that several consumers can read them.

    Their order is that of the server's cluster times, not that of their ``_id``.

    Args:
        queue: The collection of entries.
        documents: The collection that they are about, which a rebuild reads.
        keeps_all: Whether the queue has kept every entry since the first document: a rebuild reads
            the queue itself then.

    Raises:
        ValueError: Both ``documents`` and ``keeps_all`` are given.
    """

    def __init__(
        self, queue: Collection, *, documents: Collection | None = None, keeps_all: bool = False
    ) -> None:
        if documents is not None and keeps_all:
            raise ValueError("a rebuild reads either the documents or the queue, not both")
        self._queue = queue
        self._documents = queue if keeps_all else documents
        self._keeps_all = keeps_all

    def __repr__(self) -> str:
        return f"<QueueSource {self._queue.full_name}>"

    @property
    def watched(self) -> Collection:
        """The queue."""
        return self._queue

    @property
    def documents(self) -> Collection:
        """What a rebuild reads.

        Raises:
            SourceError: Neither ``documents`` nor ``keeps_all`` was given.
        """
        if self._documents is None:
            raise SourceError(f"{self!r} can't be rebuilt: give it documents, or keeps_all")
        return self._documents

    @property
    def projection(self) -> Mapping[str, Any] | None:
        """All fields."""
        return None

    def watching(self) -> dict[str, Any]:
        """Return the arguments of ``watch``, the position apart."""
        return {"pipeline": [{"$match": {"operationType": {"$in": ["insert", *sorted(_ENDS)]}}}]}

    def change_of(self, event: Mapping[str, Any]) -> Change:
        """Read an event; raises as :meth:`Source.change_of`."""
        _kind_of(event, str(self._queue.full_name))
        return _change_of_entry(event["fullDocument"], Position(event["clusterTime"], event["_id"]))

    def change_of_document(self, document: Mapping[str, Any], position: Position) -> Change:
        """Read an entry, or tell of a document as of a new one."""
        if self._keeps_all:
            return _change_of_entry(document, position)
        return Change(ChangeKind.INSERT, document["_id"], None, document, position)

    async def check(self) -> None:
        """Look whether the queue keeps what a rebuild reads.

        Raises:
            SourceError: It doesn't.
        """
        if not self._keeps_all:
            return
        for name, index in (await self._queue.index_information()).items():
            if "expireAfterSeconds" in index:
                raise SourceError(
                    f"{self._queue.full_name} does not keep all: its index {name!r} has a TTL; "
                    "give documents for a rebuild, or drop the index"
                )


def entry(
    kind: ChangeKind,
    key: Any,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the queue entry of a change.

    Args:
        kind: What happened.
        key: The document's ``_id``.
        before: The document before, or what of it the increments need.
        after: The document after.

    Raises:
        ValueError: The documents don't fit the kind.
    """
    has_before, has_after = kind is not ChangeKind.INSERT, kind is not ChangeKind.DELETE
    if (before is not None) != has_before or (after is not None) != has_after:
        raise ValueError(f"the entry of an {kind.value!r} has the wrong documents")
    return {"_id": ObjectId(), "kind": kind.value, "key": key, "before": before, "after": after}


async def append(
    queue: Collection,
    kind: ChangeKind,
    key: Any,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    session: Session | None = None,
) -> InsertOneResult:
    """Append the entry of a change to a queue.

    Args:
        queue: The collection of entries; a coalesced view will do where there is no session.
        kind: What happened.
        key: The document's ``_id``.
        before: The document before, or what of it the increments need.
        after: The document after.
        session: The session of the transaction that changes the document.

    Returns:
        The result of the insert.

    Raises:
        ValueError: The documents don't fit the kind.
        PyMongoError: As for ``insert_one``.
    """
    return await queue.insert_one(entry(kind, key, before=before, after=after), session=session)


async def check_deployment(client: Client) -> None:
    """Look whether there are change streams.

    Raises:
        SourceError: The server is a standalone one.
    """
    hello = await client.admin.command("isMaster")
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise SourceError("a standalone server has no change streams: make it a replica set")


def _names(fields: object) -> list[str]:
    if isinstance(fields, str | bytes) or not isinstance(fields, Iterable):
        raise TypeError(f"fields must be a list of names, such as ['tags'], not {fields!r}")
    names = list(fields)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"fields must have names only, not {name!r}")
        if name.startswith("$") or "\0" in name or "" in name.split("."):
            raise ValueError(f"fields must have names of fields, not {name!r}")
    return names


def _kind_of(event: Mapping[str, Any], name: str) -> ChangeKind:
    told = event["operationType"]
    if told in _ENDS:
        raise SourceChangedError(f"{name} has ended ({told}): rebuild the aggregates")
    kind = _KINDS.get(told)
    if kind is None:
        raise SourceError(f"an event of {name} that means nothing here: {told!r}")
    return kind


def _change_of_entry(document: Mapping[str, Any], position: Position) -> Change:
    try:
        kind = _KINDS[document["kind"]]
        return Change(kind, document["key"], document["before"], document["after"], position)
    except KeyError as exc:
        raise SourceError(f"not an entry of a change: {document.get('_id')!r}") from exc
