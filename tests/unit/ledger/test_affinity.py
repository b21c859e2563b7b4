"""Ledgers stay within the groups of bookies that their namespace names."""

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.ledger.appending import appended, names, quorum
from tests.unit.ledger.cluster import Cluster, virtual

from magnetar.bookie.api import BookieIdentity
from magnetar.ledger.affinity import Affinity, affinity, affinity_of, excluding_others
from magnetar.ledger.bookies import BookieInfo
from magnetar.ledger.errors import NotEnoughBookies
from magnetar.ledger.placement import choose_ensemble

GROUPS = {"b0": "ssd", "b1": "ssd", "b2": "ssd", "b3": "hdd"}
SSD = Affinity(frozenset({"ssd"}), frozenset({"hdd"}))

_bookies = st.lists(
    st.tuples(st.sampled_from(["ssd", "hdd", "default"]), st.booleans(), st.booleans()), max_size=8
)


@given(_bookies, st.sampled_from([SSD, Affinity(frozenset({"ssd"}))]), st.integers(0, 1 << 20))
def test_no_bookie_of_another_group_is_chosen_and_the_primary_suffices_if_it_can(
    bookies: list[tuple[str, bool, bool]], of_ledger: Affinity, seed: int
) -> None:
    infos = [
        BookieInfo(BookieIdentity(f"b{n}", "0"), group=group, writable=writable, draining=draining)
        for n, (group, writable, draining) in enumerate(bookies)
    ]
    able = [info for info in infos if info.writable and not info.draining]
    primary = [info for info in able if info.group in of_ledger.primary]
    allowed = [info for info in able if info.group in of_ledger.primary | of_ledger.secondary]
    groups = {info.identity: info.group for info in infos}
    excluded = excluding_others(infos, of_ledger, 3, {})
    if len(allowed) < 2:
        reason = "not in the bookie affinity group" if len(able) > len(allowed) else "are needed"
        with pytest.raises(NotEnoughBookies, match=reason):
            choose_ensemble(infos, 3, 2, 2, Random(seed), excluded)
        return
    chosen = choose_ensemble(infos, 3, 2, 2, Random(seed), excluded)
    assert {groups[identity] for identity in chosen} <= of_ledger.primary | of_ledger.secondary
    if len(primary) >= 3:
        assert {groups[identity] for identity in chosen} == {"ssd"}
    assert len(chosen) == min(3, len(allowed))


def test_an_affinity_is_kept_in_the_properties_of_a_ledger() -> None:
    wanted = affinity(" a ,b,", "c")
    assert wanted == Affinity(frozenset("ab"), frozenset("c"))
    assert affinity_of({"x": "y", **wanted.properties}) == wanted
    for nothing in (None, "", " , "):
        assert affinity(nothing, "c") is None
    assert affinity_of({"x": "y"}) is None
    infos = [BookieInfo(BookieIdentity("b", "0"))]
    assert excluding_others(infos, None, 1, {}) == {}


@pytest.mark.parametrize(("lost", "expected"), [("b0", {"b1", "b2"}), ("", {"b0", "b1", "b2"})])
def test_a_ledger_and_its_changes_stay_within_the_groups(lost: str, expected: set[str]) -> None:
    async def scenario() -> None:
        cluster = Cluster(6, quorum(2, 2, 1))
        client, links = cluster.client()
        links.groups = GROUPS
        for _ in range(5):
            writer = await client.create(SSD.properties)
            await appended(writer, 1)
            if lost:
                links.leave(cluster.disks[lost].identity)
                await appended(writer, 5)
                await asyncio.sleep(1)
            record = await cluster.record(writer.ledger_id)
            members = set(names(record.ensembles[-1].bookies))
            assert members <= expected, members
            assert len(members) == 2
            await writer.close()

    virtual(scenario())


def test_a_group_without_enough_bookies_takes_no_ledger_and_the_error_says_so() -> None:
    async def scenario() -> None:
        cluster = Cluster(3, quorum(2, 2, 2))
        client, links = cluster.client()
        links.groups = {"b0": "ssd"}
        with pytest.raises(NotEnoughBookies, match="not in the bookie affinity group ssd"):
            await client.create(Affinity(frozenset({"ssd"})).properties)
        assert await client.create({})

    virtual(scenario())
