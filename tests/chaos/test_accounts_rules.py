"""The rules of accounts accept correct books, and find each kind of mistake in them."""

from collections.abc import Callable

import pytest
from tests.chaos.accounts_rules import Books, Entry

WORK = ["S", "C 0 5000", "X 1", "E parts TransactionConflictException some text", "U 1", "F"]
BANK = [
    *("S", "O 0 0 1 10", "O 1 1 2 7"),
    *("A 0 3:0 0 debit 10", "A 1 4:0 0 credit 10", "A 1 4:0 0 credit 10"),
    *("A 1 4:3 1 debit 7", "A 2 5:2 1 credit 7", "D 2", "F"),
]


def correct() -> Books:
    """Two orders; the commit of the second had no answer; one delivery was repeated."""
    books = Books(accounts=3)
    books.read(BANK)
    books.read(WORK)
    books.orders = list(books.receipts.values())
    for account, entries in books.audited.items():
        books.entries[account] = list(dict.fromkeys(entries))
    return books


def test_correct_books_have_no_contradiction() -> None:
    books = correct()
    assert books.contradictions() == []
    assert (books.unknown, books.aborted) == (1, 1)
    assert books.failures == {"parts TransactionConflictException": 1}


def _order_stored_twice(books: Books) -> None:
    books.orders.append(books.orders[0])


def _order_lost(books: Books) -> None:
    books.orders.pop()


def _credit_lost(books: Books) -> None:
    books.entries[1].pop(0)


def _debit_twice(books: Books) -> None:
    books.entries[0].append(Entry("3:9", 0, "debit", 10))


def _other_account(books: Books) -> None:
    books.entries[2].append(books.entries[0].pop())


def _other_amount(books: Books) -> None:
    books.entries[0] = [Entry("3:0", 0, "debit", 11)]


def _not_ordered(books: Books) -> None:
    books.entries[0].append(Entry("3:9", 9, "debit", 1))


def _commit_twice(books: Books) -> None:
    books.commits.append(0)


def _aborted_was_delivered(books: Books) -> None:
    books.audited[0].append(Entry("3:8", 0, "debit", 10))


def _never_delivered(books: Books) -> None:
    books.audited[2].clear()


def _out_of_order(books: Books) -> None:
    books.audited[1].reverse()


@pytest.mark.parametrize(
    ("mistake", "finding"),
    [
        (_order_stored_twice, "order 0 is stored 2 times"),
        (_order_lost, "order 1 has a receipt and is not stored"),
        (_credit_lost, "order 0: 0 credits in account 1 (its commit succeeded)"),
        (_debit_twice, "order 0: 2 debits in account 0"),
        (_other_account, "account 2: 1 debits of 10 of order 0, not ordered"),
        (_other_amount, "the sum of all accounts is off by -1"),
        (_not_ordered, "account 0: 1 debits of 1 of order 9, not ordered"),
        (_commit_twice, "order 0: 2 transactions with its ack committed"),
        (_aborted_was_delivered, "account 0: delivered and not committed"),
        (_never_delivered, "account 2: committed and never delivered"),
        (_out_of_order, "account 1: delivered in another order than stored"),
    ],
)
def test_each_mistake_is_found(mistake: Callable[[Books], None], finding: str) -> None:
    books = correct()
    mistake(books)
    assert any(finding in text for text in books.contradictions()), books.contradictions()


def test_many_contradictions_of_one_rule_are_counted() -> None:
    books = correct()
    books.entries[0] += [Entry(f"3:{number}", number, "debit", 1) for number in range(10, 30)]
    assert any("and 15 more of this kind" in text for text in books.contradictions())


def test_an_unknown_observation_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown observation"):
        correct().read(["Z 1"])
