"""The settings of the standalone: a broker, a bookie and the metadata store in one process."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import setting

STANDALONE: Final = "Standalone"


@dataclass(frozen=True, kw_only=True)
class StandaloneSettings(BrokerSettings):
    """The settings of `magnetar standalone`: a broker's, and the place of data and ports."""

    data_dir: Path = setting(
        Path("data"),
        "The directory of all data; locked while in use.",
        group=STANDALONE,
    )
    host: str = setting(
        "127.0.0.1",
        "The address that both ports listen on (Pulsar: 0.0.0.0).",
        group=STANDALONE,
        pulsar="bindAddress",
    )
    port: int | None = setting(
        6650,
        "Port of the binary protocol; 0 takes a free one, `none` turns it off.",
        group=STANDALONE,
        within=(0, 65_535),
        pulsar="brokerServicePort",
        off=True,
    )
    http_port: int | None = setting(
        8080,
        "Port of the admin REST, lookups and metrics; 0 takes a free one, `none` turns it off.",
        group=STANDALONE,
        within=(0, 65_535),
        pulsar="webServicePort",
        off=True,
    )
    advertised_host: str | None = setting(
        None,
        "The host name that clients connect to; by default, the address listened on.",
        group=STANDALONE,
        pulsar="advertisedAddress",
    )
    wipe: bool = setting(
        False,
        "Whether the data directory is emptied first; refused if it is not Magnetar's.",
        group=STANDALONE,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.broker_tls.check_ports(self.port, self.http_port, self.tls)
