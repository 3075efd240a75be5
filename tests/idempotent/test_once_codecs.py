"""Answers of work that is done once, in the codec options of their database."""

import datetime as dt
import decimal
import uuid

from bson import Decimal128
from bson.codec_options import CodecOptions, TypeCodec, TypeRegistry
from bson.son import SON

from aioretry.idempotent import Keys
from tests.idempotent.keyed import NAMESPACE, SECRET


class Decimals(TypeCodec):
    """Python's decimal numbers."""

    python_type = decimal.Decimal
    bson_type = Decimal128

    def transform_python(self, value):
        return Decimal128(value)

    def transform_bson(self, value):
        return value.to_decimal()


async def answers(collection, options, answer):
    """What the call that does the work gets, and one that comes later."""
    keys = Keys(SECRET, NAMESPACE, answer_records=f"{collection.name}.answers")
    database = collection.database.with_options(codec_options=options)

    async def work(session):
        await collection.insert_one({}, session=session)
        return answer

    return [(await keys.once("a key", work, database=database)).value for _ in range(2)]


async def test_a_uuid(collection):
    """A UUID is what it is elsewhere in a database with a representation of UUIDs."""
    given = {"id": uuid.uuid4()}
    options = CodecOptions(uuid_representation=4)
    assert [given, given] == await answers(collection, options, given)


async def test_times_with_zones(collection):
    """Times come back with a zone where those of the database do."""
    given = {"at": dt.datetime(2026, 11, 22, tzinfo=dt.UTC)}
    options = CodecOptions(tz_aware=True)
    assert [given, given] == await answers(collection, options, given)


async def test_types_of_the_users(collection):
    """So do types of the user's own, and documents of the user's class."""
    given = {"price": decimal.Decimal("9.90")}
    options = CodecOptions(document_class=SON, type_registry=TypeRegistry([Decimals()]))
    found = await answers(collection, options, given)
    assert [given, given] == [dict(each) for each in found]
    assert [SON, SON] == [type(each) for each in found]
