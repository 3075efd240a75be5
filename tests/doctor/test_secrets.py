"""What the doctor never tells."""

import pytest

from aioretry._doctor.secrets import has_credentials, is_clear, without_secrets

HIDDEN = [
    ("mongodb://me:hush-hush@h:1/", "wrong: hush-hush", "wrong: ***"),
    ("mongodb://me:hu%2Fsh-hush@h:1/", "wrong: hu/sh-hush", "wrong: ***"),
    ("mongodb://me:hu%2Fsh-hush@h:1/", "wrong: hu%2Fsh-hush", "wrong: ***"),
    ("mongodb+srv://me:hush-hush@h/db", "mongodb+srv://me:hush-hush@h/db?", "***?"),
    ("mongodb://me:a@h:1/", "refused at a host", "refused at *** host"),
    ("mongodb://me:hu@sh-hush@h:1/", "no hu@sh-hush", "no ***"),
    ("mongodb://me:hush-hush@h/?appName=a@b", "no hush-hush", "no ***"),
    ("mongodb://me:hush/hush@h/?appName=a@b", "no hush/hush", "no ***"),
    ("mongodb://me:12345/hush-hush@h", "me:12345/hush-hush", "***"),
    (
        "mongodb://h:1/?tlsCertificateKeyFilePassword=hush-hush&w=1",
        "no hush-hush",
        "no ***",
    ),
    (
        "mongodb://h:1/?w=1&authMechanismProperties=AWS_SESSION_TOKEN:hush-hush",
        "no AWS_SESSION_TOKEN:hush-hush",
        "no ***",
    ),
]


@pytest.mark.parametrize(("uri", "text", "told"), HIDDEN)
def test_is_hidden(uri, text, told):
    """A password is, in any form; short ones where they stand alone."""
    assert told == without_secrets(text, uri)
    assert has_credentials(uri)


@pytest.mark.parametrize(
    ("uri", "is_so"),
    [
        ("mongodb://me:hush@h:1/", True),
        ("mongodb://me@h:1/", True),
        ("mongodb://me:hu%2Fsh@h,g/?w=1", True),
        ("mongodb://h:1/", True),
        ("mongodb://me:hush@h/?appName=a@b&w=1", True),
        ("mongodb://h/?w=1&appName=a@b", True),
        ("mongodb://h?appName=a@b", False),
        ("mongodb://me:12345/sh@h", False),
        ("mongodb://me:12345?sh@h", False),
        ("mongodb://me:12345/?sh@h", False),
        ("mongodb://me:hu@sh/sh@h/", False),
        ("mongodb://me:hu/sh@h:1/", False),
        ("mongodb://me:hu:sh@h:1/", False),
        ("mongodb://me:hu@sh@h:1/", False),
        ("mongodb://me:hu%sh@h:1/", False),
        ("me:hush@h", False),
    ],
)
def test_what_is_clear(uri, is_so):
    """Where characters are not encoded, nobody knows what the password is."""
    assert is_so is is_clear(uri)


@pytest.mark.parametrize(
    "uri", ["mongodb://h:1,g:2/?replicaSet=rs0", "h", "mongodb://h/?appName=a@b"]
)
def test_nothing_to_hide(uri):
    """Without credentials a text stays as it is."""
    assert not has_credentials(uri)
    assert "rs0 refused h" == without_secrets("rs0 refused h", uri)
