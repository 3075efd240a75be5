"""Who is taken for silent, and who is not."""

import math

import pytest

from aioretry._drivers.engine.silence import LOOK_EVERY, Silence, Use

HOST = ("host", 27017)
LIMIT = 3.0


class Context:
    """What PyMongo cancels."""

    def __init__(self):
        self.cancelled = False


class World:
    """A server that is looked at as often as it should be."""

    def __init__(self, limit=LIMIT):
        self.silence = Silence(limit)
        self.now = 100.0
        self.contexts = {Context()}
        self.is_known = True
        self.asked = 0
        self.heard = -math.inf
        self.slack = 0.0

    def look(self, *, answers=True):
        """Look once; return whether the server is silent.

        Args:
            answers: Whether a question is answered; None if the driver gives it up at once.
        """
        use = Use(frozenset(self.contexts), self.is_known, self.heard)
        in_use = {HOST: use} if self.contexts else {}
        to_ask, silent = self.silence.look(self.now, in_use, self.slack)
        self.asked += len(to_ask)
        if answers is None:
            self.silence.unanswered(HOST)
        elif answers and to_ask:
            self.silence.answered(HOST, self.now, is_well=True)
        self.now += LOOK_EVERY
        return silent == [HOST]

    def silent_after(self, seconds=60.0, **others):
        """Return after how many seconds of looking it is silent; infinity if it is not."""
        began = self.now
        while self.now - began < seconds:
            if self.look(**others):
                return self.now - LOOK_EVERY - began
        return math.inf


@pytest.fixture
def world():
    """A server that has answered once."""
    world = World()
    world.look()
    return world


def test_a_slow_command_at_a_server_that_answers_is_no_silence(world):
    assert math.inf == world.silent_after(600)
    assert 500 <= world.asked <= 601


def test_who_does_not_answer_is_silent(world):
    assert LIMIT <= world.silent_after(answers=False) <= LIMIT + 1 + LOOK_EVERY


def test_a_question_that_the_driver_gives_up_is_no_answer(world):
    assert LIMIT <= world.silent_after(answers=None) <= LIMIT + 1 + LOOK_EVERY
    assert world.asked > 10


def test_an_answer_counts_after_a_question_that_was_given_up(world):
    assert math.inf == world.silent_after(LIMIT, answers=None)
    assert math.inf == world.silent_after(LIMIT - LOOK_EVERY)
    assert LIMIT <= world.silent_after(answers=None) <= LIMIT + 1 + LOOK_EVERY


def test_who_answers_somebody_else_is_not_silent(world):
    """Although no new connection is answered, over which it could be asked."""
    for _ in range(100):
        world.heard = world.now
        assert not world.look(answers=False)
    assert LIMIT - LOOK_EVERY <= world.silent_after(answers=False) <= LIMIT


def test_a_slow_loop_takes_longer_to_ask(world):
    world.slack = 6.0
    assert LIMIT + 6 <= world.silent_after(answers=False) <= LIMIT + 7 + LOOK_EVERY


def test_who_was_never_connected_to_has_longer():
    assert LIMIT + 2 <= World().silent_after(answers=False) <= LIMIT + 2 + LOOK_EVERY


def test_who_was_deposed_has_less_time(world):
    world.is_known = False
    assert 1 <= world.silent_after(answers=False) <= 2 + LOOK_EVERY


def test_a_shorter_limit_counts_for_the_deposed_too():
    world = World(limit=0.5)
    world.look()
    world.is_known = False
    assert world.silent_after(answers=False) <= 1.5 + LOOK_EVERY


def test_without_a_limit_nobody_is_silent():
    world = World(limit=math.inf)
    assert math.inf == world.silent_after(600, answers=False)


def test_nobody_is_asked_while_nobody_waits(world):
    world.contexts.clear()
    assert math.inf == world.silent_after(answers=False)
    assert 1 == world.asked


def test_somebody_who_gets_an_answer_shows_that_it_lives(world):
    for _ in range(20):
        waited = [Context(), Context()]
        world.contexts.update(waited)
        assert math.inf == world.silent_after(1.5, answers=False)
        world.contexts.difference_update(waited)


def test_somebody_who_gives_up_shows_nothing(world):
    """Their connections were closed, by a deadline or a cancellation."""
    seconds = 0.0
    while seconds < LIMIT + 2:
        waiting = Context()
        world.contexts.add(waiting)
        if math.inf != world.silent_after(0.5, answers=False):
            break
        waiting.cancelled = True
        world.contexts.remove(waiting)
        seconds += 0.5
    assert LIMIT - 0.5 <= seconds <= LIMIT + 1


def test_who_is_used_for_a_moment_only_shows_nothing(world):
    """A command that can't be encoded is not sent, and its connection is given back."""
    seconds = 0.0
    while seconds < LIMIT + 2:
        brief = Context()
        world.contexts.add(brief)
        if world.look(answers=False):
            break
        world.contexts.remove(brief)
        seconds += LOOK_EVERY
    assert LIMIT <= seconds <= LIMIT + 1 + LOOK_EVERY


def test_a_client_that_was_away_has_heard_nothing(world):
    """It was stopped, or its loop was blocked, and the answer waits to be read."""
    for _ in range(10):
        assert math.inf == world.silent_after(1.5, answers=False)
        world.now += 30
        assert not world.look(answers=False)
        world.silence.answered(HOST, world.now, is_well=True)


def test_an_error_is_no_silence(world):
    for _ in range(100):
        world.look(answers=False)
        world.silence.answered(HOST, world.now, is_well=False)
    assert math.inf == world.silent_after(2, answers=False)


def test_who_is_freed_once_is_asked_again(world):
    first = world.silent_after(answers=False)
    assert first < math.inf
    asked = world.asked
    assert LIMIT <= world.silent_after(answers=False) < math.inf
    assert world.asked > asked
