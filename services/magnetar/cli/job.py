"""`magnetar job`: runs a Spark job over the topics of a cluster: offload, compact, backlog.

The jobs are in `magnetar_spark`, an optional package. Its own module declares the flags; without
the package, the command prints what to install.
"""

import argparse


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `job` with the arguments of its kinds."""
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
    """Runs the job; returns the exit code."""
    if "missing" in args:
        print(f"magnetar job: {args.missing}. Install it: pip install 'magnetar[spark]'")
        return 1
    from magnetar_spark.jobs import main

    return main.run_job(args)
