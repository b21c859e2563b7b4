"""Chooses the ledgers to trim. Pure.

Only a head of the list is trimmed: closed ledgers that every durable cursor has consumed and that
retention does not keep. Of the limits on time and size, the earlier counts (E1; Pulsar's
`internalTrimLedgers`). The size is that of the managed ledger without the ledger.
"""

from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo
from magnetar.managed_ledger.settings import Retention


def consumed(index: LedgerIndex, rank: int) -> list[LedgerInfo]:
    """Returns the head of closed ledgers whose entries all have at most this rank."""
    head: list[LedgerInfo] = []
    for info in index.infos:
        if not info.closed_ms or info.base_rank + info.entries > rank:
            break
        head.append(info)
    return head


def trimmable(index: LedgerIndex, rank: int, retention: Retention, now_ms: int) -> list[LedgerInfo]:
    """Returns the consumed ledgers that retention does not keep."""
    head: list[LedgerInfo] = []
    kept_bytes = index.size_bytes
    for info in consumed(index, rank):
        kept_bytes -= info.size_bytes
        expired = 0 <= retention.time_ms <= now_ms - info.closed_ms
        over = 0 <= retention.size_bytes <= kept_bytes
        if not (expired or over):
            break
        head.append(info)
    return head
