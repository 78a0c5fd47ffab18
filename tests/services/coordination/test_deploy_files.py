"""The files in deploy/coordination: rules that promtool accepts and that fire when they
should, a dashboard of metrics that exist, units that systemd accepts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import yaml

from squall.coordination.metrics import metric_names
from tests.lab.programs import ROOT
from tests.services.coordination.lab.places import missing

DEPLOY = ROOT / "deploy" / "coordination"
METRIC = re.compile(
    r"\b(?:coordination_\w+|blocking_coordination_\w+|active_coordinators|signal_delivery_\w+"
    r"|timeout_events\w*|cleanup_duration\w*)\b"
)
RULES = yaml.safe_load((DEPLOY / "rules.yml").read_text(encoding="utf-8"))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]


def run(program: str, *arguments: str) -> None:
    if shutil.which(program) is None:
        missing(f"{program} is not installed")
    done = subprocess.run([program, *arguments], cwd=DEPLOY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules() -> None:
    run("promtool", "check", "rules", "rules.yml")


def test_every_alert_fires_beyond_its_limit_and_not_within() -> None:
    run("promtool", "test", "rules", "rules_test.yml")
    tests = yaml.safe_load((DEPLOY / "rules_test.yml").read_text(encoding="utf-8"))["tests"]
    fires: dict[str, set[bool]] = {}
    for case in tests:
        for check in case["promql_expr_test"]:
            (name,) = re.findall(r'alertname="(\w+)"', check["expr"])
            fires.setdefault(name, set()).add(bool(check["exp_samples"]))
    assert {rule["alert"] for rule in ALERTS} == {n for n, seen in fires.items() if len(seen) == 2}


def test_rules_name_only_metrics_that_exist() -> None:
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    named = {name for rule in rules for name in METRIC.findall(rule["expr"])}
    assert named and named <= set(metric_names())


def test_the_dashboard_names_only_metrics_that_exist_and_loads_without_edits() -> None:
    dashboard = json.loads((DEPLOY / "dashboard.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = dashboard["templating"]["list"][1]["query"]["query"]
    named = {name for query in (*queries, asked) for name in METRIC.findall(query)}
    assert named <= set(metric_names())
    assert all("namespace=~" in query for query in queries)
    assert all(METRIC.search(query) for query in queries)
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(places) == len(set(places)) == len({panel["id"] for panel in dashboard["panels"]})
    assert [one["name"] for one in dashboard["templating"]["list"]] == ["datasource", "namespace"]


def test_promtool_reads_every_query_of_the_dashboard(tmp_path: Path) -> None:
    dashboard = json.loads((DEPLOY / "dashboard.json").read_text(encoding="utf-8"))
    rules = [
        {
            "record": f"panel:p{panel['id']}:{target['refId'].lower()}",
            "expr": target["expr"].replace("$__rate_interval", "5m").replace("$namespace", ".*"),
        }
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]
    file = tmp_path / "dashboard.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "d", "rules": rules}]}))
    run("promtool", "check", "rules", str(file))


def test_every_alert_has_an_entry_in_the_runbook() -> None:
    text = (ROOT / "docs" / "coordination" / "operations.md").read_text(encoding="utf-8")
    headings = {line.lstrip("# ").strip().lower() for line in text.splitlines() if line[:1] == "#"}
    for rule in ALERTS:
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/coordination/operations.md"
        assert anchor == rule["alert"].lower() and anchor in headings


def test_systemd_accepts_the_units() -> None:
    units = sorted(str(path) for path in (DEPLOY / "systemd").iterdir())
    assert len(units) == 2
    run("systemd-analyze", "verify", *units)


def test_the_cron_file_has_one_job_every_five_minutes() -> None:
    lines = (DEPLOY / "cleanup.cron").read_text(encoding="utf-8").splitlines()
    jobs = [line for line in lines if re.match(r"[\d*]", line)]
    (job,) = jobs
    *when, user, command = job.split(None, 6)
    assert when == ["*/5", "*", "*", "*", "*"] and user == "squall"
    assert command.startswith("squall coord cleanup --once") and "%" not in command


def test_the_job_of_kubernetes_runs_every_five_minutes_with_a_named_secret() -> None:
    job = yaml.safe_load((DEPLOY / "cleanup.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    assert job["spec"]["schedule"] == "*/5 * * * *"
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["squall", "coord", "cleanup", "--once"]
    assert container["envFrom"][0]["secretRef"]["name"] == "squall-coordination"


def test_the_metrics_of_the_library_parse_as_prometheus_text() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    from squall.coordination.metrics import CoordinationMetrics

    metrics = CoordinationMetrics.of_registry(namespace="a")
    families = metrics.families
    metrics.counter(families.demotions, "fenced").add()
    metrics.histogram(families.cleanup_s).observe(90.0)
    text = families.registry.exposition()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {"coordination_demotions", "cleanup_duration_seconds"} <= names
