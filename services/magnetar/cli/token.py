"""`magnetar token`: creates keys and tokens, shows and validates tokens.

Flags and output are those of `pulsar tokens`. A key is a `data:` or `file:` URL, a path or base64;
a key on the command line is visible to others on the machine, so scripts should name a file. New
keys are readable by their owner only, and do not replace a file that exists: a lost key would
invalidate all its tokens.
"""

import argparse
import base64
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.core.relative_time import duration_s

if TYPE_CHECKING:
    from magnetar.security.secret import Secret

_PRIVATE_MODE: Final = 0o600
_PUBLIC_MODE: Final = 0o644
TOKEN_BYTES_MAX: Final = 1 << 20
_ALGORITHM: Final = "The signature algorithm"
_FORMS: Final = "a data: or file: URL, a path, or base64"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `token`."""
    parser = subparsers.add_parser("token", help="create keys and tokens, show, validate tokens")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    secret = actions.add_parser("create-secret-key", help="create a new secret key")
    secret.add_argument("-a", "--signature-algorithm", default="HS256", help=_ALGORITHM)
    secret.add_argument("-o", "--output", type=Path, help="write the key to a file, not to stdout")
    secret.add_argument("-b", "--base64", action="store_true", help="encode the key in base64")
    pair = actions.add_parser("create-key-pair", help="create a new private and public key")
    pair.add_argument("-a", "--signature-algorithm", default="RS256", help=_ALGORITHM)
    pair.add_argument("--output-private-key", type=Path, required=True, help="its file")
    pair.add_argument("--output-public-key", type=Path, required=True, help="its file")
    _add_create(actions)
    show = actions.add_parser("show", help="show the content of a token, without validation")
    _add_token(show)
    validate = actions.add_parser("validate", help="validate a token against a key")
    _add_token(validate)
    validate.add_argument(
        "-a", "--signature-algorithm", default=None, help=f"{_ALGORITHM} of the public key"
    )
    validate.add_argument("-sk", "--secret-key", help=f"the secret key: {_FORMS}")
    validate.add_argument("-pk", "--public-key", help=f"the public key: {_FORMS}")


def _add_create(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    create = actions.add_parser("create", help="create a new token")
    create.add_argument("-a", "--signature-algorithm", help=f"{_ALGORITHM}; by default, the key's")
    create.add_argument("-s", "--subject", required=True, help="the role that the token proves")
    create.add_argument(
        "-e", "--expiry-time", help="when it expires, from now: 1h, 3d, 10y; default: never"
    )
    create.add_argument("-sk", "--secret-key", help=f"the secret key that signs it: {_FORMS}")
    create.add_argument("-pk", "--private-key", help=f"the private key that signs it: {_FORMS}")
    create.add_argument(
        "-hs", "--headers", action="append", default=[], help="a further header: key=value"
    )


def _add_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("token", nargs="?", help="the token")
    parser.add_argument("-i", "--stdin", action="store_true", help="read it from standard input")
    parser.add_argument("-f", "--token-file", type=Path, help="read it from a file")


def run(args: argparse.Namespace) -> int:
    """Runs the action; returns the exit code."""
    from magnetar.security.api import AuthenticationFailed
    from magnetar.security.errors import ConfigurationError

    actions = {
        "create-secret-key": _create_secret_key,
        "create-key-pair": _create_key_pair,
        "create": _create,
        "show": _show,
        "validate": _validate,
    }
    try:
        actions[args.action](args)
    except (AuthenticationFailed, ConfigurationError, OSError, ValueError) as error:
        print(f"magnetar: {error}", file=sys.stderr)
        return 1
    return 0


def _create_secret_key(args: argparse.Namespace) -> None:
    from magnetar.security.token.create import new_secret_key

    key = new_secret_key(args.signature_algorithm).reveal()
    content = base64.b64encode(key) if args.base64 else key
    if args.output is not None:
        _write_new(args.output, content, _PRIVATE_MODE)
        return
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def _create_key_pair(args: argparse.Namespace) -> None:
    from magnetar.security.token.create import new_key_pair

    private, public = new_key_pair(args.signature_algorithm)
    _write_new(args.output_private_key, private.reveal(), _PRIVATE_MODE)
    _write_new(args.output_public_key, public, _PUBLIC_MODE)


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Writes a new file with the given mode; raises FileExistsError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        file.write(content)


def _create(args: argparse.Namespace) -> None:
    from magnetar.security.secret import Secret
    from magnetar.security.source import KeySource
    from magnetar.security.token.create import signed_by_private_key, signed_by_secret

    if not args.secret_key and not args.private_key:
        raise ValueError(
            "Either --secret-key or --private-key needs to be passed for signing a token"
        )
    if args.secret_key and args.private_key:
        raise ValueError(
            "Only one of --secret-key and --private-key needs to be passed for signing a token"
        )
    claims: dict[str, object] = {"sub": args.subject}
    if args.expiry_time is not None:
        claims["exp"] = int(time.time()) + duration_s(args.expiry_time)
    headers = dict(_header(text) for text in args.headers)
    if args.secret_key:
        key = Secret(KeySource.parse("--secret-key", Secret(args.secret_key)).read())
        token = signed_by_secret(claims, key, args.signature_algorithm, headers)
    else:
        key = Secret(KeySource.parse("--private-key", Secret(args.private_key)).read())
        token = signed_by_private_key(claims, key, args.signature_algorithm, headers)
    print(token.reveal_text())


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--headers should be key=value, not {text!r}")
    return name, value


def _show(args: argparse.Namespace) -> None:
    from magnetar.security.token.verify import parsed

    token = parsed(_token(args))
    print(token.header.decode("utf-8", "replace"))
    print("---")
    print(token.payload.decode("utf-8", "replace"))


def _validate(args: argparse.Namespace) -> None:
    from magnetar.security.secret import Secret
    from magnetar.security.source import KeySource
    from magnetar.security.token.claims import check_times
    from magnetar.security.token.keys import hmac_key, public_key
    from magnetar.security.token.verify import parsed, verified

    token = parsed(_token(args))
    if bool(args.secret_key) == bool(args.public_key):
        raise ValueError("Either --secret-key or --public-key needs to be passed")
    if args.secret_key:
        key = hmac_key(KeySource.parse("--secret-key", Secret(args.secret_key)).read(), "the key")
    else:
        content = KeySource.parse("--public-key", args.public_key).read()
        key = public_key(content, args.signature_algorithm, "the public key")
    fitting = (key,) if token.algorithm in key.algorithms else ()
    claims, _ = verified(token, fitting)
    check_times(claims, time.time_ns() // 1_000_000, 0)
    print(java_text(claims))


def _token(args: argparse.Namespace) -> "Secret":
    """Returns the token of the command; raises ValueError if there is none."""
    from magnetar.security.secret import Secret

    if args.token is not None:
        text = args.token
    elif args.stdin:
        text = sys.stdin.readline(TOKEN_BYTES_MAX)
    elif args.token_file is not None:
        with args.token_file.open("rb") as file:
            return Secret(file.read(TOKEN_BYTES_MAX).strip())
    elif "TOKEN" in os.environ:
        text = os.environ["TOKEN"]
    else:
        raise ValueError(
            "Token needs to be either passed as an argument or through `--stdin`, `--token-file` "
            "or by the `TOKEN` environment variable"
        )
    return Secret(text.strip())


def java_text(value: object) -> str:
    """Returns a JSON value as Java prints it: `{sub=me, aud=[a, b], ok=true}`."""
    match value:
        case dict():
            return "{" + ", ".join(f"{key}={java_text(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(java_text, value)) + "]"
        case bool():
            return "true" if value else "false"
        case None:
            return "null"
    return str(value)
