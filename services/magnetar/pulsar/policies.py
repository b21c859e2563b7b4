"""Policies of consumers, encryption keys and loggers, as the official client has them."""

from magnetar.client.crypto.api import KeyFiles
from magnetar.client.options import BatchReceive, DeadLetterPolicy, KeySharedPolicy
from magnetar.pulsar.checks import check_type, check_type_or_none
from magnetar.pulsar.enums import KeySharedMode, LoggerLevel
from magnetar.pulsar.outcomes import translated_values

_SECOND_MS = 1000


class ConsumerBatchReceivePolicy:
    """When `batch_receive` returns; a limit of 0 or -1 is off."""

    @translated_values()
    def __init__(self, max_num_message: int, max_num_bytes: int, timeout_ms: int) -> None:
        for name, value in (
            ("max_num_message", max_num_message),
            ("max_num_bytes", max_num_bytes),
            ("timeout_ms", timeout_ms),
        ):
            check_type(int, value, name)
        self._policy = BatchReceive(
            messages_max=max(max_num_message, 0),
            bytes_max=max(max_num_bytes, 0),
            timeout_s=max(timeout_ms, 0) / _SECOND_MS,
        )

    def policy(self) -> BatchReceive:
        """The policy of `magnetar.client`."""
        return self._policy


class ConsumerKeySharedPolicy:
    """How the keys of a KeyShared subscription are distributed."""

    @translated_values()
    def __init__(
        self,
        key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit,
        allow_out_of_order_delivery: bool = False,
        sticky_ranges: list[tuple[int, int]] | None = None,
    ) -> None:
        check_type(KeySharedMode, key_shared_mode, "key_shared_mode")
        check_type(bool, allow_out_of_order_delivery, "allow_out_of_order_delivery")
        check_type_or_none((list, tuple), sticky_ranges, "sticky_ranges")
        if key_shared_mode == KeySharedMode.Sticky and not sticky_ranges:
            raise ValueError("key_shared_mode=KeySharedMode.Sticky needs sticky_ranges")
        if key_shared_mode == KeySharedMode.AutoSplit and sticky_ranges:
            raise ValueError("sticky_ranges need key_shared_mode=KeySharedMode.Sticky")
        self._mode = key_shared_mode
        self._policy = KeySharedPolicy(
            sticky_ranges=tuple(sticky_ranges or ()),
            allow_out_of_order=allow_out_of_order_delivery,
        )

    @property
    def key_shared_mode(self) -> KeySharedMode:
        """Whether the broker or this consumer chooses the ranges."""
        return self._mode

    @property
    def allow_out_of_order_delivery(self) -> bool:
        """Whether messages of a key may overtake each other."""
        return self._policy.allow_out_of_order

    @property
    def sticky_ranges(self) -> list[tuple[int, int]]:
        """The hash ranges of this consumer."""
        return list(self._policy.sticky_ranges)

    def policy(self) -> KeySharedPolicy:
        """The policy of `magnetar.client`."""
        return self._policy


class ConsumerDeadLetterPolicy:
    """Where messages go that were delivered too often."""

    @translated_values()
    def __init__(
        self,
        max_redeliver_count: int,
        dead_letter_topic: str | None = None,
        initial_subscription_name: str | None = None,
    ) -> None:
        check_type(int, max_redeliver_count, "max_redeliver_count")
        check_type_or_none(str, dead_letter_topic, "dead_letter_topic")
        check_type_or_none(str, initial_subscription_name, "initial_subscription_name")
        if max_redeliver_count < 1:
            raise ValueError("max_redeliver_count must be greater than 0")
        self._policy = DeadLetterPolicy(
            max_redeliver_count=max_redeliver_count,
            dead_letter_topic=dead_letter_topic or "",
            initial_subscription=initial_subscription_name or "",
        )

    @property
    def dead_letter_topic(self) -> str:
        """The topic; empty for `TOPIC-SUBSCRIPTION-DLQ`."""
        return self._policy.dead_letter_topic

    @property
    def max_redeliver_count(self) -> int:
        """How often a message is delivered again before it goes there."""
        return self._policy.max_redeliver_count

    @property
    def initial_subscription_name(self) -> str:
        """The subscription that is created with the topic; empty for none."""
        return self._policy.initial_subscription

    def policy(self) -> DeadLetterPolicy:
        """The policy of `magnetar.client`."""
        return self._policy


class CryptoKeyReader:
    """Reads the keys of end-to-end encryption from PEM files."""

    def __init__(self, public_key_path: str, private_key_path: str) -> None:
        check_type(str, public_key_path, "public_key_path")
        check_type(str, private_key_path, "private_key_path")
        self.cryptoKeyReader = KeyFiles(public=public_key_path, private=private_key_path)


class ConsoleLogger:
    """Writes the client's log to standard error."""

    def __init__(self, log_level: LoggerLevel = LoggerLevel.Info) -> None:
        check_type(LoggerLevel, log_level, "log_level")
        self.log_level = log_level


class FileLogger:
    """Writes the client's log to a file."""

    def __init__(self, log_level: LoggerLevel, log_file: str) -> None:
        check_type(LoggerLevel, log_level, "log_level")
        check_type(str, log_file, "log_file")
        self.log_level = log_level
        self.log_file = log_file
