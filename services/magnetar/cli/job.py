"""`magnetar job`: offload, compact, backlog; Spark jobs over the log of a cluster.

What Spark needs is imported only here; without it the command says what to install.
"""

import argparse


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `job` and its kinds."""
    parser = subparsers.add_parser(
        "job", help="run a Spark job over topics", description="Runs a Spark job over topics."
    )
    try:
        from magnetar_spark.jobs import main
    except ModuleNotFoundError as missing:
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
        parser.set_defaults(missing=str(missing))
        return
    main.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Runs it; returns the exit code."""
    if "missing" in args:
        print(f"magnetar job: {args.missing}. Type: pip install 'magnetar[spark]'")
        return 1
    from magnetar_spark.jobs import main

    return main.run(args)
