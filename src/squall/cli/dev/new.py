"""`squall new FILE`: writes a commented starter workflow, and with `--ci` a job that runs it.
Overwrites only with `--force`."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from squall.api.errors import UsageError

STARTER = Path(__file__).with_name("starter_workflow.py")
"""A module of this package, so that lint and type checks cover what people get."""


def execute(arguments: Namespace) -> int:
    path = Path(arguments.file)
    if path.suffix != ".py":
        raise UsageError(f"{path}: a workflow is a Python file; name it {path.name}.py")
    if arguments.ci is not None:
        return _write_job(path, arguments.ci, force=arguments.force)
    _write(path, STARTER.read_text(encoding="utf-8"), force=arguments.force)
    print(f"wrote {path}; try it:")
    print("  squall target &        # a server to load, on 127.0.0.1:8080")
    print(f"  squall run {path} --once")
    print(f"  squall run {path} -d 10s")
    return 0


def _write_job(path: Path, system: str, *, force: bool) -> int:
    """Writes the job, and the workflow unless it exists: people add CI to what they have."""
    from squall.cli.dev.ci_files import CI_FILES

    job = CI_FILES[system]
    place = Path(job.path)
    for each in (place, path):
        each.parent.mkdir(parents=True, exist_ok=True)
    _write(place, job.text.replace("FILE", path.as_posix()), force=force)
    written = [str(place)]
    if not path.exists():
        _write(path, STARTER.read_text(encoding="utf-8"), force=False)
        written.append(str(path))
    print(f"wrote {' and '.join(written)}; set the variable TARGET to the address to load")
    return 0


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists; --force overwrites it") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
