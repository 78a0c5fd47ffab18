"""Reads everything that a file needs to run on another machine: its code and data files.

Decides the place of each file in the bundle: as on this machine, below the lowest folder that
holds the author's file and everything that is named relative to it. Modules from other folders
of the search path are put beside the author's file, where an import finds them. A file that
cannot be placed is refused in one line, never left out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from squall.api.errors import CallError, ConfigError
from squall.clients.shared.file_sets import expanded
from squall.engine.core_protocol import Loaded
from squall.engine.run_options import RunOptions

CERTIFICATES = ".squall/cacert.pem"
"""The place of the `--cacert` file in the bundle."""


@dataclass(frozen=True)
class BundleInputs:
    """The files of a bundle, and the options to run it with."""

    entry: str
    """The author's file, relative to the root of the bundle; empty for a URL."""
    files: dict[str, bytes]
    """Relative path, separated by "/" -> content."""
    options: RunOptions
    """With the paths of files in the bundle."""


def read_bundle_inputs(loaded: Loaded, options: RunOptions) -> BundleInputs:
    """`loaded` is the answer to a load of these options with `imports`."""
    files: dict[str, bytes] = {}
    changed = options
    entry = ""
    if options.file:
        entry = _read_code(loaded, options, files)
    if options.ca_file:
        files[CERTIFICATES] = _read(Path(options.ca_file), "--cacert")
        changed = replace(options, ca_file=CERTIFICATES)
    return BundleInputs(entry, files, changed)


def _read_code(loaded: Loaded, options: RunOptions, files: dict[str, bytes]) -> str:
    author = Path(os.path.abspath(options.file))
    folder = str(author.parent)
    data = [
        (name, workflow.name)
        for workflow in loaded.manifest.workflows
        for name in workflow.data_files
    ]
    targets: dict[str, Path] = {}
    for written, workflow in data:
        if os.path.isabs(written):
            raise ConfigError(
                f"{options.file}  {workflow}: {written} is an absolute path, which other machines "
                f"may not have; name the file relative to {author.name}"
            )
        try:
            names = expanded(written, author.parent)
        except CallError as error:
            raise ConfigError(f"{options.file}  {workflow}: {error.reason}") from error
        for name in names:
            targets[os.path.normpath(os.path.join(folder, name))] = Path(folder, name)
    root = os.path.commonpath([folder, *(os.path.dirname(path) for path in targets)])
    below = PurePosixPath(os.path.relpath(folder, root).replace(os.sep, "/"))
    entry = str(below / author.name)
    files[entry] = _read(author, options.file)
    for place, path in loaded.modules:
        files.setdefault(str(below / place), _read(Path(path), "module"))
    for target, path in targets.items():
        place = os.path.relpath(target, root).replace(os.sep, "/")
        files.setdefault(place, _read(path, "data file"))
    return entry


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} {path}: cannot be read: {error.strerror or error}") from None
