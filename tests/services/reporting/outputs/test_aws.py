"""S3 and Timestream by moto; for Lambda a server that checks the requests of the real client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from squall.reporting.outputs.cloud.aws_lambda import split
from squall.reporting.outputs.registry import KINDS
from squall.reporting.outputs.rows.from_document import RunRows
from squall.reporting.outputs.rows.model import TABLES
from tests.lab.outputs import RUN, step_totals
from tests.services.coordination.lab.places import BUCKET
from tests.services.coordination.lab.s3_servers import seaweedfs_server
from tests.services.reporting.lab.contract import by_table, check_rows, delivered, one_run, shorter
from tests.services.reporting.lab.http_recorder import HTTPAnswer, HTTPRequest, http_server


def in_bucket(endpoint: str) -> dict[str, bytes]:
    import boto3

    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix="load/").get("Contents", [])
    return {
        each["Key"]: client.get_object(Bucket=BUCKET, Key=each["Key"])["Body"].read()
        for each in listed
    }


def check_bucket(endpoint: str) -> None:
    output = f"s3=s3://{BUCKET}/load/,endpoint={endpoint},region=us-east-1"
    for document in (one_run(), shorter(one_run())):
        assert delivered(document, output) == []
    objects = in_bucket(endpoint)
    assert set(objects) == {"load/01J9Z4/results.json", "load/01J9Z4/rows.jsonl"}
    assert json.loads(objects["load/01J9Z4/results.json"]) == shorter(one_run())
    check_rows(
        shorter(one_run()), by_table(objects["load/01J9Z4/rows.jsonl"].decode().splitlines())
    )


def test_s3_has_the_document_and_its_rows(s3_endpoint: str) -> None:
    check_bucket(s3_endpoint)


@pytest.mark.nightly
def test_a_real_s3_server_has_them_too() -> None:
    with seaweedfs_server() as endpoint:
        check_bucket(endpoint)


def test_a_bucket_that_is_not_there_is_one_line(s3_endpoint: str) -> None:
    (line,) = delivered(one_run(), f"s3=s3://nowhere,endpoint={s3_endpoint},region=us-east-1")
    assert line.startswith("-o s3: NoSuchBucket")


def test_timestream_has_each_row_once(s3_endpoint: str) -> None:
    import boto3
    from moto.timestreamwrite.models import timestreamwrite_backends

    client = boto3.client("timestream-write", endpoint_url=s3_endpoint, region_name="eu-west-1")
    client.create_database(DatabaseName="load")
    output = f"timestream=load,endpoint={s3_endpoint},region=eu-west-1"
    for _ in range(2):
        assert delivered(one_run(), output) == []
    tables = timestreamwrite_backends["123456789012"]["eu-west-1"].databases["load"].tables
    assert set(tables) == {f"squall_{table.name}" for table in TABLES}
    stored: dict[str, list[dict[str, Any]]] = {}
    for table in TABLES:
        # As Timestream does it: the highest version of each identity counts.
        newest: dict[str, Any] = {}
        for record in sorted(tables[f"squall_{table.name}"].records, key=lambda r: r["Version"]):
            dimensions = {each["Name"]: each["Value"] for each in record["Dimensions"]}
            newest[f"{record['Time']} {dimensions}"] = {
                "run_id": dimensions["run_id"],
                **{each["Name"]: each["Value"] for each in record["MeasureValues"]},
            }
        if newest:
            stored[table.name] = list(newest.values())
    check_rows(one_run(), stored)


def test_lambda_gets_all_rows_in_events_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squall.reporting.outputs.cloud.aws_lambda._EVENT_BYTES", 20_000)
    requests: list[HTTPRequest] = []

    def answer(request: HTTPRequest) -> HTTPAnswer:
        requests.append(request)
        return HTTPAnswer(body=b"null")

    with http_server(answer) as endpoint:
        output = f"lambda=on-load-test,endpoint={endpoint},region=eu-west-1"
        access = "access_key=AKIA,secret_key=geheim-secret"
        assert delivered(one_run(), f"{output},{access}") == []
    events = [json.loads(request.body) for request in requests]
    assert {request.path for request in requests} == {
        "/2015-03-31/functions/on-load-test/invocations"
    }
    assert all(
        request.headers["x-amz-invocation-type"] == "RequestResponse" for request in requests
    )
    assert all("Credential=AKIA/" in request.headers["authorization"] for request in requests)
    assert all(len(request.body) < 20_200 for request in requests)
    assert [(each["part"], each["of"]) for each in events] == [
        (number, len(events)) for number in range(1, len(events) + 1)
    ]
    assert len(events) > 1
    rows = [json.dumps(row) for each in events for row in each["rows"]]
    check_rows(one_run(), by_table(rows))
    assert sum(RunRows(one_run()).counts.values()) == len(rows)


def test_a_function_that_fails_is_one_line() -> None:
    def answer(_: HTTPRequest) -> HTTPAnswer:
        body = b'{"errorMessage": "no table",\n "errorType": "KeyError"}'
        return HTTPAnswer(body=body, headers={"X-Amz-Function-Error": "Unhandled"})

    with http_server(answer) as endpoint:
        access = "region=eu-west-1,access_key=AKIA,secret_key=geheim-secret"
        (line,) = delivered(one_run(), f"lambda=f,endpoint={endpoint},{access}")
    assert line == (
        '-o lambda: the function failed: {"errorMessage": "no table", "errorType": "KeyError"}'
    )


def test_a_row_that_is_larger_than_an_event_has_one_of_its_own() -> None:
    assert split(["aaaa", "b", "c", "d" * 9, "e"], 6) == [["aaaa"], ["b", "c"], ["d" * 9], ["e"]]


def test_the_sums_in_cloudwatch_are_the_totals(s3_endpoint: str) -> None:
    from moto.cloudwatch.models import cloudwatch_backends

    output = KINDS["cloudwatch"].create(
        f"LoadTests,region=eu-west-1,endpoint={s3_endpoint}", "-o cloudwatch"
    )

    async def feed() -> None:
        await output.made.start(RUN)
        await output.made.end(one_run())

    asyncio.run(feed())
    found: dict[tuple[str, str, str], float] = {}
    for each in cloudwatch_backends["123456789012"]["eu-west-1"].metric_data:
        own = {dimension.name: dimension.value for dimension in each.dimensions}
        if (each.namespace, each.name) == ("LoadTests", "executions"):
            key = (own["workflow"], own["step"], own["result"])
            found[key] = found.get(key, 0.0) + float(each.value)
    assert found == {key: value for key, value in step_totals(one_run()).items() if value}
