"""Tables of names and numbers."""

from magnetar.cli.administration.show import plain, size, table


def test_tables_align_names_left_and_numbers_right() -> None:
    assert table(("name", "count", "rate"), [("a", 5, 1.25), ("long name", 1200, 0.0)]) == [
        "name       count  rate",
        "a              5   1.2",
        "long name   1200   0.0",
    ]
    assert table(("name", "on"), []) == ["name  on"]
    assert table(("name", "on"), [(None, True)]) == ["name  on", "      yes"]


def test_no_name_moves_the_cursor() -> None:
    assert plain("a\x1b[2Jb\n") == "a\\x1b[2Jb\\x0a"
    assert table(("n",), [("\x07",)]) == ["n", "\\x07"]


def test_sizes() -> None:
    assert [size(value) for value in (0, 2048, -1, None)] == ["0 B", "2.0 KiB", "", ""]
