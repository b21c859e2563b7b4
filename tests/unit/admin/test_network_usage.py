"""The shares of network bandwidth, from files as Linux has them."""

from pathlib import Path

from magnetar.admin.metrics.network_usage import NetworkShares, NetworkUsage

HEAD = "Inter-|   Receive            |  Transmit\n face |bytes    packets errs |bytes    packets\n"


class Machine:
    """Interfaces with a speed in Mbit/s, as files under a directory."""

    def __init__(self, root: Path, **speeds: str) -> None:
        self.root = root
        self.now_s = 10.0
        for name, speed in speeds.items():
            path = root / "sys/class/net" / name / "speed"
            path.parent.mkdir(parents=True)
            path.write_text(speed)
        (root / "proc/net").mkdir(parents=True)

    def counted(self, **counts: tuple[int, int]) -> None:
        """The bytes that each interface has received and sent."""
        rows = [
            f"  {name}: {received} 1 0 0 0 0 0 0 {sent} 2 0 0 0 0 0 0\n"
            for name, (received, sent) in counts.items()
        ]
        (self.root / "proc/net/dev").write_text(HEAD + "".join(rows))

    def usage(self) -> NetworkUsage:
        return NetworkUsage(self.root, lambda: self.now_s)


def test_shares_are_of_the_known_speeds(tmp_path: Path) -> None:
    machine = Machine(tmp_path, eth0="8\n", eth1="-1\n")  # 8 Mbit/s are 1,000,000 bytes/s
    machine.counted(lo=(5, 5), eth0=(1_000, 2_000), eth1=(7, 7))
    usage = machine.usage()
    machine.now_s += 2
    machine.counted(lo=(9_999_999, 9_999_999), eth0=(501_000, 1_002_000), eth1=(9_999_999, 0))
    assert usage.measure() == NetworkShares(0.25, 0.5)
    assert usage.measure() == NetworkShares(0.25, 0.5)  # no time has passed
    machine.now_s += 1
    assert usage.measure() == NetworkShares(0.0, 0.0)
    machine.counted(eth0=(0, 0))  # replaced by another one
    machine.now_s += 1
    assert usage.measure() == NetworkShares(0.0, 0.0)


def test_without_a_known_speed_there_are_no_shares(tmp_path: Path) -> None:
    machine = Machine(tmp_path, eth0="-1\n")
    machine.counted(eth0=(1, 1))
    usage = machine.usage()
    machine.now_s += 5
    assert usage.measure() is None


def test_without_proc_there_are_no_shares(tmp_path: Path) -> None:
    machine = Machine(tmp_path, eth0="1000\n")
    usage = machine.usage()
    machine.now_s += 5
    assert usage.measure() is None
    machine.counted(eth0=(1, 1))
    machine.now_s += 5
    assert usage.measure() is None  # the first that is known
    machine.now_s += 1
    assert usage.measure() == NetworkShares(0.0, 0.0)
