"""Who may see a transaction over REST: the role that began it, and super users."""

import pytest
from tests.security.rest import PROXY, SUPER, closed_rest, token

PATH = "/admin/v3/transactions/transactionMetadata/0/"
OWNER = "prod"


@pytest.mark.parametrize(
    ("role", "original", "status"),
    [
        (OWNER, None, 200),
        (SUPER, None, 200),
        (PROXY, OWNER, 200),
        (PROXY, "cons", 401),
        ("cons", None, 401),
        ("topicprod", None, 401),
        ("nobody", None, 401),
        ("ta", None, 401),
        ("tb", None, 401),
        (None, None, 401),
    ],
)
async def test_a_transaction_is_shown_to_its_owner_and_to_super_users(
    role: str | None, original: str | None, status: int
) -> None:
    async with closed_rest(transactions=True) as closed:
        transactions = closed.service.transactions
        assert transactions is not None
        await transactions.coordinator_count()
        coordinator = await transactions.coordinators.get(0)
        txn = await coordinator.begin(OWNER, 60_000)
        without_owner = await coordinator.begin(None, 60_000)
        headers = {} if original is None else {"X-Original-Principal": original}
        credentials = None if role is None else token(role)
        answer = await closed.send("GET", f"{PATH}{txn.least}", credentials, headers=headers)
        assert answer.status_code == status, answer.text
        if status == 200:
            assert answer.json()["owner"] == OWNER
        # Only super users learn which others there are.
        for other in (without_owner.least, 99):
            answer = await closed.send("GET", f"{PATH}{other}", credentials, headers=headers)
            found = 200 if other != 99 else 404
            assert answer.status_code == (found if role == SUPER else 401)
