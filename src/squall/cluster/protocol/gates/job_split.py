"""Splits a submission into the parts that datacenters run, and a change of its load into changes of
the parts.

Pure; the client that splits a job itself and the gates use it alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from squall.cluster.protocol.messages import AdjustJob
from squall.cluster.protocol.submission import Submission, SubmissionPart
from squall.engine.load.datacenter_split import (
    split_manifest,
    split_rate,
    split_users_by_weight,
    whole_weights,
)

PartWeights = Sequence[tuple[str, float]]
"""The datacenters of a job in their order, each with its part of the load."""


def part_of(submission: Submission, index: int, weights: PartWeights) -> Submission:
    """The submission of datacenter `index`. It judges no threshold: that is done once, over all
    datacenters."""
    whole = whole_weights([weight for _, weight in weights])
    manifest, places = split_manifest(submission.manifest, whole)[index]
    return replace(
        submission,
        manifest=manifest,
        options=replace(submission.options, thresholds=()),
        targets=UNSET,
        part=SubmissionPart(
            datacenter=weights[index][0], index=index, weights=whole, workflows=places
        ),
    )


def part_of_change(change: AdjustJob, index: int, weights: PartWeights) -> AdjustJob:
    """The part of datacenter `index` in a change of the load. A pause and a longer timeout hold for
    all of them. The caller sets the job."""
    whole = whole_weights([weight for _, weight in weights])
    rate, vus = change.rate_per_s, change.vus
    return replace(
        change,
        rate_per_s=None if rate is None else split_rate(rate, whole)[index],
        vus=None if vus is None else split_users_by_weight(vus, whole)[index],
    )
