"""The `squall` command: which words exist, and who answers them.

Nothing here does any work: a command's module is imported only when its word was
typed, because core processes can start only after this module has been read. A
foreseeable mistake is one line on stderr, never a traceback.
"""

from __future__ import annotations

import argparse
import errno
import sys
from importlib import import_module
from typing import Any, NoReturn

from squall.api.errors import ExitCode, SquallError, UsageError
from squall.cli import cluster_words, coord_words
from squall.cli.streams import drop_stdout

_EXIT_CODES = """\
exit codes:
    0  passed
    1  internal error
    2  usage: the command line is wrong
    3  cluster or store unreachable
   98  result invalid: the generator could not keep up, or load was lost
   99  a threshold failed
  104  bad configuration: a mistake in the workflow file or a setting
  105  interrupted (Ctrl-C); summary and results are still written
  107  the author's code raised outside a step
"""

_COMMANDS = {
    "run": "squall.cli.run",
    "new": "squall.cli.new",
    "ping": "squall.cli.ping",
    "target": "squall.cli.target",
    "explain": "squall.cli.explain",
    "demo": "squall.cli.demo",
    "report": "squall.cli.report",
    "compare": "squall.cli.compare",
    "sim": "squall.cli.sim",
    "wal": "squall.cli.wal",
    **cluster_words.COMMANDS,
    **coord_words.COMMANDS,
}
"""Each module has `execute(arguments) -> int`."""

SIDES = "\0--"
"""Stands for `--` among the files of `compare`; no file can have this name."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; the value is the exit code of the process."""
    words = sys.argv[1:] if argv is None else argv
    prefix = f"squall {words[0]}" if words and words[0] in _COMMANDS else "squall"
    try:
        if words and words[0] == "target":
            # The target server has options of its own; it is not described twice.
            arguments = argparse.Namespace(command="target", words=words[1:])
        else:
            arguments = build_parser().parse_args(_marked(words))
            arguments.words = words
        return int(import_module(_COMMANDS[arguments.command]).execute(arguments))
    except UsageError as error:
        return _complain(f"{prefix}: {error}", error.exit_code)
    except SquallError as error:
        return _complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _complain(f"{prefix}: interrupted", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        drop_stdout()
        return int(ExitCode.INTERNAL)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # Files are written before the summary is printed: what fit is already safe.
        drop_stdout()
        return _complain(f"{prefix}: cannot write: no space left", ExitCode.INTERNAL)


def _marked(words: list[str]) -> list[str]:
    """argparse drops `--`, which for `compare` stands between the two sides."""
    if words[:1] != ["compare"] or "--" not in words:
        return words
    place = words.index("--")
    return [*words[:place], SIDES, *words[place + 1 :]]


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="squall",
        description="Load tests in plain Python.",
        epilog=_EXIT_CODES,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    _add_run(
        commands.add_parser("run", help="run a workflow file, or load one URL", epilog=_EXIT_CODES)
    )
    _add_explain(commands.add_parser("explain", help="show what a run would do; sends nothing"))
    new = commands.add_parser("new", help="write a commented starter workflow")
    new.add_argument("file", metavar="FILE", help="for example shop.py")
    new.add_argument("--force", action="store_true", help="overwrite FILE if it exists")
    ping = commands.add_parser("ping", help="one request, with its timings")
    ping.add_argument("url", metavar="URL")
    _add_connection(ping)
    commands.add_parser("target", help="a server to load: status, delay, size, errors by path")
    demo = commands.add_parser("demo", help="load a built-in target for ten seconds")
    demo.add_argument("-d", "--duration", default="10s", metavar="TIME", help="default 10s")
    demo.add_argument("--no-color", action="store_true")
    _add_report(commands.add_parser("report", help="write reports from results documents"))
    _add_compare(commands.add_parser("compare", help="judge what changed between runs"))
    _add_sim(commands.add_parser("sim", help="run the cluster's code in a simulation"))
    _add_wal(commands.add_parser("wal", help="look at a stopped node's write-ahead log"))
    _add_submit(commands.add_parser("submit", help="hand a run to a cluster, print its job id"))
    _add_schedule(commands.add_parser("schedule", help="load tests at their times, on agents"))
    cluster_words.add_cluster_words(commands.add_parser)
    coord_words.add_coord(
        commands.add_parser("coord", help="look after a group of services through its store")
    )
    return parser


def _add_wal(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(
        dest="wal_command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    inspect = commands.add_parser("inspect", help="segments, and records on request")
    inspect.add_argument("--records", metavar="A..B", help="show these")
    verify = commands.add_parser("verify", help="exit 1 if something durable is damaged")
    for command in (inspect, verify):
        command.add_argument("directory", metavar="DIR", help="the data directory of a node")


def _add_sim(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(
        dest="sim_command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    run = commands.add_parser("run", help="run many seeds of a scenario")
    run.add_argument("--seeds", default="1..100", metavar="A..B", help="default 1..100")
    run.add_argument("--jobs", default="1", metavar="N", help="processes, default 1")
    mutants = commands.add_parser("mutants", help="look whether every known bug is found")
    mutants.add_argument("--seeds", default="1..1000", metavar="A..B", help="default 1..1000")
    mutants.add_argument("--jobs", default="1", metavar="N", help="processes, default 1")
    replay = commands.add_parser("replay", help="run one seed and show what happens")
    replay.add_argument("--seed", required=True, metavar="N")
    replay.add_argument("--verbose", action="store_true", help="every event, also packets")
    for command in (run, replay, mutants):
        command.add_argument("scenario", metavar="SCENARIO", help="squall sim list names them")
        if command is not mutants:
            command.add_argument("--mutant", metavar="NAME", help="switch on a known bug")
        command.add_argument(
            "--set", action="append", default=[], metavar="K=N", help="parameter (repeatable)"
        )
    commands.add_parser("list", help="scenarios and their mutants")


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_what(parser)
    _add_load(parser)
    target = parser.add_argument_group("target")
    _add_environment(target)
    _add_connection(target)
    judge = _add_judgement(parser)
    judge.add_argument(
        "--exit-zero", action="store_true", help="exit 0 also when a threshold failed (98, 99)"
    )
    output = parser.add_argument_group("output")
    output.add_argument("--once", action="store_true", help="one user, one iteration, all shown")
    _add_outputs(output)
    output.add_argument("--columns", metavar="LIST", help="of the step table: p50,p99,max")
    output.add_argument("--every", metavar="TIME", help="between progress lines, default 10s")
    output.add_argument("--tag", action="append", default=[], metavar="K=V", help="(repeatable)")
    output.add_argument("-q", "--quiet", action="store_true", help="no progress lines")
    output.add_argument(
        "--ui",
        metavar="MODE",
        help="full: live screen; ci: lines; none: no output; "
        "default: full in a terminal, ci elsewhere and where CI is set",
    )
    output.add_argument("--no-color", action="store_true", help="NO_COLOR does the same")
    output.add_argument("--headless", action="store_true", help=argparse.SUPPRESS)
    cluster_words.add_destination(parser)


def _add_judgement(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:  # pyright: ignore[reportPrivateUsage]
    judge = parser.add_argument_group("judgement")
    judge.add_argument(
        "--threshold",
        action="append",
        default=[],
        metavar="EXPR",
        help='fail the run unless it holds: "pay.p(99) < 800ms", "errors < 1%%" (repeatable)',
    )
    judge.add_argument("--warmup", metavar="TIME", help="leave the first TIME out of the summary")
    return judge


def _add_submit(parser: argparse.ArgumentParser) -> None:
    """As `run`, without what only a person who waits can use."""
    _add_what(parser)
    _add_load(parser)
    target = parser.add_argument_group("target")
    _add_environment(target)
    _add_connection(target)
    _add_judgement(parser)
    parser.add_argument("--tag", action="append", default=[], metavar="K=V", help="(repeatable)")
    parser.add_argument("--json", action="store_true", dest="as_json", help="JSON on stdout")
    cluster_words.add_destination(parser)


def _add_schedule(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(
        dest="schedule_command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    add = commands.add_parser("add", help="run FILE at these times, until it is removed")
    _add_what(add)
    cluster_words.add_times(add)
    _add_load(add)
    target = add.add_argument_group("target")
    _add_environment(target)
    _add_connection(target)
    _add_judgement(add)
    add.add_argument("--tag", action="append", default=[], metavar="K=V", help="(repeatable)")
    cluster_words.finish_schedule(add)
    cluster_words.add_schedule_questions(commands.add_parser)


def _add_outputs(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument("--json", metavar="FILE", help="the results document, with histograms")
    group.add_argument("--html", metavar="FILE", help="a report as one page, opens offline")
    group.add_argument("--markdown", metavar="FILE", help="also to the step summary of CI")
    group.add_argument("--junit", metavar="FILE", help="thresholds as test cases")
    group.add_argument("--csv", metavar="PREFIX", help="PREFIX_steps.csv, _windows, _errors")
    group.add_argument("--xml", metavar="FILE", help="counts and times without histograms")
    group.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="KIND=TARGET",
        help="any of these, or a reporter of your own: file.py:Class=target (repeatable)",
    )


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", metavar="RESULTS", help="of squall run --json; several are merged"
    )
    _add_outputs(parser.add_argument_group("output", "Without any, the summary is printed."))
    parser.add_argument("--columns", metavar="LIST", help="of the step table: p50,p99,max")
    parser.add_argument("--no-color", action="store_true", help="NO_COLOR does the same")


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.usage = "squall compare [-h] [options] BEFORE [BEFORE ...] -- AFTER [AFTER ...]"
    parser.add_argument("files", nargs="*", metavar="RESULTS", help="of squall run --json")
    parser.add_argument(
        "--min-change",
        default="5%",
        metavar="PERCENT",
        help="smaller changes are none, default 5%%",
    )
    parser.add_argument("--fail-on-worse", action="store_true", help="exit 99 if anything is worse")
    parser.add_argument(
        "--force", action="store_true", help="judge also different profiles and INVALID runs"
    )
    parser.add_argument("--markdown", metavar="FILE", help="the same as a table")
    parser.add_argument("--no-color", action="store_true", help="NO_COLOR does the same")


def _add_explain(parser: argparse.ArgumentParser) -> None:
    _add_what(parser)
    _add_load(parser)
    _add_environment(parser.add_argument_group("target"))
    parser.add_argument("--threshold", action="append", default=[], metavar="EXPR")
    cluster_words.add_cost(parser)


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="FILE|URL", help="a workflow file, or http(s)://...")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="these and what they need"
    )
    parser.add_argument("--skip", action="append", default=[], metavar="NAME")


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group(
        "load", "Replaces the model of the file. With several workflows: -u Shop=100 -u Browse=20."
    )

    def repeatable(*flags: str, metavar: str, text: str, dest: str) -> None:
        load.add_argument(
            *flags, action="append", default=[], metavar=metavar, help=text, dest=dest
        )

    repeatable("-u", "--vus", "--users", metavar="N", text="virtual users", dest="vus")
    repeatable("-d", "--duration", metavar="TIME", text="90, 30s, 1h30m", dest="duration")
    repeatable(
        "-i", "--iterations", metavar="N", text="in all, shared: 500, 10k", dest="iterations"
    )
    repeatable("-r", "--rate", metavar="RATE", text="open model: starts, 500/s", dest="rate")
    repeatable(
        "-s", "--stage", metavar="TIME:N", text="ramp: 30s:100 or 1m:50/s, in order", dest="stage"
    )
    load.add_argument("--workers", metavar="N", help="processes, default one per core")
    load.add_argument("--seed", metavar="N", help="of random choices, default 0")


def _add_environment(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument("-H", "--host", default="", metavar="URL", help="for URLs that begin with /")
    group.add_argument(
        "-e", "--env", action="append", default=[], metavar="K=V", help="environment of the file"
    )
    group.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="K[=V]",
        help="like -e, never shown; the value comes from the environment if left out",
    )


def _add_connection(
    group: argparse.ArgumentParser | argparse._ArgumentGroup,  # pyright: ignore[reportPrivateUsage]
) -> None:
    group.add_argument(
        "--resolve",
        action="append",
        default=[],
        metavar="HOST:PORT:ADDR",
        help="connect to ADDR for HOST:PORT (repeatable)",
    )
    group.add_argument("--insecure", action="store_true", help="do not verify certificates")
    group.add_argument("--cacert", default="", metavar="FILE", help="trust this certificate")


class _Parser(argparse.ArgumentParser):
    """One line instead of the whole usage: the line must not scroll away."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        # An abbreviation that works today is ambiguous with tomorrow's option.
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.prog} --help shows what is possible")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"squall {version('squall')}")
        parser.exit()


def _complain(line: str, code: ExitCode) -> int:
    print(line, file=sys.stderr)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
