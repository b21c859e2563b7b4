"""Connection options that `produce`, `consume`, `read` and `perf` share.

Each has a variable of the environment, those of `Client.from_env`. A flag wins over a variable. A
flag that authenticates replaces all credentials of the environment. Secrets are read from files or
from the environment: arguments of a process are visible to all users of the machine.
"""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from magnetar.cli.messages.errors import UsageFailed

if TYPE_CHECKING:
    from magnetar.client.client import Client
    from magnetar.client.options import ClientKeywords

URL_DEFAULT: Final = "pulsar://localhost:6650"
TOKEN_FILE_VARIABLE: Final = "MAGNETAR_TOKEN_FILE"  # noqa: S105  # a name, not a token
_AUTH: Final = frozenset({"token", "oauth2", "user", "password", "certificate", "key"})
_TLS: Final = frozenset({"trust", "verify_hostname", "insecure"})


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the options that locate the cluster, authenticate, and configure TLS."""
    group = parser.add_argument_group(
        "connection", "Each option has a variable: MAGNETAR_URL, MAGNETAR_TOKEN and the like."
    )
    group.add_argument(
        "-u", "--url", metavar="URL", help=f"service URL (MAGNETAR_URL; {URL_DEFAULT})"
    )
    add_access_flags(group)
    group.add_argument("--listener", metavar="NAME", help="the advertised listener to use")
    group.add_argument(
        "--operation-timeout",
        metavar="S",
        type=float,
        help="seconds until a request fails (30)",
    )


def add_access_flags(group: "argparse._ActionsContainer") -> None:
    """Adds the options that authenticate and configure TLS."""
    group.add_argument(
        "--token-file", metavar="FILE", help=f"a file with the token ({TOKEN_FILE_VARIABLE})"
    )
    group.add_argument(
        "--oauth2-file", metavar="FILE", help="a file with the JSON parameters of OAuth 2.0"
    )
    group.add_argument("--user", metavar="NAME", help="user name; needs --password-file")
    group.add_argument("--password-file", metavar="FILE", help="a file with the password")
    group.add_argument("--cert-file", metavar="FILE", help="client certificate, in PEM")
    group.add_argument("--key-file", metavar="FILE", help="the key of --cert-file")
    group.add_argument(
        "--ca-file", metavar="FILE", help="authorities to trust, in PEM (MAGNETAR_TRUST)"
    )
    group.add_argument(
        "--no-verify-hostname", action="store_true", help="accept certificates of other hosts"
    )
    group.add_argument(
        "--insecure", action="store_true", help="accept any certificate; only for tests"
    )


def client_of(args: argparse.Namespace, **options: object) -> "Client":
    """Returns a client for the options; raises UsageFailed or InvalidConfiguration."""
    from magnetar.client.client import Client

    service_url, keywords = arguments(args, os.environ)
    keywords.update(options)  # type: ignore[typeddict-item]
    return Client(service_url, **keywords)


def arguments(
    args: argparse.Namespace, environment: Mapping[str, str]
) -> "tuple[str, ClientKeywords]":
    """Returns the service URL and the options of the client."""
    from magnetar.client.environment import URL_VARIABLES, options_of

    url = args.url or next((environment[key] for key in URL_VARIABLES if environment.get(key)), "")
    service_url, _, query = (url or URL_DEFAULT).partition("?")
    in_url = dict(parse_qsl(query, keep_blank_values=True))
    if args.url:
        _check_no_secret(in_url)
    named = _named(environment, in_url, _flags(args))
    return service_url.rstrip("/"), options_of(named)


def access_of(args: argparse.Namespace, environment: Mapping[str, str]) -> "ClientKeywords":
    """Returns the credentials and TLS settings alone, as options of the client."""
    from magnetar.client.environment import options_of

    named = _named(environment, _access(args))
    return options_of({name: text for name, text in named.items() if name in _AUTH | _TLS})


def _named(environment: Mapping[str, str], *more: Mapping[str, str]) -> dict[str, str]:
    """Returns the options by name: those of the environment, then what wins over them."""
    from magnetar.client.environment import OPTION_NAMES, PREFIX

    named = {
        name: environment[f"{PREFIX}{name.upper()}"]
        for name in OPTION_NAMES
        if environment.get(f"{PREFIX}{name.upper()}")
    }
    if environment.get(TOKEN_FILE_VARIABLE) and not named.keys() & _AUTH:
        named["token"] = f"file:{environment[TOKEN_FILE_VARIABLE]}"
    for given in more:
        if given.keys() & _AUTH:
            named = {name: text for name, text in named.items() if name not in _AUTH}
        named.update(given)
    return named


def _flags(args: argparse.Namespace) -> dict[str, str]:
    given = _access(args)
    if args.listener:
        given["listener"] = args.listener
    if args.operation_timeout is not None:
        given["operation_timeout_s"] = str(args.operation_timeout)
    return given


def _access(args: argparse.Namespace) -> dict[str, str]:
    given: dict[str, str] = {}
    if args.token_file:
        given["token"] = f"file:{args.token_file}"
    if args.oauth2_file:
        given["oauth2"] = _content(args.oauth2_file, "--oauth2-file")
    if bool(args.user) != bool(args.password_file):
        raise UsageFailed("--user and --password-file go together")
    if args.user:
        given["user"] = args.user
        given["password"] = _content(args.password_file, "--password-file").rstrip("\r\n")
    if bool(args.cert_file) != bool(args.key_file):
        raise UsageFailed("--cert-file and --key-file go together")
    if args.cert_file:
        given |= {"certificate": args.cert_file, "key": args.key_file}
    if args.ca_file:
        given["trust"] = args.ca_file
    if args.no_verify_hostname:
        given["verify_hostname"] = "false"
    if args.insecure:
        given["insecure"] = "true"
    return given


def _content(path: str, flag: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageFailed(f"{flag}: {error}") from None


def _check_no_secret(options: Mapping[str, str]) -> None:
    secret = options.keys() & {"password", "oauth2"}
    if "token" in options and not options["token"].startswith("file:"):
        secret = secret | {"token"}
    if secret:
        raise UsageFailed(
            f"--url has {', '.join(sorted(secret))}, which other users of this machine can see: "
            "use --token-file, --oauth2-file or --password-file, or the variable MAGNETAR_URL"
        )
