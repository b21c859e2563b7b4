"""The settings of transactions."""

from dataclasses import dataclass
from typing import Final

from magnetar.settings.field import setting

TRANSACTIONS: Final = "Transactions"


@dataclass(frozen=True, kw_only=True)
class TransactionSettings:
    """The settings of the transactions that a broker coordinates or takes part in."""

    transactions: bool = setting(
        False,
        "Whether clients may use transactions; the same for all brokers of a cluster.",
        group=TRANSACTIONS,
        pulsar="transactionCoordinatorEnabled",
    )
    open_transactions_max: int = setting(
        0,
        "Maximum number of open transactions of a coordinator; 0 means 100,000.",
        group=TRANSACTIONS,
        unit="transactions",
        within=(0, 100_000),
        pulsar="maxActiveTransactionsPerCoordinator",
    )
    transaction_outcome_retention_s: int = setting(
        600,
        "How long the outcome of a transaction is kept for a client that repeats END_TXN.",
        group=TRANSACTIONS,
        unit="s",
        within=(0, 86_400),
    )
    transaction_end_timeout_ms: int = setting(
        3_000,
        "How long a topic or subscription may take for the end of a transaction before a retry.",
        group=TRANSACTIONS,
        unit="ms",
        within=(100, 600_000),
        pulsar="transactionBufferClientOperationTimeoutInMills",
    )
    transaction_ends_max: int = setting(
        1_000,
        "Topics and subscriptions that a broker notifies of the ends of transactions at a time.",
        group=TRANSACTIONS,
        unit="requests",
        within=(1, 100_000),
        pulsar="transactionBufferClientMaxConcurrentRequests",
    )
