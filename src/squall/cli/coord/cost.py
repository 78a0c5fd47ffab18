"""`squall coord cost`: estimates the requests of an idle group and their price on S3.

It contacts no store; the figures follow from the profile.
"""

from __future__ import annotations

from argparse import Namespace

from squall.api.errors import ConfigError
from squall.cli.coord.command import number_of
from squall.coordination.members.auto_profile import profile_for
from squall.coordination.operations.cost import HOURS_A_MONTH, beats_an_hour, s3_requests
from squall.coordination.options import AUTO
from squall.coordination.timing import timing_of
from squall.reporting.text.standard_streams import print_json, print_or_drop

SCHEMES = ("memory", "sqlite", "redis", "rediss", "unix", "s3")


def show(arguments: Namespace) -> int:
    members = number_of(arguments.members, "--members", 1)
    waits = number_of(arguments.waits, "--waits")
    scheme = (arguments.store or "s3:").partition(":")[0]
    if scheme not in SCHEMES:
        raise ConfigError(f"{scheme}: is not a kind of store; use one of {', '.join(SCHEMES)}")
    profile = arguments.profile or ("s3" if scheme == "s3" else "normal")
    if profile == AUTO:
        profile = "s3" if scheme == "s3" else profile_for(members)
    timing = timing_of(profile)
    if scheme != "s3":
        beats = beats_an_hour(timing, members)
        if arguments.json:
            return print_json({"heartbeats_an_hour": beats, "usd_a_month": None})
        print_or_drop(
            f"{beats:,.0f} heartbeats an hour of {members} members with {profile}; "
            f"{scheme} does not charge for them"
        )
        return 0
    asked = s3_requests(timing, members, waits)
    month = asked.price * HOURS_A_MONTH
    if arguments.json:
        return print_json(
            {
                "writes_an_hour": asked.writes,
                "reads_an_hour": asked.reads,
                "lists_an_hour": asked.lists,
                "usd_a_month": month,
            }
        )
    beats = beats_an_hour(timing, members)
    print_or_drop(
        "\n".join(
            (
                f"{members} members with {profile}, {waits} waits, an hour:",
                f"  PUT   {asked.writes:>10,.0f}   of which heartbeats {beats:,.0f}",
                f"  LIST  {asked.lists:>10,.0f}",
                f"  GET   {asked.reads:>10,.0f}",
                f"a month of 30 days: {month:.2f} USD at AWS list prices; signals, tickets and "
                "records of yours come on top",
            )
        )
    )
    return 0
