"""The `squall` command: which commands exist, and which module executes each.

Nothing here does any work: the flags and the module of a command are imported only when it was
typed, because core processes can start only after this module has been read. A foreseeable
mistake is one line on stderr, never a traceback.
"""

from __future__ import annotations

import argparse
import errno
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple, NoReturn

from squall.api.errors import ConfigError, ExitCode, SquallError, UsageError
from squall.cli.shared.parser import EXIT_CODES, SIDES, Flags, Parser
from squall.reporting.text.standard_streams import drop_stdout
from squall.runtime.real import launcher


class Command(NamedTuple):
    folder: str
    """Below `squall.cli`; its module `flags` has the command's flags."""
    module: str
    """Has `execute(arguments) -> int`."""
    help: str
    is_node: bool = False
    """Runs below a launcher, which starts it again if it is killed."""


COMMANDS = {
    "run": Command("run", "command", "run a workflow file, or load one URL"),
    "explain": Command("run", "explain", "show what a run would do; sends nothing"),
    "new": Command("dev", "new", "write a commented starter workflow"),
    "completion": Command("dev", "completion", "print the completion script of a shell"),
    "ping": Command("run", "ping", "send one request and show its timings"),
    "target": Command("dev", "target", "a server to load: status, delay, size, errors by path"),
    "demo": Command("dev", "demo", "load a built-in target for ten seconds"),
    "report": Command("run", "report", "write reports from results documents"),
    "compare": Command("run", "compare", "judge what changed between runs"),
    "submit": Command("run", "submit", "submit a run to a cluster and print its job id"),
    "schedule": Command("store", "schedule", "run load tests on a schedule"),
    "jobs": Command("cluster", "jobs", "list the jobs of a cluster, the newest first"),
    "status": Command("cluster", "jobs", "show the state of a job"),
    "watch": Command("cluster", "jobs", "follow a job, then show its summary and exit code"),
    "why": Command("cluster", "jobs", "what a job waits for, and what happened to it"),
    "cancel": Command("cluster", "jobs", "end a job; its result is kept"),
    "web": Command("cluster", "web", "serve a page of a cluster: its queue, jobs and history"),
    "adjust": Command("cluster", "jobs", "change the load of a running job"),
    "nodes": Command("cluster", "nodes", "list the managers and workers of a datacenter"),
    "members": Command("cluster", "membership", "which nodes live, and who hears them"),
    "drain": Command("cluster", "nodes", "give a worker no new work"),
    "dev": Command("dev", "datacenter", "run datacenters and gates on this machine, until Ctrl-C"),
    "manager": Command("cluster", "manager", "run a manager of a datacenter", is_node=True),
    "gate": Command("cluster", "gate", "run a gate in front of datacenters", is_node=True),
    "worker": Command("cluster", "worker", "run a worker of a datacenter", is_node=True),
    "agent": Command(
        "store", "agent", "run load on this machine, with others through a store", is_node=True
    ),
    "secret": Command("cluster", "secret", "make the cluster's secret, or credentials from it"),
    "group": Command("cluster", "group", "show and change a group of managers or gates"),
    "wal": Command("cluster", "wal", "examine the write-ahead log of a stopped node"),
    "recover": Command("cluster", "recover", "make a new group from one disk, after a lost quorum"),
    "backup": Command("cluster", "backup", "copy the data of a manager or gate and check it"),
    "restore": Command("cluster", "backup", "make a data directory from a backup and check it"),
    "coord": Command("coord", "command", "inspect and operate a group of services in a store"),
}


LOAD_TEST_PACKAGES = ("cryptography", "httptools", "numpy", "textual", "uvloop")


def main(argv: list[str] | None = None) -> int:
    """Run one command; the value is the exit code of the process."""
    words = sys.argv[1:] if argv is None else argv
    prefix = f"squall {words[0]}" if words and words[0] in COMMANDS else "squall"
    try:
        if words and words[0] == "target":
            # The target server parses its own options.
            arguments = argparse.Namespace(command="target", words=words[1:])
        else:
            parser = build_parser()
            arguments = parser.parse_args(_marked(words))
            arguments.words, arguments.parser = words, parser
        command = COMMANDS[arguments.command]
        if command.folder != "coord":
            _check_packages(arguments.command)
        if command.is_node:
            arguments.launched = launcher.attach()
            if arguments.launched is None and not arguments.no_launcher and launcher.IS_AVAILABLE:
                return _launch(arguments, words)
        module = import_module(f"squall.cli.{command.folder}.{command.module}")
        with launcher.scratch_of(arguments.launched if command.is_node else None):
            return int(module.execute(arguments))
    except UsageError as error:
        return _print_error(f"{prefix}: {error}", error.exit_code)
    except SquallError as error:
        return _print_error(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _print_error(f"{prefix}: interrupted", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        drop_stdout()
        return int(ExitCode.INTERNAL)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # Files are written before the summary is printed: what fit is already safe.
        drop_stdout()
        return _print_error(f"{prefix}: cannot write: no space left", ExitCode.INTERNAL)


def _check_packages(command: str) -> None:
    """squall.coordination and `squall coord` work without the packages of the load tester. The
    check comes first: a missing one would show as the tracebacks of several processes."""
    missing = [name for name in LOAD_TEST_PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"squall {command}: load tests need {', '.join(missing)}, which this installation does"
            f" not have: run pip install {' '.join(missing)}"
        )


def _launch(arguments: argparse.Namespace, words: list[str]) -> int:
    """Runs this command as the main process below a launcher, which imports nothing more."""
    scratch_prefix = "" if arguments.data else f"squall-{arguments.command}-"
    # -P: modules in the working directory must not hide those of Squall and Python.
    command = [sys.executable, "-P", "-m", "squall", *words]
    return launcher.launch(command, scratch_prefix=scratch_prefix)


def _marked(words: list[str]) -> list[str]:
    """argparse drops `--`, which separates the two sides of `compare`."""
    if words[:1] != ["compare"] or "--" not in words:
        return words
    place = words.index("--")
    return [*words[:place], SIDES, *words[place + 1 :]]


def build_parser() -> Parser:
    parser = Parser(
        prog="squall",
        description="Load tests in plain Python.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    add_command = parser.add_commands("command")
    for word, command in COMMANDS.items():
        add_command(word, help=command.help, flags=_flags_of(word, command))
    return parser


def _flags_of(word: str, command: Command) -> Flags:
    def add(parser: Parser) -> None:
        module = import_module(f"squall.cli.{command.folder}.flags")
        module.FLAGS[word](parser)

    return add


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"squall {version('squall')}")
        parser.exit()


def _print_error(line: str, code: ExitCode) -> int:
    print(line, file=sys.stderr)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
