"""The memory of a server, or of a client, over time: samples, their verdict, and their picture."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

WARM_UP_SHARE: Final = 1 / 3
"""Of the run: caches fill and every topic is opened for the first time."""
GROWTH_MAX_SHARE: Final = 0.10
"""What the median of the last tenth may be above that of the first tenth after the warm-up."""
WIDTH_PX: Final = 960
HEIGHT_PX: Final = 360
MARGIN_PX: Final = 60


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the server."""

    at_s: float
    resident_mib: float
    cached_mib: float
    """Of that in caches, which have bounds of their own and fill up slowly."""
    rounds: int
    client_mib: float = 0.0
    """Of the program of our client, where there is one."""

    @property
    def kept_mib(self) -> float:
        """What is not in caches."""
        return self.resident_mib - self.cached_mib


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether memory stayed flat after the warm-up."""

    before_mib: float
    after_mib: float
    rounds: int

    @property
    def bytes_per_round(self) -> float:
        return (self.after_mib - self.before_mib) * (1 << 20) / max(self.rounds, 1)

    @property
    def flat(self) -> bool:
        return self.after_mib <= self.before_mib * (1 + GROWTH_MAX_SHARE)


def judge(samples: list[Sample]) -> Verdict:
    """Compares both ends of what follows the warm-up; needs some thirty samples."""
    return _judge(samples, lambda each: each.kept_mib)


def judge_client(samples: list[Sample]) -> Verdict:
    """Judges the memory of the client instead of the server's."""
    return _judge(samples, lambda each: each.client_mib)


def _judge(samples: list[Sample], size_mib: Callable[[Sample], float]) -> Verdict:
    steady = samples[int(len(samples) * WARM_UP_SHARE) :]
    tenth = max(len(steady) // 10, 1)
    first, last = steady[:tenth], steady[-tenth:]
    return Verdict(
        median(size_mib(each) for each in first),
        median(size_mib(each) for each in last),
        last[-1].rounds - first[0].rounds,
    )


def write_picture(samples: list[Sample], path: Path, title: str, *, client: bool = False) -> None:
    """Writes an SVG of resident memory over minutes, and of its part that is not in caches.

    With `client`, the second line is the client's memory.
    """
    width, height = WIDTH_PX - 2 * MARGIN_PX, HEIGHT_PX - 2 * MARGIN_PX
    end_s = max(samples[-1].at_s, 1.0)
    top_mib = max(each.resident_mib for each in samples) * 1.1

    def line(sizes_mib: list[float], color: str) -> str:
        points = " ".join(
            f"{MARGIN_PX + each.at_s / end_s * width:.1f},"
            f"{HEIGHT_PX - MARGIN_PX - size_mib / top_mib * height:.1f}"
            for each, size_mib in zip(samples, sizes_mib, strict=True)
        )
        return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'

    dark = "the client, light: the server" if client else "without caches"
    labels = [
        _text(MARGIN_PX, MARGIN_PX / 2, title),
        _text(MARGIN_PX, MARGIN_PX - 6, f"{top_mib:.0f} MiB; dark: {dark}"),
        _text(MARGIN_PX, HEIGHT_PX - MARGIN_PX / 2, "0 min"),
        _text(
            WIDTH_PX - MARGIN_PX * 3,
            HEIGHT_PX - MARGIN_PX / 2,
            f"{end_s / 60:.0f} min, {samples[-1].rounds:,} rounds",
        ),
    ]
    bottom = HEIGHT_PX - MARGIN_PX
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH_PX} {HEIGHT_PX}">'
        '<rect width="100%" height="100%" fill="white"/>'
        f'<path d="M{MARGIN_PX},{MARGIN_PX} V{bottom} H{WIDTH_PX - MARGIN_PX}" '
        'fill="none" stroke="#888"/>'
        + line([each.resident_mib for each in samples], "#a0b0d0")
        + line([each.client_mib if client else each.kept_mib for each in samples], "#2060c0")
        + "".join(labels)
        + "</svg>\n"
    )


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-family="sans-serif" font-size="14">{text}</text>'
