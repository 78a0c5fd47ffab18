"""`squall compare A.json [A2.json ...] -- B.json [...]`: judges what changed between runs.

Two files need no `--`. With `--fail-on-worse` the exit code is 99 if anything is worse, and 98 if
nothing could be judged, because a gate that judged nothing must not open.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from squall.api.errors import ExitCode, UsageError
from squall.cli.shared.parser import SIDES
from squall.reporting.compare.changes import compare
from squall.reporting.compare.text import render_comparison, render_comparison_markdown
from squall.reporting.document.read import read_results
from squall.reporting.output_files import check_writable, write_whole
from squall.reporting.text.standard_streams import print_or_drop, wants_color


def execute(arguments: Namespace) -> int:
    min_change = _share(arguments.min_change)
    before, after = _sides(arguments.files)
    if arguments.markdown:
        check_writable(arguments.markdown, "--markdown")
    result = compare(
        [read_results(path) for path in before],
        [read_results(path) for path in after],
        min_change=min_change,
        force=arguments.force,
    )
    if arguments.markdown:
        content = render_comparison_markdown(result).encode()
        write_whole(arguments.markdown, content, "--markdown")
    color = wants_color(sys.stdout, no_color=arguments.no_color)
    print_or_drop(render_comparison(result, color=color))
    if not arguments.fail_on_worse:
        return int(ExitCode.PASSED)
    if not result.judged or not any(map(result.number, ("same", "worse", "better"))):
        return int(ExitCode.INVALID)
    return int(ExitCode.THRESHOLDS if result.number("worse") else ExitCode.PASSED)


def _sides(files: Sequence[str]) -> tuple[list[str], list[str]]:
    words = list(files)
    if SIDES in words:
        place = words.index(SIDES)
        before, after = words[:place], words[place + 1 :]
    else:
        before, after = words[:1], words[1:]
        if len(words) > 2:
            raise UsageError(
                "with more than two files, separate the sides: A.json A2.json -- B.json B2.json"
            )
    if not before or not after:
        raise UsageError("name the results of both sides: squall compare A.json -- B.json")
    return before, after


def _share(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / 100.0
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 10.0:
        raise UsageError(f"--min-change {text}: write a percentage, such as 5%")
    return value
