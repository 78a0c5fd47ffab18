"""What goes into a bundle: the author's modules and data files, and nothing else."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from squall.api.errors import ConfigError
from squall.cluster.client.pack import pack
from squall.cluster.protocol.bundle import unpack
from squall.engine.core_protocol import Loaded
from squall.engine.plan.bundle_inputs import CERTIFICATES, BundleInputs, read_bundle_inputs
from squall.engine.run.local_run import load_with_imports
from squall.engine.run_options import RunOptions
from tests.runs.lab.in_process import in_process

STEP = """
    @step()
    async def home(self, url: URL = "http://127.0.0.1:1/") -> HTTPResponse:
        return await self.client.http.get(url)
"""


def loaded(
    file: Path, *, own_process: bool = False, **options: object
) -> tuple[Loaded, BundleInputs]:
    """Only a process of its own has imported nothing but what the file needs."""
    asked = RunOptions(file=str(file), **options)  # type: ignore[arg-type]
    with nullcontext() if own_process else in_process(file.parent):
        answer = asyncio.run(load_with_imports(asked))
    return answer, read_bundle_inputs(answer, asked)


def written(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_a_file_travels_with_its_modules_and_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    installed = tmp_path / "env" / "site-packages"
    written(shared, {"tools/__init__.py": "", "tools/names.py": "NAME = 1\n"})
    written(installed, {"farlib.py": "X = 1\n", "unused.py": ""})
    monkeypatch.setattr(sys, "path", [*sys.path, str(shared), str(installed)])
    written(
        tmp_path / "project",
        {
            "data/users.csv": "name\nada\n",
            "load/cat.png": "cat",
            "load/near.py": "from pkg.deep import leaf\nfrom tools.names import NAME\n",
            "load/pkg/__init__.py": "",
            "load/pkg/deep.py": "leaf = 1\nfrom . import sibling\n",
            "load/pkg/sibling.py": "import json\n",
            "load/pkg/not_imported.py": "",
            "load/later.py": "import farlib\n",
            "load/other.py": "",
            "load/shop.py": """
from __future__ import annotations
import csv
from typing import TYPE_CHECKING
from squall import URL, Feed, File, HTTPResponse, Workflow, step
import near
if TYPE_CHECKING:
    import only_for_checkers
try:
    import a_nicety
except ImportError:
    a_nicety = None

class Shop(Workflow):
    user = Feed("../data/users.csv")

    @step()
    async def upload(self, url: URL = "http://127.0.0.1:1/", cat: File = "cat.png") -> HTTPResponse:
        import later
        return await self.client.http.post(url, files={"cat": cat})
""",
        },
    )
    shop = tmp_path / "project" / "load" / "shop.py"
    answer, contents = loaded(shop, own_process=True, env={"A": "1"}, secrets={"B": "2"})
    assert contents.entry == "load/shop.py"
    assert sorted(contents.files) == [
        "data/users.csv",
        "load/cat.png",
        "load/later.py",
        "load/near.py",
        "load/pkg/__init__.py",
        "load/pkg/deep.py",
        "load/pkg/sibling.py",
        "load/shop.py",
        "load/tools/__init__.py",
        "load/tools/names.py",
    ]
    assert answer.requirements == ["farlib"]
    submission, bundle = pack(answer, contents)
    assert submission.bundle == bundle.digest
    assert submission.contents.environment == ("A", "B")
    assert unpack(bundle.data)[1] == contents.files
    again = pack(*loaded(shop, own_process=True))[1]
    assert again.manifest.files == bundle.manifest.files


def test_a_certificate_travels_too(tmp_path: Path) -> None:
    written(tmp_path, {"ca.pem": "trust", "shop.py": _shop("")})
    _, contents = loaded(tmp_path / "shop.py", ca_file=str(tmp_path / "ca.pem"))
    assert contents.files[CERTIFICATES] == b"trust"
    assert contents.options.ca_file == CERTIFICATES


def test_an_absolute_path_is_refused(tmp_path: Path) -> None:
    written(tmp_path, {"users.csv": "name\nada\n"})
    written(tmp_path, {"shop.py": _shop(f'user = Feed("{tmp_path}/users.csv")')})
    with pytest.raises(ConfigError, match=r"name the file relative to shop\.py"):
        loaded(tmp_path / "shop.py")


def test_a_url_needs_no_bundle_of_files(tmp_path: Path) -> None:
    asked = RunOptions(url="http://127.0.0.1:1/")
    with in_process(tmp_path):
        answer = asyncio.run(load_with_imports(asked))
    contents = read_bundle_inputs(answer, asked)
    assert contents.files == {} and contents.entry == ""
    assert pack(answer, contents)[0].contents.files == ()


def test_a_bad_threshold_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    written(tmp_path, {"shop.py": _shop("")})
    answer, contents = loaded(tmp_path / "shop.py", thresholds=("hoem.p(99) < 1s",))
    with pytest.raises(ConfigError, match='did you mean "home"'):
        pack(answer, contents)


def _shop(attribute: str) -> str:
    head = "from squall import URL, Feed, HTTPResponse, Workflow, step\n\n"
    return f"{head}class Shop(Workflow):\n    {attribute or 'vus = 1'}\n{STEP}"
