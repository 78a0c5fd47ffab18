"""Flags of the commands for a first try on one machine."""

from __future__ import annotations

from squall.cli.shared.flags import add_no_color, add_timers
from squall.cli.shared.parser import Flags, Parser


def _add_new(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="for example shop.py")
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")
    parser.add_argument(
        "--ci", choices=("github", "gitlab"), help="also write a CI job that runs FILE"
    )


def _add_completion(parser: Parser) -> None:
    parser.epilog = (
        "bash:  source <(squall completion bash)   in ~/.bashrc\n"
        "zsh:   squall completion zsh > ~/.zfunc/_squall   with ~/.zfunc in $fpath\n"
        "fish:  squall completion fish > ~/.config/fish/completions/squall.fish"
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def _add_demo(parser: Parser) -> None:
    parser.add_argument("-d", "--duration", default="10s", metavar="TIME", help="default 10s")
    add_no_color(parser)


def _add_dev(parser: Parser) -> None:
    parser.add_argument(
        "--managers", default="1", metavar="N", help="of each datacenter: 1, 3 or 5; default 1"
    )
    parser.add_argument("--workers", default="2", metavar="N", help="of each datacenter, default 2")
    parser.add_argument("--cores", default="1", metavar="N", help="of each worker, default 1")
    parser.add_argument(
        "--datacenters",
        default="1",
        metavar="N|NAME,...",
        help="how many, or their names: eu,us; default 1",
    )
    parser.add_argument(
        "--gates",
        metavar="N",
        help="0, 1, 3 or 5 gates in front of them; default 1 for several datacenters",
    )
    parser.add_argument(
        "--far",
        action="append",
        default=[],
        metavar="NAME=TIME",
        help="the round trip to a datacenter: us=80ms (repeatable)",
    )
    parser.add_argument(
        "--data", metavar="DIR", help="keep the data here; default: a temporary directory"
    )
    parser.add_argument(
        "--web",
        nargs="?",
        const="",
        metavar="[HOST:]PORT",
        help="serve the page of squall web from the first gate or manager, and print its address",
    )
    parser.add_argument(
        "--json", action="store_true", help="print addresses, process ids and secret as JSON"
    )
    add_timers(parser)


def _add_target(parser: Parser) -> None:
    """The target server parses its own options."""


FLAGS: dict[str, Flags] = {
    "new": _add_new,
    "completion": _add_completion,
    "demo": _add_demo,
    "dev": _add_dev,
    "target": _add_target,
}
