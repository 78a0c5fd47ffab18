"""`squall completion SHELL`: prints a completion script, made from the parsers of the commands.

The script holds every command, flag and choice of this version, so that a key press starts no
Python.
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from squall.cli.shared.parser import Parser
from squall.reporting.text.standard_streams import print_or_drop


@dataclass(frozen=True)
class CompletionFlag:
    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]


@dataclass
class CompletionNode:
    """What may follow one command: its subcommands with their help, and its flags."""

    path: str
    """"" for `squall` itself, " coord signal" for a command of a command."""
    commands: dict[str, str] = field(default_factory=dict[str, str])
    flags: list[CompletionFlag] = field(default_factory=list[CompletionFlag])
    choices: tuple[str, ...] = ()
    """Of its first argument."""


def execute(arguments: Namespace) -> int:
    print_or_drop(RENDERERS[arguments.shell](all_nodes(arguments.parser)))
    return 0


def all_nodes(parser: Parser) -> list[CompletionNode]:
    from squall.target.command import build_parser

    # The target server parses its own options.
    (target,) = nodes_of(build_parser(), " target")
    return [target if node.path == target.path else node for node in nodes_of(parser)]


def nodes_of(parser: argparse.ArgumentParser, path: str = "") -> Iterator[CompletionNode]:
    """Walks all commands. Reads the flags of each, which a command line does for its own only."""
    if isinstance(parser, Parser):
        parser.read_flags()
    node = CompletionNode(path)
    below: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            below = dict(action.choices)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            helps = {each.dest: each.help or "" for each in action._choices_actions}  # pyright: ignore[reportPrivateUsage]
            node.commands = {name: helps.get(name, "") for name in below}
        elif action.option_strings and action.help != argparse.SUPPRESS:
            node.flags.append(_flag(action))
        elif action.choices and not action.option_strings:
            node.choices = tuple(map(str, action.choices))
    yield node
    for name, each in below.items():
        yield from nodes_of(each, f"{path} {name}")


def _flag(action: argparse.Action) -> CompletionFlag:
    text = " ".join((action.help or "").replace("%%", "%").split())
    choices = tuple(map(str, action.choices or ()))
    return CompletionFlag(tuple(action.option_strings), text, action.nargs != 0, choices)


def _bash(nodes: list[CompletionNode]) -> str:
    paths = "|".join(f'"{node.path}"' for node in nodes if node.path)
    words: list[str] = []
    values: list[str] = []
    for node in nodes:
        names = [*node.commands, *node.choices, *(n for flag in node.flags for n in flag.names)]
        words.append(f'    "{node.path}") words="{" ".join(names)}" ;;')
        for flag in node.flags:
            if flag.takes_value:
                cases = "|".join(f'"{node.path} {name}"' for name in flag.names)
                values.append(f'    {cases}) words="{" ".join(flag.choices)}"; after=value ;;')
    return "\n".join(
        [
            "# bash completion of squall; load it with: source <(squall completion bash)",
            "_squall() {",
            '  local cur="${COMP_WORDS[COMP_CWORD]}" path="" after="" words="" i',
            "  for ((i = 1; i < COMP_CWORD; i++)); do",
            '    case "$path ${COMP_WORDS[i]}" in',
            f'      {paths}) path="$path ${{COMP_WORDS[i]}}" ;;',
            "    esac",
            "  done",
            '  case "$path" in',
            *words,
            "  esac",
            '  case "$path ${COMP_WORDS[COMP_CWORD - 1]}" in',
            *values,
            "  esac",
            '  COMPREPLY=($(compgen -W "$words" -- "$cur"))',
            "  if [[ -n $after || ( -n $path && $cur != -* ) ]]; then",
            '    COMPREPLY+=($(compgen -f -- "$cur"))',
            "  fi",
            "}",
            "complete -o filenames -F _squall squall",
        ]
    )


def _zsh(nodes: list[CompletionNode]) -> str:
    paths = "|".join(f'"{node.path}"' for node in nodes if node.path)
    lines = [
        "#compdef squall",
        "# zsh completion of squall; save it as _squall in a folder of $fpath",
        "_squall() {",
        '  local at="" word; local -a commands flags',
        "  for word in ${words[2,CURRENT-1]}; do",
        '    case "$at $word" in',
        f'      {paths}) at="$at $word" ;;',
        "    esac",
        "  done",
        '  case "$at ${words[CURRENT-1]}" in',
    ]
    for node in nodes:
        for flag in node.flags:
            if flag.takes_value:
                cases = "|".join(f'"{node.path} {name}"' for name in flag.names)
                what = f"compadd {' '.join(flag.choices)}" if flag.choices else "_files"
                lines.append(f"    {cases}) {what}; return ;;")
    lines += ["  esac", '  case "$at" in']
    for node in nodes:
        commands = [_zsh_word(name, text) for name, text in node.commands.items()]
        commands += [_zsh_word(choice, "") for choice in node.choices]
        flags = [_zsh_word(name, flag.help) for flag in node.flags for name in flag.names]
        lines.append(f'    "{node.path}") commands=({" ".join(commands)})')
        lines.append(f"      flags=({' '.join(flags)}) ;;")
    lines += [
        "  esac",
        "  (( $#commands )) && _describe command commands",
        "  [[ $PREFIX == -* ]] && _describe flag flags",
        "  [[ -n $at && $PREFIX != -* ]] && _files",
        "}",
        "# Loaded by name from $fpath this file is the function; sourced it only defines it.",
        'if [[ $funcstack[1] == _squall ]]; then _squall "$@"; else compdef _squall squall; fi',
    ]
    return "\n".join(lines)


def _zsh_word(name: str, text: str) -> str:
    shown = f"{name}:{text}".replace("'", "'\\''") if text else name
    return f"'{shown}'"


def _fish(nodes: list[CompletionNode]) -> str:
    paths = " ".join(f"'{node.path}'" for node in nodes if node.path)
    lines = [
        "# fish completion of squall; load it with: squall completion fish | source",
        "function __squall_at",
        "    set -l at ''",
        "    for word in (commandline -opc)[2..-1]",
        '        contains -- "$at $word" ' + paths + '; and set at "$at $word"',
        "    end",
        '    test "$at" = "$argv[1]"',
        "end",
    ]
    for node in nodes:
        start = f"complete -c squall -n \"__squall_at '{node.path}'\""
        for name, text in node.commands.items():
            lines.append(f"{start} -f -a {name} -d {_quoted(text)}")
        lines += [f"{start} -f -a {choice}" for choice in node.choices]
        for flag in node.flags:
            kinds = [("-l " if n.startswith("--") else "-s ") + n.lstrip("-") for n in flag.names]
            value = " -r" if flag.takes_value else ""
            value += f" -f -a {_quoted(' '.join(flag.choices))}" if flag.choices else ""
            lines.append(f"{start} {' '.join(kinds)}{value} -d {_quoted(flag.help)}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


RENDERERS: dict[str, Callable[[list[CompletionNode]], str]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
