"""Metrics in the text format of Prometheus, version 0.0.4, and their names there."""

from __future__ import annotations

from squall.reporting.outputs.live.metrics import Distribution, Labels, MetricSpec, Points
from squall.stats.histogram import bucket_middle_s, buckets_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds of the buckets in text, which cannot hold a native histogram."""


def full_name(metric: MetricSpec) -> str:
    """`squall_sent_bytes_total`."""
    parts = ("squall", metric.name, metric.unit, "total" if metric.type == "counter" else "")
    return "_".join(filter(None, parts))


def render(points: Points) -> bytes:
    """Renders all metrics. The values of a metric follow its description, as the format demands."""
    texts: dict[str, list[str]] = {}
    for each in points.values:
        name = full_name(each.metric)
        line = f"{name}{_braces(each.labels)} {_number(each.value)}"
        texts.setdefault(name, _head(name, each.metric)).append(line)
    for each in points.distributions:
        name = full_name(each.metric)
        texts.setdefault(name, _head(name, each.metric)).extend(_histogram(name, each))
    lines = [line for found in texts.values() for line in found]
    return ("\n".join(lines) + "\n").encode(errors="replace") if lines else b""


def _head(name: str, metric: MetricSpec) -> list[str]:
    return [f"# HELP {name} {metric.text}", f"# TYPE {name} {metric.type}"]


def _histogram(name: str, each: Distribution) -> list[str]:
    lines: list[str] = []
    below = 0
    buckets = buckets_of(each.data)
    place = 0
    for bound in BOUNDS_S:
        while place < len(buckets) and bucket_middle_s(buckets[place][0]) <= bound:
            below += buckets[place][1]
            place += 1
        lines.append(f"{name}_bucket{_braces((*each.labels, ('le', f'{bound:g}')))} {below}")
    lines.append(f"{name}_bucket{_braces((*each.labels, ('le', '+Inf')))} {each.data.count}")
    lines.append(f"{name}_sum{_braces(each.labels)} {_number(each.data.sum_s)}")
    lines.append(f"{name}_count{_braces(each.labels)} {each.data.count}")
    return lines


def _braces(labels: Labels) -> str:
    return f"{{{','.join(f'{name}={_quoted(value)}' for name, value in labels)}}}"


def _quoted(value: str) -> str:
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
