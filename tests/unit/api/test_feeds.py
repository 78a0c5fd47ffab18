from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pytest

from squall.api.errors import ConfigError
from squall.api.feeds import Feed, FeedCursor, FeedExhausted


@dataclass
class User:
    name: str
    age: int


class Item(msgspec.Struct):
    sku: int
    title: str = "none"


class Point(TypedDict):
    x: int
    y: int


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text, encoding="utf-8")


def refused(feed: Feed[Any], folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        feed.load(folder)
    return str(caught.value)


def test_csv_rows_become_the_row_type(tmp_path: Path) -> None:
    write(tmp_path, "users.csv", "name,age\nada,36\nbob,7\n")
    assert Feed("users.csv", User).load(tmp_path) == [User("ada", 36), User("bob", 7)]


def test_without_a_row_type_csv_rows_are_dicts_of_text(tmp_path: Path) -> None:
    write(tmp_path, "users.csv", "name,age\nada,36\n")
    assert Feed("users.csv").load(tmp_path) == [{"name": "ada", "age": "36"}]


def test_csv_of_spreadsheets_is_read(tmp_path: Path) -> None:
    text = '\ufeffname, age\r\n"da, vinci",67\r\n\r\n"two\r\nlines",1\r\n'
    (tmp_path / "users.csv").write_bytes(text.encode())
    rows = Feed("users.csv", User).load(tmp_path)
    assert rows == [User("da, vinci", 67), User("two\r\nlines", 1)]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_csv_has_the_delimiter_that_the_feed_names(delimiter: str, tmp_path: Path) -> None:
    text = f'name{delimiter}age\n"a,b"{delimiter}36\n'
    (tmp_path / "users.csv").write_text(text, encoding="utf-8")
    assert Feed("users.csv", User, delimiter=delimiter).load(tmp_path) == [User("a,b", 36)]


def test_json_and_json_lines_are_read(tmp_path: Path) -> None:
    write(tmp_path, "a.json", '[{"sku": 1}, {"sku": 2, "title": "b"}]')
    write(tmp_path, "a.jsonl", '{"sku": 1}\n\n{"sku": 2, "title": "b"}\n')
    write(tmp_path, "a.ndjson", '{"sku": 1}\r\n{"sku": 2, "title": "b"}')
    for name in ("a.json", "a.jsonl", "a.ndjson"):
        assert Feed(name, Item).load(tmp_path) == [Item(1), Item(2, "b")]


def test_a_list_is_taken_as_it_is_or_converted(tmp_path: Path) -> None:
    assert Feed([3, 4]).load(tmp_path) == [3, 4]
    points: list[Point] = Feed([{"x": 1, "y": 2}], Point).load(tmp_path)
    assert points == [{"x": 1, "y": 2}]
    users = [User("ada", 36)]
    assert Feed(users, User).load(tmp_path)[0] is users[0]


def test_paths_start_at_the_folder_of_the_authors_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path, "data/users.csv", "name,age\nada,36\n")
    assert len(Feed("data/users.csv", User).load(tmp_path)) == 1
    assert len(Feed(Path("users.csv"), User).load(tmp_path / "data")) == 1
    assert len(Feed(tmp_path / "data" / "users.csv", User).load("/nowhere")) == 1


def test_a_bad_csv_line_is_named(tmp_path: Path) -> None:
    write(tmp_path, "users.csv", 'name,age\nada,36\n"two\nlines",1\nbob,x\n')
    text = refused(Feed("users.csv", User), tmp_path)
    assert text == "users.csv:5: Expected int, got str - at $.age"


def test_a_csv_row_over_several_lines_is_named_by_its_first(tmp_path: Path) -> None:
    write(tmp_path, "users.csv", 'name,age\n"two\nlines",x\n')
    assert refused(Feed("users.csv", User), tmp_path).startswith("users.csv:2: ")


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.csv", "sku,title\n1\n", "a.csv:2: 1 values for 2 columns"),
        ("a.csv", "sku,sku\n1,2\n", "a.csv:1: two columns have the same name"),
        ("a.csv", 'sku\n"1\n', "a.csv:2: unexpected end of data"),
        ("a.json", '[{"sku": 1}, {"sku": "2"}]', "a.json[1]: Expected int, got str - at $.sku"),
        ("a.json", '{"sku": 1}', "a.json: Expected a list of rows, [{...}, ...]"),
        ("a.jsonl", '{"sku": 1}\n\n{"sku": }', "a.jsonl:3: JSON is malformed"),
        ("a.jsonl", '{"sku": 1}\n{}', "a.jsonl:2: Object missing required field sku"),
        ("a.csv", "sku\n", "feed rows: a.csv has no rows"),
        ("a.csv", "", "feed rows: a.csv has no rows"),
        ("a.txt", "x", "feed rows: a.txt has an unknown type; use .csv, .json or .jsonl"),
    ],
)
def test_a_file_that_does_not_fit_is_an_error_that_says_where(
    tmp_path: Path, name: str, content: str, error: str
) -> None:
    write(tmp_path, name, content)
    feed = Feed(name, Item)
    feed.__set_name__(object, "rows")
    assert refused(feed, tmp_path).startswith(error)


def test_a_file_in_another_encoding_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("title\na\nä\n".encode("latin-1"))
    assert refused(Feed("a.csv"), tmp_path) == "a.csv:3: not UTF-8; save the file as UTF-8"


def test_a_missing_file_is_named_with_the_folder(tmp_path: Path) -> None:
    text = refused(Feed("users.csv", User), tmp_path)
    assert "no file users.csv" in text and str(tmp_path) in text


def test_a_folder_in_place_of_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    assert "a.csv" in refused(Feed("a.csv"), tmp_path)


def test_rows_of_json_without_a_type_must_have_names(tmp_path: Path) -> None:
    write(tmp_path, "a.json", "[1]")
    assert refused(Feed("a.json"), tmp_path).startswith("a.json[0]: ")


def test_a_bad_row_of_a_list_is_named_by_its_place(tmp_path: Path) -> None:
    assert "[1]: Expected int" in refused(Feed([{"sku": 1}, {"sku": "x"}], Item), tmp_path)


def test_a_row_type_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    class Plain:
        pass

    assert "Plain" in refused(Feed([{"x": 1}], Plain), tmp_path)


def test_unknown_words_are_refused_when_the_class_is_made() -> None:
    with pytest.raises(ConfigError, match='Feed per "user"'):
        Feed("a.csv", per="user")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match='"cycle", "random" or "once"'):
        Feed("a.csv", take="all")  # type: ignore[call-overload]


class Login:
    user = Feed([User("ada", 36)], User, take="once")


def test_on_the_class_the_feed_itself_is_found() -> None:
    assert isinstance(Login.user, Feed)
    assert (Login.user.name, Login.user.per, Login.user.take) == ("user", "iteration", "once")
    assert Login.user.path is None
    assert Feed("users.csv").path == "users.csv"


def test_a_row_in_the_instances_dict_wins_over_the_descriptor() -> None:
    login = Login()
    login.__dict__["user"] = User("bob", 7)
    assert login.user.name == "bob"
    assert not hasattr(Feed, "__set__")


def test_before_the_first_row_the_error_says_when_there_is_one() -> None:
    with pytest.raises(AttributeError, match=r"^Login\.user has no row yet"):
        _ = Login().user


# Cursors


def rows_of(cursor: FeedCursor[int], count: int) -> list[int]:
    return [cursor.next() for _ in range(count)]


def test_a_cycle_repeats_the_rows_of_its_share() -> None:
    assert rows_of(FeedCursor(range(5), "cycle", 0, 2), 5) == [0, 2, 4, 0, 2]
    assert rows_of(FeedCursor(range(5), "cycle", 1, 2), 5) == [1, 3, 1, 3, 1]


def test_a_cycle_with_more_shares_than_rows_gives_every_share_one() -> None:
    assert [FeedCursor(range(2), "cycle", k, 5).next() for k in range(5)] == [0, 1, 0, 1, 0]


def test_once_gives_every_row_to_exactly_one_share_and_ends() -> None:
    given: list[int] = []
    for share in range(4):
        cursor = FeedCursor(range(10), "once", share, 4)
        given += rows_of(cursor, len(range(share, 10, 4)))
        for _ in range(2):
            with pytest.raises(FeedExhausted):
                cursor.next()
    assert sorted(given) == list(range(10))


def test_once_with_more_shares_than_rows_ends_at_once_where_there_is_none() -> None:
    with pytest.raises(FeedExhausted):
        FeedCursor(range(2), "once", 3, 4).next()


def test_random_draws_from_all_rows_and_repeats_with_the_seed() -> None:
    first = rows_of(FeedCursor(range(9), "random", 1, 4, random.Random(7)), 500)
    again = rows_of(FeedCursor(range(9), "random", 1, 4, random.Random(7)), 500)
    assert first == again
    assert set(first) == set(range(9))


def test_a_cursor_refuses_a_share_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="share 2 of 2"):
        FeedCursor([1], "cycle", 2, 2)
    with pytest.raises(ValueError, match="needs rows"):
        FeedCursor([], "cycle")
