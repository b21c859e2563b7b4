"""`magnetar completion`: prints a script that completes commands, options and topics in a shell.

The scripts are generated from the parsers of all commands, so they know every option. They call
`magnetar topics list` for names of topics only if MAGNETAR_COMPLETE_TOPICS names a namespace.
"""

import argparse
from collections.abc import Iterator
from importlib import import_module
from typing import Final, NamedTuple

SHELLS: Final = ("bash", "zsh", "fish")
TOPIC_ARGUMENTS: Final = frozenset({"topic", "topics"})
DESCRIPTION: Final = """\
Prints a script for the shell. To use it:

  bash  source <(magnetar completion bash)
  zsh   source <(magnetar completion zsh)
  fish  magnetar completion fish | source

If MAGNETAR_COMPLETE_TOPICS is TENANT/NAMESPACE, its topics are completed by the admin REST.
"""


class Words(NamedTuple):
    """What may follow a sequence of commands."""

    path: tuple[str, ...]
    """The commands before, such as `perf`, `produce`."""
    commands: tuple[str, ...]
    options: tuple[str, ...]
    values: tuple[str, ...]
    """What an argument may be, if it has a fixed set."""
    choices: dict[str, tuple[str, ...]]
    """The values of options that have a fixed set."""
    topics: bool
    """Whether an argument is a topic."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `completion`."""
    parser = subparsers.add_parser(
        "completion",
        help="print a script that completes commands in a shell",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS)


def run(args: argparse.Namespace) -> int:
    """Prints the script of a shell."""
    words = list(all_words())
    print({"bash": bash, "zsh": zsh, "fish": fish}[args.shell](words), end="")
    return 0


def all_words() -> Iterator[Words]:
    """Yields the words of every command, from its parser; of those whose libraries are installed.

    A command that needs an extra that is missing is completed by its name only.
    """
    from magnetar.cli.main import COMMANDS
    from magnetar.cli.parser import Parser

    parser = Parser(prog="magnetar")
    commands = parser.add_subparsers(dest="command")
    for name, (module, _) in COMMANDS.items():
        try:
            import_module(module).add_parser(commands)
        except ImportError:
            commands.add_parser(name)
    commands.add_parser("version")
    yield from _words(parser, ())


def _words(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[Words]:
    commands: dict[str, argparse.ArgumentParser] = {}
    options: list[str] = []
    arguments: list[str] = []
    choices: dict[str, tuple[str, ...]] = {}
    topics = False
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands |= action.choices
        elif not action.option_strings:
            topics = topics or action.dest in TOPIC_ARGUMENTS
            arguments += map(str, action.choices or ())
        elif action.help is not argparse.SUPPRESS:
            options += action.option_strings
            if action.choices is not None:
                values = tuple(map(str, action.choices))
                choices |= dict.fromkeys(action.option_strings, values)
    yield Words(path, tuple(commands), tuple(options), tuple(arguments), choices, topics)
    for name, command in commands.items():
        yield from _words(command, (*path, name))


# The variable is not named `path`, which in zsh is PATH.
_BASH: Final = """\
_magnetar() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} at="" word words="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${{COMP_WORDS[i]}}
    case "$at/$word" in
      {paths}) at="$at/$word" ;;
    esac
  done
  case "$at $prev" in
{choices}
    *) case "$at" in
{words}
    esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  compopt -o default 2>/dev/null
}}
_magnetar_topics() {{
  [ -n "$MAGNETAR_COMPLETE_TOPICS" ] || return 0
  magnetar topics list "$MAGNETAR_COMPLETE_TOPICS" 2>/dev/null | sed 's|.*://||'
}}
"""


def bash(words: list[Words]) -> str:
    """Returns the script of bash."""
    paths = "|".join(f'"/{"/".join(item.path)}"' for item in words if item.path)
    choices = [
        f'    "{_key(item)} {option}") words="{" ".join(values)}" ;;'
        for item in words
        for option, values in item.choices.items()
    ]
    cases = []
    for item in words:
        text = " ".join((*item.commands, *item.values, *item.options))
        topics = " $(_magnetar_topics)" if item.topics else ""
        cases.append(f'      "{_key(item)}") words="{text}{topics}" ;;')
    script = _BASH.format(paths=paths, choices="\n".join(choices), words="\n".join(cases))
    return script + "complete -F _magnetar magnetar\n"


def _key(item: Words) -> str:
    return "".join(f"/{name}" for name in item.path)


def zsh(words: list[Words]) -> str:
    """Returns the script of zsh, which runs that of bash."""
    return "autoload -U +X bashcompinit && bashcompinit\n" + bash(words)


def fish(words: list[Words]) -> str:
    """Returns the script of fish."""
    lines = [
        "function __magnetar_at",
        "  set -l path",
        "  for word in (commandline -opc)[2..-1]",
        "    if contains -- (string join -- / $path $word) $__magnetar_paths",
        "      set -a path $word",
        "    end",
        "  end",
        "  set -l at (string join -- / $path)",
        '  test "$at" = "$argv[1]"  # quoted: without commands it has no words',
        "end",
        "function __magnetar_topics",
        '  test -n "$MAGNETAR_COMPLETE_TOPICS"; or return 0',
        (
            "  magnetar topics list $MAGNETAR_COMPLETE_TOPICS 2>/dev/null"
            " | string replace -r '.*://' ''"
        ),
        "end",
        "set -g __magnetar_paths " + " ".join("/".join(item.path) for item in words if item.path),
    ]
    for item in words:
        at = f"complete -c magnetar -n '__magnetar_at \"{'/'.join(item.path)}\"'"
        if item.commands or item.values:
            lines.append(f"{at} -f -a '{' '.join((*item.commands, *item.values))}'")
        if item.topics:
            lines.append(f"{at} -a '(__magnetar_topics)'")
        for option in item.options:
            kind = "-l" if option.startswith("--") else "-s" if len(option) == 2 else "-o"
            line = f"{at} {kind} {option.lstrip('-')}"
            values = item.choices.get(option)
            lines.append(f"{line} -x -a '{' '.join(values)}'" if values else line)
    return "\n".join(lines) + "\n"
