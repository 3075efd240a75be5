"""Versioned documents: creating, saving, updating and deleting them, as users do."""

import asyncio
import uuid
from decimal import Decimal

import bson
import pytest
from bson import ObjectId
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, TypeCodec, TypeRegistry
from bson.decimal128 import Decimal128
from bson.errors import InvalidDocument
from bson.raw_bson import RawBSONDocument
from pymongo.errors import ConfigurationError, DuplicateKeyError
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from aioretry import DeadlineExceeded, deadline
from aioretry.idempotent import VersionConflict, VersionedDocuments
from aioretry.idempotent._canonical import content_hash
from tests.idempotent.versioning import DRIVERS, collection_of, increment, opened


class DecimalCodec(TypeCodec):
    """Decimals of Python's."""

    python_type = Decimal
    bson_type = Decimal128

    def transform_python(self, value):
        return Decimal128(value)

    def transform_bson(self, value):
        return value.to_decimal()


@pytest.fixture
def docs(collection):
    """The test's documents."""
    return VersionedDocuments(collection)


@pytest.fixture
async def held(docs):
    """A document that was read."""
    return (await docs.create({"_id": 1, "n": 0})).document


class TestEachDriver:
    @pytest.mark.parametrize("driver", DRIVERS)
    async def test_life_of_a_document(self, replica_set, collection, stored, driver):
        """Created, saved, updated and deleted, by each driver."""
        async with opened(driver, replica_set.uri) as client:
            docs = VersionedDocuments(collection_of(client, collection.name))
            created = await docs.create({"n": 0})
            assert created.version == created.id == docs.version_of({"n": 0})
            saved = await docs.save(created.document | {"n": 1})
            updated = await docs.update(created.id, increment)
            assert [updated.document] == list(stored.find())
            assert 2 == updated.document["n"]
            assert docs.verify(updated.document)
            with pytest.raises(VersionConflict):
                await docs.delete(saved.document)
            await docs.delete(updated.document)
            assert [] == list(stored.find())


class TestCreate:
    async def test_twice(self, docs, stored):
        """The same content is the same document, in whatever order its fields are."""
        first = await docs.create({"a": 1, "b": {"x": 1, "y": 2}})
        second = await docs.create({"b": {"y": 2, "x": 1}, "a": 1})
        assert (True, False) == (first.written, second.written)
        assert first.document == second.document
        assert [first.document] == list(stored.find())

    async def test_given_id(self, docs, stored):
        """The document's own id is kept."""
        identity = ObjectId()
        first = await docs.create({"_id": identity, "a": 1})
        second = await docs.create({"_id": identity, "a": 1})
        assert identity == first.id == second.id
        assert [first.document] == list(stored.find())

    async def test_other_content(self, docs):
        """Another document under the id is a conflict."""
        first = await docs.create({"_id": 1, "a": 1})
        with pytest.raises(VersionConflict) as caught:
            await docs.create({"_id": 1, "a": 2})
        assert first.document == caught.value.stored_document
        assert caught.value.expected_version is None
        assert docs.version_of({"a": 2}) == caught.value.new_version

    async def test_after_a_save(self, docs):
        """A document that was saved since is the one that was created."""
        first = await docs.create({"a": 1})
        saved = await docs.save(first.document | {"a": 2})
        again = await docs.create({"a": 1})
        assert not again.written
        assert saved.document == again.document

    async def test_unversioned_document(self, docs, collection):
        """A document without a version is somebody else's."""
        await collection.insert_one({"_id": 1, "a": 1})
        with pytest.raises(VersionConflict) as caught:
            await docs.create({"_id": 1, "a": 1})
        assert caught.value.stored_version is None
        assert not caught.value.is_deleted

    async def test_other_unique_index(self, docs, collection):
        """A duplicate on the user's own index is the user's error."""
        await collection.create_index("mail", unique=True)
        await docs.create({"mail": "a", "n": 1})
        with pytest.raises(DuplicateKeyError):
            await docs.create({"mail": "a", "n": 2})

    async def test_other_unique_index_and_equal_content(self, collection):
        """Nor is another document with the same content taken for the one in the way."""
        docs = VersionedDocuments(collection, ignored=["mail"])
        await collection.create_index("mail", unique=True)
        await docs.create({"_id": 1, "mail": "a", "n": 1})
        await docs.create({"_id": 2, "mail": "b", "n": 2})
        with pytest.raises(DuplicateKeyError):
            await docs.create({"_id": 3, "mail": "b", "n": 1})

    async def test_unique_versions(self, docs):
        """With a unique index on the version, the same content under two ids is one document."""
        await docs.create_index(unique=True)
        first = await docs.create({"_id": 1, "a": 1})
        second = await docs.create({"_id": 2, "a": 1})
        assert (False, 1) == (second.written, second.id)
        assert first.document == second.document

    async def test_with_a_version(self, docs, held):
        """What carries a version is not new."""
        with pytest.raises(ValueError, match="not new"):
            await docs.create(held)

    async def test_what_cant_be_encoded(self, docs, stored):
        """Nothing is sent then."""
        with pytest.raises(InvalidDocument):
            await docs.create({"a": object()})
        assert [] == list(stored.find())


class TestSave:
    async def test_says_the_new_version(self, docs, held, stored):
        """The result goes on where the document was."""
        saved = await docs.save(held | {"n": 1})
        again = await docs.save(saved.document | {"n": 2})
        assert docs.version_of({"n": 2}) == again.version
        assert [again.document] == list(stored.find())

    async def test_leaves_the_argument_alone(self, docs, held):
        """The given document is as it was."""
        given = held | {"n": 1}
        before = bson.encode(given)
        await docs.save(given)
        assert before == bson.encode(given)

    async def test_conflict(self, collection, held):
        """Who has won is told, with the document."""
        first = VersionedDocuments(collection, writer="first")
        won = await first.save(held | {"n": 1})
        second = VersionedDocuments(collection, writer="second")
        with pytest.raises(VersionConflict) as caught:
            await second.save(held | {"n": 2})
        conflict = caught.value
        assert "first" == conflict.stored_by
        assert won.version == conflict.stored_version
        assert won.document == conflict.stored_document
        assert first.version_of(held) == conflict.expected_version
        assert first.version_of({"n": 2}) == conflict.new_version
        assert not conflict.is_equal

    async def test_same_content_by_two(self, docs, held):
        """Two who count from 0 to 1 have counted twice: the second is told."""
        won = await docs.save(held | {"n": 1})
        with pytest.raises(VersionConflict) as caught:
            await docs.save(held | {"n": 1})
        assert caught.value.is_equal
        accepted = await docs.save(held | {"n": 1}, accept_equal=True)
        assert not accepted.written
        assert won.document == accepted.document

    async def test_without_changes(self, docs, held, stored):
        """What is stored already is not written."""
        saved = await docs.save(held)
        assert (False, held) == (saved.written, saved.document)
        assert [held] == list(stored.find())

    async def test_without_changes_but_lost(self, docs, held):
        """It is a conflict all the same, if somebody else has changed the document."""
        await docs.save(held | {"n": 1})
        with pytest.raises(VersionConflict):
            await docs.save(held)

    async def test_changed_and_changed_back(self, docs, held):
        """A content that returns is not the version that it was."""
        other = await docs.save(held | {"n": 1})
        back = await docs.save(other.document | {"n": 0})
        assert docs.version_of(held) == back.version
        with pytest.raises(VersionConflict) as caught:
            await docs.save(held | {"n": 5})
        assert caught.value.stored_version == caught.value.expected_version

    async def test_removed_fields(self, docs, held, stored):
        """The document is replaced as a whole."""
        await docs.save({"_id": 1, "_version": held["_version"], "m": 1})
        assert {"_id", "_version", "m"} == set(stored.find_one())

    async def test_deleted(self, docs, held):
        """A document that is gone is a conflict that says so."""
        await docs.delete(held)
        with pytest.raises(VersionConflict) as caught:
            await docs.save(held | {"n": 1})
        assert caught.value.is_deleted

    async def test_created_anew(self, docs, held):
        """A document that was deleted and created again is another one."""
        await docs.delete(held)
        await docs.create({"_id": 1, "n": 0})
        with pytest.raises(VersionConflict):
            await docs.save(held | {"n": 1})

    async def test_key(self, docs, held):
        """The same content with the same key is the same save, also after other saves."""
        first = await docs.save(held | {"n": 1}, key="request")
        again = await docs.save(held | {"n": 1}, key="request")
        assert first.document == again.document
        other = await docs.save(first.document | {"n": 9})
        for read in held, other.document:
            late = await docs.save(read | {"n": 1}, key="request")
            assert other.document == late.document
        with pytest.raises(VersionConflict):
            await docs.save(held | {"n": 2}, key="request")

    @pytest.mark.parametrize(("key", "error"), [("", ValueError), (1, TypeError)])
    async def test_bad_keys(self, docs, held, key, error):
        """A key is a text."""
        with pytest.raises(error):
            await docs.save(held, key=key)
        with pytest.raises(error):
            await docs.update(1, increment, key=key)

    @pytest.mark.parametrize(
        "document",
        [{}, {"_id": 1}, {"_id": 1, "_version": "v7"}, {"_id": 1, "_version": {"hash": "x"}}],
        ids=repr,
    )
    async def test_without_a_version(self, docs, document):
        """What was not read can't be saved."""
        with pytest.raises(ValueError, match=r"has no"):
            await docs.save(document)
        with pytest.raises(ValueError, match=r"has no"):
            await docs.delete(document)

    async def test_id_that_looks_like_an_operator(self, docs, held):
        """An id is a value."""
        with pytest.raises(VersionConflict) as caught:
            await docs.save(held | {"_id": {"$gte": 0}, "n": 1})
        assert caught.value.is_deleted
        with pytest.raises(VersionConflict):
            await docs.update({"$ne": None}, increment)

    async def test_deadline(self, docs, held, stored):
        """A deadline that is over sends nothing."""
        with pytest.raises(DeadlineExceeded):
            await docs.save(held | {"n": 1}, timeout=0)
        async with deadline(0):
            with pytest.raises(DeadlineExceeded):
                await docs.save(held | {"n": 1})
        assert [held] == list(stored.find())

    @pytest.mark.usefixtures("three_members")
    async def test_reads_the_primary(self, replica_set, collection, held):
        """Whatever the collection's read preference is."""
        elsewhere = collection.with_options(read_preference=ReadPreference.SECONDARY)
        primary = await replica_set.primary()
        async with replica_set.faults.watch("find", member=primary):  # must strike
            updated = await VersionedDocuments(elsewhere).update(1, lambda _document: None)
        assert held == updated.document


class TestUpdate:
    @pytest.mark.parametrize("kind", ["in place", "returned", "awaited"])
    async def test_kinds_of_changes(self, docs, held, stored, kind):
        """A change works in place, or returns a document, and may be awaited."""

        async def awaited(document):
            return document | {"n": 1}

        changes = {
            "in place": increment,
            "returned": lambda document: {"n": document["n"] + 1},
            "awaited": awaited,
        }
        updated = await docs.update(1, changes[kind])
        assert [updated.document] == list(stored.find())
        assert 1 == updated.document["n"]

    async def test_without_a_change(self, docs, held):
        """What stays as it is is not written."""
        updated = await docs.update(1, lambda _document: None)
        assert (False, held) == (updated.written, updated.document)

    async def test_again_after_a_conflict(self, docs, held):
        """The change is applied to what somebody else has saved meanwhile."""
        seen = []

        async def change(document):
            seen.append(document["n"])
            if len(seen) == 1:
                await docs.save(held | {"n": 10})
            return document | {"n": document["n"] + 1}

        updated = await docs.update(1, change)
        assert [0, 10] == seen
        assert 11 == updated.document["n"]

    async def test_key(self, docs, held):
        """A change with the same key is applied once."""
        first = await docs.update(1, increment, key="request")
        again = await docs.update(1, increment, key="request")
        assert (True, False) == (first.written, again.written)
        assert first.document == again.document
        assert 2 == (await docs.update(1, increment, key="other")).document["n"]

    async def test_key_beyond_the_history(self, collection):
        """A key is remembered for as many saves as the document remembers."""
        docs = VersionedDocuments(collection, history=2)
        await docs.create({"_id": 1, "n": 0})
        for key in "abca":
            await docs.update(1, increment, key=key)
        assert 4 == (await collection.find_one())["n"]

    async def test_key_that_comes_back(self, collection):
        """A version that was read long ago is not the one that a forgotten key has made anew."""
        docs = VersionedDocuments(collection, history=2)
        await docs.create({"_id": 1, "n": 0})
        held = (await docs.update(1, increment, key="k")).document
        for _ in range(3):
            await docs.update(1, increment)
        await docs.update(1, increment, key="k")
        with pytest.raises(VersionConflict):
            await docs.save(held | {"x": 1})
        with pytest.raises(VersionConflict):
            await docs.delete(held)
        assert 5 == (await collection.find_one())["n"]

    async def test_missing(self, docs):
        """A document that is not there can't be updated."""
        with pytest.raises(VersionConflict) as caught:
            await docs.update(1, increment)
        assert caught.value.is_deleted

    async def test_what_the_change_raises(self, docs, held, stored):
        """It is the caller's, and nothing is written."""
        with pytest.raises(ZeroDivisionError):
            await docs.update(1, lambda _document: 1 / 0)
        assert [held] == list(stored.find())

    async def test_what_is_no_document(self, docs, held):
        """A change that returns something else is refused."""
        with pytest.raises(TypeError):
            await docs.update(1, lambda _document: 5)

    async def test_change_that_touches_id_and_version(self, docs, held, stored):
        """They are none of its business."""
        updated = await docs.update(1, lambda _document: {"_id": 2, "_version": 3, "n": 1})
        assert [updated.document] == list(stored.find())
        assert (1, 1) == (updated.id, updated.document["n"])


class TestDelete:
    async def test_gone_already(self, docs, held, stored):
        """It is safe to repeat."""
        await docs.delete(held)
        await docs.delete(held)
        assert [] == list(stored.find())

    async def test_conflict(self, docs, held):
        """A version that nobody has read is not deleted."""
        won = await docs.save(held | {"n": 1})
        with pytest.raises(VersionConflict) as caught:
            await docs.delete(held)
        assert won.document == caught.value.stored_document
        assert caught.value.new_version is None


class TestFields:
    @pytest.mark.parametrize("choice", [{"fields": ["n"]}, {"ignored": ["seen"]}], ids=str)
    async def test_what_does_not_count(self, collection, stored, choice):
        """It is stored when the document is created, and left alone ever after."""
        docs = VersionedDocuments(collection, **choice)
        held = (await docs.create({"_id": 1, "n": 0, "seen": 0})).document
        await collection.update_one({"_id": 1}, {"$inc": {"seen": 5}})
        saved = await docs.save(held | {"n": 1, "seen": 1})
        assert docs.version_of({"n": 1, "seen": 9}) == saved.version
        assert {**saved.document, "seen": 5} == stored.find_one()
        assert docs.verify(stored.find_one())
        assert not (await docs.save(stored.find_one() | {"seen": 7})).written

    @pytest.mark.parametrize("choice", [{"fields": ["n", "m"]}, {"ignored": ["seen"]}], ids=str)
    async def test_removed_fields(self, collection, stored, choice):
        """A field that counts and is gone from the document is removed."""
        docs = VersionedDocuments(collection, **choice)
        held = (await docs.create({"_id": 1, "n": 0, "m": {"$x": 1}})).document
        del held["n"]
        held["m"] = {"a.b": "$n"}
        saved = await docs.save(held)
        assert saved.document == stored.find_one()

    async def test_other_version_field(self, collection, stored):
        """The version has the field that was chosen."""
        docs = VersionedDocuments(collection, version_field="etag")
        created = await docs.create({"_version": "mine"})
        saved = await docs.save(created.document | {"_version": "yours"})
        assert saved.document == stored.find_one()
        assert saved.version == saved.document["etag"]["hash"]


class TestOldData:
    @pytest.fixture(params=["sha1:", ""])
    async def old(self, request, docs, collection):
        """A document whose version is a mere SHA-1."""
        digest = content_hash({"n": 1}, "sha1").removeprefix("sha1:")
        document = {"_id": 1, "n": 1, "_version": request.param + digest}
        await collection.insert_one(document)
        return document

    async def test_is_verified(self, docs, old):
        """It is compared by its own algorithm."""
        assert docs.verify(old)
        assert not docs.verify(old | {"n": 2})

    @pytest.mark.parametrize("n", [1, 2])
    async def test_save(self, docs, old, stored, n):
        """The next save makes it SHA-256, with changes or without."""
        saved = await docs.save(old | {"n": n})
        assert saved.version.startswith("sha256:")
        assert [saved.document] == list(stored.find())
        with pytest.raises(VersionConflict):
            await docs.save(old | {"n": 3})

    async def test_changed_back(self, docs, old):
        """An old version never returns."""
        saved = await docs.save(old | {"n": 2})
        await docs.save(saved.document | {"n": 1})
        with pytest.raises(VersionConflict):
            await docs.save(old | {"n": 3})

    async def test_update_and_delete(self, docs, old):
        """It can be updated, and deleted."""
        updated = await docs.update(1, increment)
        with pytest.raises(VersionConflict):
            await docs.delete(old)
        await docs.delete(updated.document)

    async def test_create_again(self, docs, old):
        """Creating it again finds it."""
        again = await docs.create({"_id": 1, "n": 1})
        assert (False, old) == (again.written, again.document)
        with pytest.raises(VersionConflict):
            await docs.create({"_id": 1, "n": 2})

    async def test_in_the_index(self, docs, old, collection):
        """Old documents don't stand in the way of a unique index."""
        await collection.insert_one({"_id": 2, "_version": old["_version"]})
        assert "_version.hash_1" == await docs.create_index(unique=True)


class TestValues:
    @pytest.fixture
    def exact(self, collection):
        """Documents whose values have a codec of the user's."""
        options = CodecOptions(
            type_registry=TypeRegistry([DecimalCodec()]),
            uuid_representation=UuidRepresentation.STANDARD,
        )
        return collection.with_options(codec_options=options)

    async def test_type_codecs(self, exact):
        """What counts is what is stored."""
        docs = VersionedDocuments(exact)
        content = {"price": Decimal("1.10"), "token": uuid.UUID(int=5)}
        created = await docs.create(content)
        read = await exact.find_one()
        assert docs.verify(read)
        assert not (await docs.create(content)).written
        saved = await docs.save(read | {"price": Decimal("1.20")})
        assert saved.document == await exact.find_one()
        assert created.version != saved.version

    async def test_raw_documents(self, collection, stored):
        """A collection of raw documents has versioned ones too."""
        raw = collection.with_options(codec_options=CodecOptions(document_class=RawBSONDocument))
        docs = VersionedDocuments(raw)
        await docs.create(RawBSONDocument(bson.encode({"_id": 1, "n": 0})))
        updated = await docs.update(1, lambda document: {**document, "n": 1})
        read = await raw.find_one()
        assert docs.verify(read)
        assert not (await docs.save(read)).written
        assert updated.version == docs.version_of(read)
        await docs.save({**read, "n": 2})
        with pytest.raises(VersionConflict):
            await docs.delete(read)
        assert 2 == stored.find_one()["n"]

    async def test_changes_while_it_is_saved(self, docs, held, stored):
        """What is changed after the call is not stored."""
        given = {**held, "list": [1]}
        saving = asyncio.ensure_future(docs.save(given))
        await asyncio.sleep(0)  # the task has begun
        given["list"].append(2)
        await saving
        assert [1] == stored.find_one()["list"]
        assert docs.verify(stored.find_one())


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"history": 0}, ValueError),
            ({"history": 1.5}, TypeError),
            ({"history": True}, TypeError),
            ({"writer": 5}, TypeError),
            ({"version_field": "a.b"}, ValueError),
            ({"fields": ["a"], "ignored": ["b"]}, ValueError),
        ],
    )
    async def test_bad_options(self, collection, options, error):
        """What can't be meant is refused."""
        with pytest.raises(error):
            VersionedDocuments(collection, **options)

    async def test_unacknowledged(self, collection):
        """Writes that nobody acknowledges can't be compared."""
        unheard = collection.with_options(write_concern=WriteConcern(w=0))
        with pytest.raises(ConfigurationError):
            VersionedDocuments(unheard)

    async def test_verify_without_a_version(self, docs):
        """A document without a version does not fit it."""
        assert not docs.verify({"_id": 1})

    async def test_verify_finds_other_writers(self, docs, held, collection):
        """A write by other means is found."""
        assert docs.verify(held)
        await collection.update_one({"_id": 1}, {"$set": {"n": 7}})
        assert not docs.verify(await collection.find_one())
