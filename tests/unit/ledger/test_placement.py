"""The choice of a ledger's bookies."""

from collections import Counter
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookie.api import BookieIdentity
from magnetar.ledger.bookies import BookieInfo
from magnetar.ledger.errors import NotEnoughBookies
from magnetar.ledger.placement import choose_ensemble, choose_more
from magnetar.ledger.quorum import write_sets


def info(name: str, rack: str = "/r/1", **changes: object) -> BookieInfo:
    return BookieInfo(BookieIdentity(name, "0"), rack=rack, **changes)  # type: ignore[arg-type]


def narrow(racks: list[str], write_quorum: int) -> int:
    """Write sets that are on one rack."""
    return sum(
        len({racks[slot] for slot in slots}) < 2 for slots in write_sets(len(racks), write_quorum)
    )


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(["/r/1", "/r/2", "/r/3"]), min_size=2, max_size=6),
    st.integers(2, 4),
    st.integers(2, 3),
    st.integers(0, 1 << 30),
)
def test_every_write_set_spans_two_racks_where_any_order_of_bookies_does(
    racks: list[str], size: int, write_quorum: int, seed: int
) -> None:
    bookies = [info(f"b{n}", rack) for n, rack in enumerate(racks)]
    rack_of = {one.identity: one.rack for one in bookies}
    chosen = choose_ensemble(bookies, max(size, write_quorum), write_quorum, 2, Random(seed))
    assert len(set(chosen)) == len(chosen) == min(max(size, write_quorum), len(bookies))
    found = narrow([rack_of[one] for one in chosen], write_quorum)
    possible = any(
        not narrow(list(order), write_quorum) for order in permutations(racks, len(chosen))
    )
    assert found == 0 or not possible


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(["/r/1", "/r/2", "/s/1", "/s/2", "/t/1"]), min_size=2, max_size=6),
    st.integers(2, 4),
    st.integers(2, 3),
    st.integers(0, 1 << 30),
)
def test_every_write_set_spans_two_regions_where_any_order_does_and_else_two_racks(
    racks: list[str], size: int, write_quorum: int, seed: int
) -> None:
    bookies = [info(f"b{n}", rack) for n, rack in enumerate(racks)]
    rack_of = {one.identity: one.rack for one in bookies}
    chosen = choose_ensemble(bookies, max(size, write_quorum), write_quorum, 2, Random(seed))
    assert len(set(chosen)) == len(chosen) == min(max(size, write_quorum), len(bookies))
    places = [rack_of[one] for one in chosen]
    orders = list(permutations(racks, len(chosen)))
    for sites in ([place[1] for place in places], places):
        length = len(sites[0])
        possible = any(
            not narrow([place[1] if length == 1 else place for place in order], write_quorum)
            for order in orders
        )
        if possible:
            assert not narrow(sites, write_quorum)
            return


def test_a_region_with_several_racks_gives_its_copies_to_different_ones() -> None:
    racks = {"a": "/r/1", "b": "/r/1", "c": "/r/2", "d": "/s/1"}
    bookies = [info(name, rack) for name, rack in racks.items()]
    for seed in range(50):
        chosen = choose_ensemble(bookies, 3, 3, 2, Random(seed))
        assert {racks[one.bookie_id] for one in chosen} == {"/r/1", "/r/2", "/s/1"}


def test_racks_without_a_region_are_in_the_default_one() -> None:
    bookies = [info("a", "/1"), info("b", "/2"), info("c", "/default-region/default-rack")]
    seen = {
        frozenset(one.bookie_id for one in choose_ensemble(bookies, 2, 2, 2, Random(seed)))
        for seed in range(50)
    }
    assert seen == {frozenset("ab"), frozenset("ac"), frozenset("bc")}


def test_a_replacement_is_in_another_region_and_else_on_another_rack() -> None:
    a, b, c, d = info("a", "/r/1"), info("b", "/r/1"), info("c", "/r/2"), info("d", "/s/1")
    for seed in range(20):
        ensemble = (a.identity, None)
        assert choose_more([a, b, c, d], ensemble, 2, Random(seed))[1] == d.identity
        assert choose_more([a, b, c], ensemble, 2, Random(seed))[1] == c.identity


def test_a_new_bookie_gets_its_fair_share_and_a_full_one_less() -> None:
    bookies = [info(f"b{n}", disk_free_ratio=0.5) for n in range(3)]
    bookies += [info("new", disk_free_ratio=1.0), info("full", disk_free_ratio=0.02)]
    rng = Random(5)
    counts = Counter(
        one.bookie_id for _ in range(2000) for one in choose_ensemble(bookies, 2, 2, 2, rng)
    )
    assert counts["new"] > counts["b0"] > 5 * counts["full"]
    assert 0.8 < counts["b0"] / counts["b1"] < 1.25


def test_quarantined_bookies_are_taken_only_where_the_rest_are_too_few() -> None:
    rng = Random(1)
    bookies = [info("a"), info("b"), info("c", quarantined=True)]
    for _ in range(20):
        chosen = choose_ensemble(bookies, 3, 2, 2, rng)
        assert {one.bookie_id for one in chosen} == {"a", "b"}
        assert {one.bookie_id for one in choose_ensemble(bookies, 3, 3, 2, rng)} == {"a", "b", "c"}


def test_a_ledger_is_made_with_what_there_is_down_to_the_ack_quorum() -> None:
    rng = Random(1)
    bookies = [info("a"), info("b"), info("full", writable=False), info("old", draining=True)]
    assert len(choose_ensemble(bookies, 3, 3, 2, rng)) == 2
    excluded = {BookieIdentity("b", "0"): "it failed"}
    with pytest.raises(NotEnoughBookies) as caught:
        choose_ensemble(bookies, 3, 3, 2, rng, excluded)
    assert str(caught.value) == (
        "2 bookies are needed for an ack quorum, 1 of 4 registered ones take adds; left out: "
        "b (it failed), full (read-only), old (draining)"
    )


def test_a_replacement_is_another_bookie_on_the_rack_that_is_missing() -> None:
    a, b, c, d = (BookieIdentity(name, "0") for name in "abcd")
    bookies = [info("a", "/r/1"), info("b", "/r/2"), info("c", "/r/1"), info("d", "/r/2")]
    for seed in range(20):
        assert choose_more(bookies, (a, None), 2, Random(seed), {b: "failed"}) == (a, d)
        assert choose_more(bookies, (None, b), 2, Random(seed), {a: "failed"}) == (c, b)
    assert choose_more(bookies[:2], (a, None), 2, Random(1), {b: "failed"}) == (a, None)


def test_another_life_of_a_member_is_not_put_beside_it() -> None:
    again = BookieInfo(BookieIdentity("a", "1"))
    assert choose_more([again], (BookieIdentity("a", "0"), None), 2, Random(1)) == (
        BookieIdentity("a", "0"),
        None,
    )


def many(healthy: int, quarantined: int) -> list[BookieInfo]:
    return [info(f"h{n}") for n in range(healthy)] + [
        info(f"q{n}", quarantined=True) for n in range(quarantined)
    ]


@pytest.mark.parametrize(
    ("healthy", "quarantined", "shape", "expected"),
    [
        (5, 0, (3, 2, 2), (3, 0)),
        (5, 5, (3, 2, 2), (3, 0)),
        (3, 1, (3, 3, 2), (3, 0)),
        (2, 2, (3, 2, 2), (2, 0)),  # narrower rather than with one in quarantine
        (2, 2, (3, 3, 2), (2, 1)),  # … but not with fewer copies
        (1, 1, (3, 3, 2), (1, 1)),
        (0, 4, (3, 3, 2), (0, 3)),
        (0, 4, (4, 2, 2), (0, 2)),
        (2, 0, (3, 3, 2), (2, 0)),
        (1, 0, (2, 2, 1), (1, 0)),
    ],
)
def test_an_ensemble_has_as_many_well_bookies_as_wanted_and_others_for_copies_only(
    healthy: int, quarantined: int, shape: tuple[int, int, int], expected: tuple[int, int]
) -> None:
    for seed in range(8):
        chosen = choose_ensemble(many(healthy, quarantined), *shape, Random(seed))
        kinds = Counter(one.bookie_id[0] for one in chosen)
        assert (kinds["h"], kinds["q"]) == expected


def test_one_bookie_less_than_an_ack_quorum_makes_no_ledger() -> None:
    for count in range(4):
        for ack_quorum in (1, 2, 3):
            if count >= ack_quorum:
                assert len(choose_ensemble(many(count, 0), 3, 3, ack_quorum, Random(1))) == count
            else:
                with pytest.raises(NotEnoughBookies, match=f"{count} of {count} registered"):
                    choose_ensemble(many(count, 0), 3, 3, ack_quorum, Random(1))


def test_many_that_are_left_out_are_counted_and_not_all_named() -> None:
    for count, said in ((15, ""), (16, ""), (17, " and 1 more"), (20, " and 4 more")):
        bookies = [info(f"b{n:02}", writable=False) for n in range(count)]
        with pytest.raises(NotEnoughBookies) as caught:
            choose_ensemble(bookies, 1, 1, 1, Random(1))
        text = str(caught.value)
        assert text.endswith("(read-only)" + said)
        assert text.count("(read-only)") == min(count, 16)
        assert f"0 of {count} registered" in text
    with pytest.raises(NotEnoughBookies, match="left out: none"):
        choose_ensemble([], 1, 1, 1, Random(1))


def test_a_full_disk_is_drawn_where_there_is_no_other() -> None:
    bookies = [info("a", disk_free_ratio=0.0), info("b", disk_free_ratio=0.0)]
    rng = Random(3)
    counts = Counter(choose_ensemble(bookies, 1, 1, 1, rng)[0].bookie_id for _ in range(200))
    assert min(counts["a"], counts["b"]) > 50
    assert len(choose_ensemble(bookies, 2, 2, 2, rng)) == 2


def test_a_disk_that_is_emptier_is_drawn_more_often() -> None:
    bookies = [info("full", disk_free_ratio=0.1), info("empty", disk_free_ratio=1.0)]
    rng = Random(3)
    counts = Counter(choose_ensemble(bookies, 1, 1, 1, rng)[0].bookie_id for _ in range(100))
    assert counts["empty"] > 5 * counts["full"] > 0


@pytest.mark.parametrize("seed", range(10))
def test_a_wide_ensemble_is_spread_although_most_bookies_are_on_one_rack(seed: int) -> None:
    """One in three is elsewhere: every three that follow each other need one of those."""
    bookies = [info(f"b{n}", f"/r/{int(n < 8)}") for n in range(12)]
    racks = {one.identity: one.rack for one in bookies}
    chosen = choose_ensemble(bookies, 12, 3, 2, Random(seed))
    assert sorted(chosen) == sorted(racks)
    assert narrow([racks[one] for one in chosen], 3) == 0


def test_where_racks_cannot_be_spread_they_alternate_and_the_search_ends() -> None:
    bookies = [info(f"b{n:02}", "/r/1") for n in range(12)] + [info("z", "/r/2")]
    for seed in range(10):
        chosen = choose_ensemble(bookies, 9, 2, 2, Random(seed))
        assert len(set(chosen)) == 9
        assert "z" in {one.bookie_id for one in chosen[:2]}
    pairs = [info(f"a{n}", "/r/1") for n in range(3)] + [info(f"c{n}", "/r/2") for n in range(2)]
    for seed in range(10):  # an odd ring cannot alternate all around
        order = [one.bookie_id[0] for one in choose_ensemble(pairs, 5, 2, 2, Random(seed))]
        assert "".join(order) in ("acaca", "cacaa")


def test_several_replacements_are_different_bookies_that_are_well_first() -> None:
    a = BookieIdentity("a", "0")
    bookies = [info("a"), info("q", "/r/2", quarantined=True), info("d"), info("e")]
    for seed in range(10):
        chosen = choose_more(bookies, (None, a, None, None), 2, Random(seed))
        assert chosen[1] == a
        assert {one.bookie_id for one in (chosen[0], chosen[2]) if one} == {"d", "e"}
        assert chosen[3] == BookieIdentity("q", "0")
        assert choose_more(bookies, (a, None), 2, Random(seed))[1] in (
            BookieIdentity("d", "0"),
            BookieIdentity("e", "0"),
        )
    assert choose_more([], (None, a), 2, Random(1)) == (None, a)


def test_a_member_whose_rack_nobody_knows_counts_for_no_rack() -> None:
    gone = BookieIdentity("gone", "0")
    bookies = [info("b", "/r/1"), info("c", "/r/2"), info("d", "/r/1")]
    b, c = bookies[0].identity, bookies[1].identity
    for seed in range(10):
        (_, _, third) = choose_more(bookies, (gone, b, None), 2, Random(seed))
        assert third == c


def test_the_search_for_a_spread_that_cannot_be_is_bounded() -> None:
    """Of forty in a ring each three would need two racks: twelve on the second are two too few."""
    bookies = [info(f"a{n}", "/r/1") for n in range(28)] + [
        info(f"b{n}", "/r/2") for n in range(12)
    ]
    for seed in range(3):
        assert len(set(choose_ensemble(bookies, 40, 3, 2, Random(seed)))) == 40
