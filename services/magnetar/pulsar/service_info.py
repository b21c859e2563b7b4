"""Clusters to fail over to, as the official client describes them."""

from collections.abc import Callable

from magnetar.pulsar.authentication import Authentication
from magnetar.pulsar.checks import check_type, check_type_or_none
from magnetar.pulsar.exceptions import OperationNotSupported


class ServiceInfo:
    """The address of a cluster, and how to authenticate there."""

    def __init__(
        self,
        service_url: str,
        authentication: Authentication | None = None,
        tls_trust_certs_file_path: str | None = None,
    ) -> None:
        check_type(str, service_url, "service_url")
        check_type_or_none(Authentication, authentication, "authentication")
        check_type_or_none(str, tls_trust_certs_file_path, "tls_trust_certs_file_path")
        self._service_url = service_url
        self._authentication = authentication
        self._trusted = tls_trust_certs_file_path

    @property
    def service_url(self) -> str:
        """The service URL."""
        return self._service_url

    @property
    def tls_trust_certs_file_path(self) -> str | None:
        """The authorities to trust; None for those of the system."""
        return self._trusted

    @property
    def use_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.service_url.startswith(("pulsar+ssl://", "https://"))

    def __repr__(self) -> str:
        return (
            f"ServiceInfo(service_url={self.service_url!r}, use_tls={self.use_tls!r}, "
            f"tls_trust_certs_file_path={self.tls_trust_certs_file_path!r})"
        )


class AutoClusterFailover:
    """Moves a client to another cluster while the primary does not answer."""

    def __init__(
        self,
        primary: ServiceInfo,
        secondary: list[ServiceInfo],
        check_interval_ms: int = 5000,
        failover_threshold: int = 1,
        switch_back_threshold: int = 1,
    ) -> None:
        """The thresholds are numbers of checks in a row."""
        check_type(ServiceInfo, primary, "primary")
        check_type(list, secondary, "secondary")
        if not secondary:
            raise ValueError("Argument secondary needs at least one ServiceInfo")
        for index, info in enumerate(secondary):
            check_type(ServiceInfo, info, f"secondary[{index}]")
        for name, value in (
            ("check_interval_ms", check_interval_ms),
            ("failover_threshold", failover_threshold),
            ("switch_back_threshold", switch_back_threshold),
        ):
            check_type(int, value, name)
            if value <= 0:
                raise ValueError(f"Argument {name} must be greater than 0")
        self.primary = primary
        self.secondary = list(secondary)
        self.check_interval_ms = check_interval_ms
        self.failover_threshold = failover_threshold
        self.switch_back_threshold = switch_back_threshold


class ServiceInfoProvider:
    """Base of service discovery by a program; clients of this package refuse it."""

    def initial_service_info(self) -> ServiceInfo:
        """Returns the first cluster."""
        raise OperationNotSupported("a ServiceInfoProvider is refused by clients of this package")

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        """Receives the function that changes the cluster."""

    def close(self) -> None:
        """Ends the provider."""
