"""`.proto` files of gRPC calls: compiled before the run, by the compiler of grpcio-tools.

A `Proto` is a class attribute of a workflow. Each has a pool of its own, so two files may declare
the same names. protobuf is imported with the first file that needs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from squall.api.errors import ConfigError
from squall.api.quantities import wrong

NEEDS_GRPC = "which is not installed: pip install 'squall[grpc]'"
_MESSAGE_MAX = 300


class Proto:
    """The messages and methods of a `.proto` file: `shop = Proto("shop.proto")`.

    `self.shop.Order(item="shoe")` makes a message. Calls of the methods take dicts, too. Paths are
    relative to the workflow file. `include` are folders that its imports begin in, by default the
    folder of the file.
    """

    def __init__(
        self, path: str | PathLike[str], *, include: str | PathLike[str] | Sequence[str] = ()
    ) -> None:
        if not isinstance(path, str | PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise wrong("Proto", path, "is no path", 'give one, such as "shop.proto"')
        self.path = str(path)
        folders = [include] if isinstance(include, str | PathLike) else list(include)
        self.include = [str(each) for each in folders] or [os.path.dirname(self.path) or "."]
        self.paths: list[str] = [self.path]
        """This file and those that it imports, as paths from the workflow file."""
        self.pool: Any = None
        """The protobuf `DescriptorPool`; None before the file is loaded."""
        self._package = ""

    def load(self, base_dir: Path) -> None:
        """Compiles the file. Raises a `ConfigError` with the words of the compiler."""
        if self.pool is not None:
            return
        if not (base_dir / self.path).is_file():
            raise ConfigError(f"{self.path}: no such file")
        data = self._compiled(base_dir)
        from google.protobuf import descriptor_pb2, descriptor_pool

        files = descriptor_pb2.FileDescriptorSet.FromString(data).file
        pool = descriptor_pool.DescriptorPool()
        # protoc puts a file behind those that it imports.
        for file in files:
            pool.Add(file)  # pyright: ignore[reportUnknownMemberType]
        self._package = files[-1].package
        self.paths = [self.path, *self._imported(base_dir, [file.name for file in files[:-1]])]
        self.pool = pool

    def _compiled(self, base_dir: Path) -> bytes:
        if find_spec("grpc_tools") is None or find_spec("google.protobuf") is None:
            raise ConfigError(f"Proto needs grpcio-tools, {NEEDS_GRPC}")
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "set"
            # A process of its own: the compiler reports mistakes on the standard error of the
            # process that it runs in.
            done = subprocess.run(
                [
                    *(sys.executable, "-P", "-m", "grpc_tools.protoc"),
                    *[f"-I{base_dir / each}" for each in self.include],
                    *("--include_imports", f"--descriptor_set_out={out}"),
                    str(base_dir / self.path),
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise ConfigError(self._explained(done.stderr, base_dir))
            return out.read_bytes()

    def _explained(self, text: str, base_dir: Path) -> str:
        """The first message of the compiler, with the file as the author named it."""
        lines = [line for line in text.splitlines() if "warning:" not in line]
        first = (lines or ["the compiler failed"])[0].replace(f"{base_dir}{os.sep}", "")
        if not first.startswith(self.path):
            name = os.path.basename(self.path)
            at = first.find(f"{name}:")
            first = f"{self.path}{first[at + len(name) :]}" if at >= 0 else f"{self.path}: {first}"
        return first[:_MESSAGE_MAX]

    def _imported(self, base_dir: Path, names: list[str]) -> list[str]:
        """The imported files that are the author's; google/protobuf/*.proto is the compiler's."""
        found: list[str] = []
        for name in names:
            places = [os.path.normpath(os.path.join(each, name)) for each in self.include]
            found += [place for place in places if (base_dir / place).is_file()][:1]
        return found

    def __getattr__(self, name: str) -> Any:
        """The class of a message, by its name in the package of the file."""
        if name.startswith("_"):
            raise AttributeError(name)
        if self.pool is None:
            raise AttributeError(f"{self.path} is not loaded yet; use {name} in a step")
        from google.protobuf import message_factory

        full = f"{self._package}.{name}" if self._package else name
        try:
            found = self.pool.FindMessageTypeByName(full)
        except KeyError:
            raise AttributeError(f"{self.path} has no message {name}") from None
        return message_factory.GetMessageClass(found)

    def __repr__(self) -> str:
        return f"Proto({self.path!r})"
