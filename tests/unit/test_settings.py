"""Which database is meant, and what of it is never shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sokka_pg import settings
from sokka_pg.errors import BadArgument, UsageError

EVERYTHING = {
    "SOKKA_DATABASE_URL": "postgresql://one",
    "DATABASE_URL": "postgresql://two",
    "PGHOST": "three",
}


def test_the_first_that_is_set_names_the_database() -> None:
    env = dict(EVERYTHING)
    seen = []
    explicit: str | None = "postgresql://zero"
    while (found := settings.lookup(explicit, env)) is not None:
        seen.append((found.conninfo, found.source))
        if explicit:
            explicit = None
        else:
            env.pop(next(iter(env)))
    assert seen == [
        ("postgresql://zero", "--database-url"),
        ("postgresql://one", "SOKKA_DATABASE_URL"),
        ("postgresql://two", "DATABASE_URL"),
        ("", "PG* variables"),
    ]


def test_an_empty_variable_counts_as_unset() -> None:
    assert settings.lookup(None, dict.fromkeys(EVERYTHING, "")) is None


@pytest.mark.parametrize("name", ["PGPASSWORD", "PGSSLMODE", "PGAPPNAME"])
def test_a_variable_that_names_no_place_is_not_enough(name: str) -> None:
    assert settings.lookup(None, {name: "x"}) is None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@h:5/d?sslmode=require",
        "postgres://u:p@h:5/d?sslmode=require",
        "postgresql+psycopg://u:p@h:5/d?sslmode=require",
        "postgres+psycopg2://u:p@h:5/d?sslmode=require",
        "postgresql+asyncpg://u:p@h:5/d?sslmode=require",
        "  postgresql://u:p@h:5/d?sslmode=require\n",
    ],
)
def test_other_tools_spellings_of_a_url_are_taken(url: str) -> None:
    assert settings.normalise(url) == "postgresql://u:p@h:5/d?sslmode=require"


@pytest.mark.parametrize("text", ["host=h dbname=d", "postgresql://", "service=main"])
def test_whatever_libpq_takes_is_taken(text: str) -> None:
    assert settings.normalise(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "   ", "mysql://u:hunter2@h/d", "http://hunter2@h", "hunter2", "host=h hunter2",
        "postgresql://u:hunter2@h/d?nonsense=1", "postgresql://u:hunter2@[h/d", "user='hunter2",
        "postgresql://u:hunter2%zz@h/d", "password=hunter2 pass\x00word=hunter2", "\ud800hunter2",
    ],
    ids=ascii,
)  # fmt: skip
def test_a_malformed_connection_string_is_never_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings.lookup(None, {"DATABASE_URL": text or " "})
    assert str(caught.value).startswith("DATABASE_URL: ")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:hunter2@h:5/d", "postgresql://u:***@h:5/d"),
        ("at postgresql://u:hun@ter2@h/d now", "at postgresql://u:***@h/d now"),
        ("postgresql+psycopg://u:hun/ter2:@h/d", "postgresql+psycopg://u:***@h/d"),
        ("postgresql://u@h/d?password=hunter2&x=1", "postgresql://u@h/d?password=***&x=1"),
        ("host=h password=hunter2 dbname=d", "host=h password=*** dbname=d"),
        ("PASSWORD = 'hun ter\\'2' host=h", "PASSWORD = *** host=h"),
        ("sslpassword=hunter2", "sslpassword=***"),
        ("password='hunter2", "password=***"),
        ("postgresql://h/d and no secret", "postgresql://h/d and no secret"),
    ],
)
def test_the_redactor_hides_the_password_and_nothing_else(text: str, shown: str) -> None:
    assert settings.redact(text) == shown
    assert settings.redact(shown) == shown


BLANKS = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f"


@given(st.text(st.characters(codec="ascii", exclude_characters=BLANKS), min_size=1))
def test_no_password_passes_the_redactor_in_a_url(password: str) -> None:
    shown = settings.redact(f"postgresql://user:{password}@host/base")
    assert shown == "postgresql://user:***@host/base"


def test_the_schema_is_named_by_option_then_variable_then_default() -> None:
    env = {"SOKKA_SCHEMA": "jobs"}
    assert settings.schema_name("mine", env) == "mine"
    assert settings.schema_name(None, env) == "jobs"
    assert settings.schema_name(None, {}) == "sokka"
    with pytest.raises(BadArgument):
        settings.schema_name(None, {"SOKKA_SCHEMA": "No"})
