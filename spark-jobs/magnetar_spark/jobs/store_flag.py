"""The flag `--store` of jobs that write to object stores.

All jobs take the same flag with the same grammar (`magnetar.offload.stores.parse_store`).
"""

import argparse

from magnetar.core.errors import PreconditionFailed
from magnetar.offload.stores import FILESYSTEM, StoreSpec, parse_store


def add_store_flag(group: argparse._ArgumentGroup) -> None:
    """Adds `--store` to a job's flags."""
    group.add_argument(
        "--store",
        metavar="URL",
        help="where files go: s3://BUCKET/PREFIX?region=R&endpoint=URL (gs:, az:), file:///FOLDER",
    )


def add_address_flags(group: argparse._ArgumentGroup) -> None:
    """Adds the older form of `?endpoint=` and `&region=`, for command lines that have it."""
    for name in ("--store-endpoint", "--store-region"):
        group.add_argument(name, help=argparse.SUPPRESS)


def store_of(args: argparse.Namespace) -> StoreSpec | None:
    """The store that the flags name, None without `--store`.

    Raises PreconditionFailed if the URL is malformed, or an older flag contradicts it.
    """
    if not args.store:
        return None
    spec = parse_store(args.store)
    if spec.driver == FILESYSTEM:
        return spec
    return StoreSpec(
        spec.driver,
        spec.bucket,
        _merged("region", spec.region, getattr(args, "store_region", None)),
        _merged("endpoint", spec.endpoint, getattr(args, "store_endpoint", None)),
        spec.prefix,
    )


def _merged(option: str, in_url: str, flag: str | None) -> str:
    if flag and in_url and flag != in_url:
        raise PreconditionFailed(
            f"--store-{option} {flag!r} contradicts {in_url!r} in --store: "
            f"write it once, as --store '...?{option}=VALUE'"
        )
    return in_url or flag or ""
