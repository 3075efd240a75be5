"""What errors of the database are answered with."""

from pymongo.errors import PyMongoError

from aioretry import Deadline
from aioretry._web.problems import Problem, ProblemError, log_problem, page_of, problem_of
from aioretry.asgi._connection import (
    DEADLINE,
    ASGIApp,
    Message,
    Receive,
    Scope,
    Send,
    name_of,
    problem_response,
)


class ProblemMiddleware:
    """Answers what databases raise with problem details (RFC 9457); the page on frameworks lists
    them.

    All other errors, such as a duplicate key, are the application's, and so are those of websockets
    and of a response that has begun. A group of errors is answered if all in it would be answered
    the same. The error behind an answer is logged, by its classes and codes.

    Args:
        app: The application.
        documentation: The URL of a page that explains problems, for ``type`` and ``Link``.

    Raises:
        TypeError: ``documentation`` is neither a str nor None.
        ValueError: ``documentation`` is no URL of a page.
    """

    def __init__(self, app: ASGIApp, *, documentation: str | None = None) -> None:
        self._app = app
        self._page = page_of(documentation)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def send_on(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        except ProblemError as exc:
            if has_begun:
                raise
            problem = exc.problem
        except (PyMongoError, TimeoutError, ExceptionGroup) as exc:
            found = None if has_begun else problem_of_request(scope, exc)
            if found is None:
                raise
            problem = found
        else:
            return
        await problem_response(problem, self._page)(scope, receive, send)


def problem_of_request(scope: Scope, error: Exception) -> Problem | None:
    """Return what an error means to who has sent a request, and log it; None if it is not known."""
    limit: Deadline | None = scope.get(DEADLINE)
    problem = problem_of(error, scope["method"], is_over=limit is not None and limit.is_over)
    if problem is not None:
        log_problem(problem, name_of(scope), error)
    return problem
