"""The library alone: what the documents tell to install is enough, and nothing heavy is loaded."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from tests.lab.programs import ROOT

# Only the packages that the first argument names can be found.
BLOCKER = """
import sys
from importlib.machinery import PathFinder

class OnlyAllowed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ALLOWED and top not in sys.stdlib_module_names and top[0] != "_":
            return None
        return super().find_spec(name, path, target)

ALLOWED = {"squall", *sys.argv.pop(1).split(",")}
sys.meta_path[:] = [each for each in sys.meta_path if each is not PathFinder] + [OnlyAllowed]
"""
MEMBER = """
import asyncio
import squall.coordination as library

for name in library.__all__:
    getattr(library, name)

async def main():
    queue = library.Queue("mail")
    plugins = (queue, library.Scheduler(), library.Ttl())
    async with library.Coordinator(
        "memory:", *plugins, profile="fast", unsafe_timings=True
    ) as member:
        await member.ensure_coordinator()
        ticket_id = await queue.enqueue(1)
        async for ticket in queue.claim():
            async with ticket:
                pass
            break
        print((await queue.result(ticket_id)).state)
        if SHOWS_METRICS:
            print(member.metrics_text())

asyncio.run(main())
"""
COMMAND = "from squall.cli import command\nsys.exit(command())\n"


def documented() -> list[str]:
    text = (ROOT / "docs/coordination/README.md").read_text(encoding="utf-8")
    found = re.search(r"^pip install --no-deps \.\npip install (.+)$", text, re.M)
    assert found is not None
    return [name.replace("-", "_") for name in found[1].split()]


def run(program: str, allowed: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKER + program, ",".join(allowed), *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_a_member_needs_msgspec_only() -> None:
    done = run("SHOWS_METRICS = False\n" + MEMBER, ["msgspec"])
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def test_what_is_documented_is_enough_for_metrics_and_redis() -> None:
    allowed = [*documented(), "typing_extensions"]
    done = run("SHOWS_METRICS = True\n" + MEMBER, allowed)
    assert "coordination_is_leader" in done.stdout, done.stderr
    done = run("from squall.coordination.stores.redis import store\nimport redis.asyncio", allowed)
    assert done.returncode == 0, done.stderr


def test_the_command_of_the_library_works_and_a_load_test_says_what_is_missing() -> None:
    done = run(COMMAND, ["msgspec"], "coord", "secret", "generate")
    assert done.returncode == 0 and len(done.stdout.strip()) == 64, done.stderr
    done = run(COMMAND, ["msgspec"], "run", "examples/hello.py")
    assert done.returncode == 104
    assert done.stderr == (
        "squall run: load tests need cryptography, httptools, numpy, textual, uvloop, which this"
        " installation does not have: run pip install cryptography httptools numpy textual uvloop\n"
    )


def test_no_package_of_the_load_tester_is_needed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split(r"[<>=]", each)[0] for each in project["dependencies"]}
    extra = {re.split(r"[<>=]", each)[0] for each in project["optional-dependencies"]["redis"]}
    named = {name.replace("_", "-") for name in documented()}
    assert named - extra <= needed and extra <= named
    assert not named & {"numpy", "textual", "uvloop", "httptools", "cryptography"}


def test_signing_keys_are_those_of_hkdf() -> None:
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    from squall.coordination.secrets import signing

    expected = HKDF(algorithm=hashes.SHA256(), length=32, salt=signing.SALT, info=b"scope")
    found = signing._derived(b"secret", b"scope")  # pyright: ignore[reportPrivateUsage]
    assert found == expected.derive(b"secret")
