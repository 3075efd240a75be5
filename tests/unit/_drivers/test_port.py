"""The moment of sending."""

from aioretry._drivers.port import Token


class TestToken:
    def test_sending_wins_once(self):
        """Once it is sending it can't be revoked."""
        token = Token()
        assert token.begin_sending()
        assert (False, True) == (token.revoke(), token.is_sending)

    def test_revoked_wins_once(self):
        """Once it is revoked nothing is sent."""
        token = Token()
        assert token.revoke()
        assert (False, False) == (token.begin_sending(), token.is_sending)
