"""The Idempotency-Key of a request."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aioretry._faces import Session
from aioretry._web.keys import KeyOfRequest, database_of
from aioretry._web.problems import Problem, ProblemError
from aioretry._web.requests import KEY_HEADER, joined, key_of
from aioretry.asgi._connection import Response, Scope, fields_of
from aioretry.asgi._lifespan import client_of


class CallerKey(KeyOfRequest):
    """The Idempotency-Key of a request; for :meth:`once`, or ``collection.operation(key=...)``."""

    async def once(
        self, work: Callable[[Session], Awaitable[Any]], *, status: int = 200
    ) -> Response:
        """Do the work of a request once, and answer each repetition the same.

        Its writes and its answer are one transaction. Of requests at once one does the work, and
        the others wait for it. If the work raises, nothing is applied or stored; whatever it
        returns is, a response with the status of an error too. Errors of the database have to
        leave the work: they have ended its transaction.

        Args:
            work: Awaited with the session that each of its reads and writes has to be given;
                returns a :class:`Response`, or what becomes the JSON of one. It may be run more
                than once.
            status: The status of that one. With 204, 205 or 304 there is no body.

        Returns:
            The response, with ``Idempotent-Replayed: true`` if another request has done the work.

        Raises:
            IdempotencyConflict: The key was used for another request.
            KeyInUseError: Another request with the key has not ended before the deadline.
            DeadlineExceeded: The deadline is over.
            InvalidOperation: The key was used already, in this request; or the work has caught an
                error of the database, or was called within other work. Nothing is applied.
            TypeError: The work returned what JSON does not know.
            Exception: Whatever the work raised.
        """

        async def whole(session: Session) -> Response:
            answer = await work(session)
            if isinstance(answer, Response):
                return answer
            headers = ((b"content-type", b"application/json"),)
            return Response(status, headers, json.dumps(answer).encode())

        kept = await self._kept(whole)
        return Response(kept.status, kept.headers, kept.body)


def idempotency_key(
    *,
    scope: Callable[[Scope], Awaitable[str]],
    database: str | None = None,
    required: bool = True,
) -> Callable[[Scope, bytes], Awaitable[CallerKey]]:
    """Return what gives a request's key: ``key = await key_of(request.scope, body)``.

    It is read from the header field Idempotency-Key (draft-ietf-httpapi-idempotency-key-header): a
    string in quotes, or a token, of at most 255 characters. The key belongs to the caller, and
    stands for the request's method, path, query and body.

    Args:
        scope: Says who calls, such as a tenant or a user, by the connection's scope; the keys of
            two callers are never the same. It has to be somebody whom you have authenticated:
            whoever can say that they are another one gets the answers of that one.
        database: Where answers are kept; None is the database that the URI names.
        required: Whether a request without a key is answered with 400. If not, its work is done
            all the same, and no answer is kept: whoever repeats it has it done again.

    Returns:
        A function of the scope of a request and its whole body. It raises :class:`ProblemError`
        (400) for a key that is missing or wrong.

    Raises:
        TypeError: ``scope`` can't be called.
    """
    if not callable(scope):
        raise TypeError(f"scope must be a callable, not {scope!r}")

    async def key_of_request(request: Scope, body: bytes) -> CallerKey:
        client, keys = client_of(request), request.get("state", {}).get("mongodb_keys")
        if client is None or keys is None:
            raise RuntimeError("there are no keys: mongodb_lifespan(uri, keys=Keys(...)) has them")
        caller = await scope(request)
        key = key_of(fields_of(request, KEY_HEADER), required=required)
        if isinstance(key, Problem):
            raise ProblemError(key.status, key.reason, key.detail)
        stands_for = joined(
            request["method"], request["path"], request.get("query_string", b""), body
        )
        return CallerKey(keys, database_of(client, database), caller, key, stands_for)

    return key_of_request
