"""What `squall.run` gives back."""

from __future__ import annotations

from typing import Any

import pytest

from squall.reporting.run_result import Result


def test_the_judgement_of_a_run(make_outcome: Any) -> None:
    result = Result(make_outcome())
    assert (result.passed, result.verdict, result.exit_code) == (False, "VALID", 99)
    assert result.reasons == []
    assert result.thresholds[0].expression == "pay.p(99) < 800ms"
    assert Result(make_outcome(thresholds=[])).passed


def test_a_step_has_counts_and_times_in_seconds(make_outcome: Any) -> None:
    result = Result(make_outcome())
    pay = result.step("pay")
    assert (pay.count, pay.ok, pay.failed, pay.rps) == (500, 470, 30, 50.0)
    assert pay.errors == {
        "503 Service Unavailable": 10,
        "timeout after 5 s": 10,
        "KeyError: 'id'": 10,
    }
    assert (pay.min, pay.max) == (0.08, 5.0)
    assert pay.p(50) == pytest.approx(0.08, rel=0.01)
    login = result.step("login", workflow="Shop")
    assert login.p(99) == pytest.approx(0.12, rel=0.01)
    assert login.service_p(99) == pytest.approx(0.018, rel=0.01)
    assert login.mean == pytest.approx(0.0352)


def test_a_workflow_has_steps_iteration_and_requests(make_outcome: Any) -> None:
    shop = Result(make_outcome()).workflow("Shop")
    assert shop.status == "completed"
    assert [step.name for step in shop.steps] == ["login", "pay"]
    assert shop.iteration.count == 500
    assert shop.requests["sent"] == 1030


def test_checks_and_metrics_by_name(make_outcome: Any) -> None:
    result = Result(make_outcome())
    assert result.checks["has_price"].failed == 10
    assert result.metrics["Shop.orders"].sum == 470
    with pytest.raises(KeyError, match='no metric "order"; known: Shop'):
        result.metrics["order"]


def test_unknown_names_list_the_known_ones(make_outcome: Any) -> None:
    result = Result(make_outcome())
    with pytest.raises(KeyError, match='no step "pya"; known: login, pay'):
        result.step("pya")
    with pytest.raises(KeyError, match='no workflow "Shp"; known: Shop'):
        result.step("pay", workflow="Shp")
    with pytest.raises(KeyError, match='no step "x"'):
        result.workflow("Shop").step("x")


def test_a_name_in_several_workflows_must_be_told_apart(make_mixed: Any) -> None:
    result = Result(make_mixed())
    with pytest.raises(KeyError, match="in several workflows: Browse, Buy"):
        result.step("home")
    assert result.step("home", workflow="Buy").count == 20
    assert [each.status for each in result.workflows] == [
        "completed",
        "completed",
        "failed",
        "skipped",
    ]


def test_document_and_summary_come_with_it(make_outcome: Any) -> None:
    result = Result(make_outcome())
    assert result.document["schema"] == "squall.results/1"
    assert result.summary.startswith("shop.py  Shop  open 50/s")
