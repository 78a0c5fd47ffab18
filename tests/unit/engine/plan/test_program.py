"""Reading a whole file: which workflows run, what they hand over, what spans them."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.api.errors import ConfigError, UsageError
from squall.engine.run_options import ProfileFlags
from squall.stats.thresholds.binding import bind_all
from tests.unit.engine.lab.program_files import load, mistakes

THREE = """
class _Hidden(Workflow):
    @step()
    async def a(self) -> None: ...

class Shared(Workflow):
    abstract = True
    @step()
    async def b(self, url: URL = "http://127.0.0.1:1/") -> HTTPResponse: ...

class Setup(Workflow):
    @step()
    async def c(self) -> str: ...

@depends("Setup")
class Shop(Shared): ...

class Browse(Shared): ...

@depends("Shop", when="always")
class Teardown(Workflow):
    @step()
    async def d(self) -> None: ...
"""


def test_only_public_concrete_classes_of_the_file_run(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(
        "from squall import *\n"
        "class Imported(Workflow):\n"
        "    @step()\n"
        "    async def e(self) -> None: ...\n"
    )
    program = load(tmp_path, "from elsewhere import Imported\n" + THREE)
    assert list(program.plans) == ["Setup", "Shop", "Browse", "Teardown"]
    assert program.plans["Shop"].is_test
    assert program.plans["Teardown"].always
    assert [w.profile.model for w in program.manifest.workflows] == [
        "once",
        "closed",
        "closed",
        "once",
    ]


def test_a_dependency_that_is_left_out_is_replaced_by_its_own(tmp_path: Path) -> None:
    kept = load(tmp_path, THREE, skip=("Shop",)).plans
    assert kept["Teardown"].depends == ["Setup"]


def test_only_takes_dependencies_along_and_skip_leaves_out(tmp_path: Path) -> None:
    assert list(load(tmp_path, THREE, only=("Shop",)).plans) == ["Setup", "Shop"]
    kept = load(tmp_path, THREE, skip=("Setup", "Browse")).plans
    assert list(kept) == ["Shop", "Teardown"]
    assert kept["Shop"].depends == []
    assert list(load(tmp_path, THREE, only=("Teardown",), skip=("Setup",)).plans) == [
        "Shop",
        "Teardown",
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"only": ("Shpo",)}, '--only Shpo: no workflow "Shpo"; did you mean "Shop"?'),
        ({"skip": ("Nobody",)}, "--skip Nobody"),
        ({"only": ("Shop",), "skip": ("Shop", "Setup")}, "leave no workflow"),
        ({"profiles": {"": ProfileFlags(vus=5)}}, "this file has 2 test workflows"),
        ({"profiles": {"Nobody": ProfileFlags(vus=5)}}, 'no workflow "Nobody"'),
    ],
)
def test_flags_that_fit_no_workflow_are_usage_errors(
    tmp_path: Path, options: dict[str, object], expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, THREE, **options)
    assert expected in str(caught.value)


def test_flags_reach_the_workflow_they_name(tmp_path: Path) -> None:
    flags = {"Shop": ProfileFlags(vus=7), "": ProfileFlags(duration="9s")}
    manifest = load(tmp_path, THREE, profiles=flags).manifest
    assert manifest.workflow("Shop").profile.vus == 7
    assert manifest.workflow("Browse").profile.duration_s == 9.0
    assert manifest.workflow("Setup").profile.model == "once"


WEIGHTED = """
class _Home(Workflow):
    @step()
    async def home(self, url: URL = "http://127.0.0.1:1/") -> HTTPResponse: ...
class Browse(_Home):
    weight = 6
class Search(_Home):
    weight = 3
class Buy(_Home):
    weight = 1
"""


def test_a_load_without_a_name_is_split_by_weight(tmp_path: Path) -> None:
    flags = {"": ProfileFlags(vus=25, duration="9s")}
    workflows = load(tmp_path, WEIGHTED, profiles=flags).manifest.workflows
    assert [each.profile.vus for each in workflows] == [15, 8, 2]
    assert {each.profile.duration_s for each in workflows} == {9.0}
    rates = load(tmp_path, WEIGHTED, profiles={"": ProfileFlags(rate="20/s")}).manifest.workflows
    assert [each.profile.rate_per_s for each in rates] == [12.0, 6.0, 2.0]
    made = load(tmp_path, WEIGHTED, profiles={"": ProfileFlags(iterations=10)}).manifest.workflows
    assert [each.profile.iterations for each in made] == [6, 3, 1]


def test_iterations_of_each_user_are_not_split(tmp_path: Path) -> None:
    flags = {"": ProfileFlags(vus=10, iterations="5/vu")}
    made = load(tmp_path, WEIGHTED, profiles=flags).manifest.workflows
    assert [(each.profile.vus, each.profile.iterations) for each in made] == [
        *((6, 30), (3, 15), (1, 5))
    ]
    alone = {"": ProfileFlags(iterations="5/vu")}
    for name in ("Shop", "Browse"):
        profile = load(tmp_path, THREE, profiles=alone).manifest.workflow(name).profile
        assert (profile.vus, profile.iterations_per_vu) == (1, 5)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (ProfileFlags(vus=2), "vus 2 is too few for 3 workflows"),
        (
            ProfileFlags(stages=("1s:10",)),
            "stages are not split; say which one",
        ),
    ],
)
def test_a_load_that_cannot_be_split_is_a_usage_error(
    tmp_path: Path, flags: ProfileFlags, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, WEIGHTED, profiles={"": flags})
    assert said in str(caught.value)


def test_once_makes_one_user_and_one_iteration(tmp_path: Path) -> None:
    profile = load(tmp_path, THREE, once=True).manifest.workflow("Shop").profile
    assert (profile.model, profile.vus, profile.iterations) == ("iterations", 1, 1)


def test_a_file_without_workflows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no workflow in this file"):
        load(tmp_path, "x = 1\n")


def test_dependency_mistakes_are_told_with_the_others(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        """
        @depends("Shop", "Nobody")
        class Shop(Workflow):
            @step()
            async def a(self): ...
        @depends("Shop")
        class Other(Workflow):
            @step("b")
            async def c(self) -> None: ...
        """,
    )
    assert "flow.py:3  Shop: depends on itself" in found
    assert any('flow.py:3  Shop: no workflow "Nobody"' in line for line in found)
    assert any("Shop.a needs a return type" in line for line in found)
    assert any('Other.c: no step "b"' in line for line in found)


def test_a_circle_of_workflows_is_told_at_its_first_member(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        """
        class Free(Workflow):
            @step()
            async def a(self) -> None: ...
        @depends("C")
        class B(Workflow):
            @step()
            async def a(self) -> None: ...
        @depends("B")
        class C(Workflow):
            @step()
            async def a(self) -> None: ...
        """,
    )
    assert found == [
        "flow.py:6  B: workflows wait for each other: B -> C -> B; remove one of these dependencies"
    ]


def test_state_hooks_must_name_workflows_that_ran_before(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        """
        class Shop(Workflow):
            @step()
            async def a(self, url: URL = "http://127.0.0.1:1/") -> HTTPResponse: ...
            @state("Adit")
            def key(self) -> Provide[str]: ...
        class Audit(Workflow):
            @step()
            async def b(self) -> None: ...
            @state("Shop")
            def take(self, key) -> Use[str]: ...
        """,
    )
    assert any('Shop.key: no workflow "Adit"; did you mean "Audit"?' in line for line in found)
    assert any(
        'Audit.take: Audit does not run after Shop; add @depends("Shop")' in f for f in found
    )
    assert any("Audit.take: argument key needs a default" in line for line in found)


def test_values_of_a_test_workflow_travel_by_state_only(tmp_path: Path) -> None:
    text = """
        class Shop(Workflow):
            @step()
            async def order(self, url: URL = "http://127.0.0.1:1/") -> HTTPResponse: ...
            @state("Audit")
            def last(self) -> Provide[str]: ...
        @depends("Shop")
        class Audit(Workflow):
            @step()
            async def audit(self, last: str, {more}) -> None: ...
    """
    program = load(tmp_path, text.format(more="order: int = 0"))
    assert program.manifest.workflow("Audit").wants == ["last", "order"]
    assert program.manifest.workflow("Shop").provides == {"last": ["Audit"]}
    found = mistakes(tmp_path, text.format(more="order: HTTPResponse"))
    assert any('Audit.audit: no step "order"' in line for line in found)


def test_a_host_that_changes_nothing_is_warned_about(tmp_path: Path) -> None:
    program = load(tmp_path, THREE, host="http://other")
    assert program.manifest.warnings == [
        "--host changes nothing: no URL of this file starts with /"
    ]
    relative = THREE.replace("http://127.0.0.1:1/", "/")
    assert load(tmp_path, relative, host="http://other").manifest.warnings == []
    in_the_body = """
        class Shop(Workflow):
            @step()
            async def home(self) -> HTTPResponse:
                return await self.client.http.get(f"/items/{{1 + 1}}")
            {more}
    """
    assert load(tmp_path, in_the_body.format(more=""), host="http://o").manifest.warnings == []
    declared = """@step()
            async def other(self, url: URL = "http://127.0.0.1:1/") -> HTTPResponse: ..."""
    both = in_the_body.format(more=declared)
    assert load(tmp_path, both, host="http://o").manifest.warnings == []


def test_feeds_are_loaded_beside_the_file_and_bad_lines_named(tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_text("name,age\nada,36\nbob,old\n")
    text = """
        from dataclasses import dataclass
        @dataclass
        class User:
            name: str
            age: int
        class Shop(Workflow):
            user = Feed("users.csv", User)
            @step()
            async def a(self) -> None: ...
    """
    found = mistakes(tmp_path, text)
    assert any("users.csv:3" in line for line in found), found
    (tmp_path / "users.csv").write_text("name,age\nada,36\n")
    rows = load(tmp_path, text).rows["Shop"]["user"]
    assert [(row.name, row.age) for row in rows] == [("ada", 36)]


def test_a_class_may_say_what_its_workers_do_without_a_manager(tmp_path: Path) -> None:
    chosen = THREE.replace("class Shop(Shared): ...", "class Shop(Shared): on_control_loss = {}")
    manifest = load(tmp_path, chosen.format('"continue"')).manifest
    assert manifest.workflow("Shop").on_control_loss == "continue"
    assert manifest.workflow("Browse").on_control_loss == ""
    (refusal,) = mistakes(tmp_path, chosen.format('"maybe"'))
    assert 'Shop: on_control_loss "maybe" is not known; write "stop"' in refusal


def test_a_wrong_threshold_is_reported_at_its_own_line(tmp_path: Path) -> None:
    cases = {
        '    thresholds = ["errors < 1%", "b.p(99) < 1s"]\n': 1,
        '    thresholds = [\n        "errors < 1%",\n        "b.p(99) < 1s",\n    ]\n': 3,
        '    thresholds = "b.p(99) < 1s"\n': 1,
        # Not written out in the class: the line of the attribute is the nearest.
        '    thresholds = ["b.p(99) < 1s"] * 2\n': 1,
    }
    for body, below in cases.items():
        source = (
            "from squall import *\n\nclass Shop(Workflow):\n"
            f"{body}    @step()\n    async def a(self) -> None: ...\n"
        )
        manifest = load(tmp_path, source).manifest
        line = manifest.workflow("Shop").line + below
        with pytest.raises(ConfigError, match=rf"\.py:{line}  Shop: "):
            bind_all(manifest)
