"""`squall coord signal send` and `squall coord wait`: sends and receives signals from a shell.

Both join as members that never lead, for as long as they take, and sign what they send. `send`
returns when the signal was acknowledged. `wait` returns with the first signal that matches,
including one that came earlier if it waits as the same member.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from typing import Any

from squall.api.errors import SquallError, UsageError
from squall.cli.coord.command import UnknownMember, joined, number_of, seconds_of
from squall.coordination.coordinator import Coordinator
from squall.coordination.errors import SignalDeliveryError, UnknownMemberError
from squall.coordination.records import keys
from squall.coordination.records.schemas import MemberRecord, Signal
from squall.reporting.text.standard_streams import print_json, print_or_drop

STATES = {
    "alive": "it is alive, but nothing in it handles signals of this type",
    "left": "it has left; the signal waits in its inbox for a day",
    "dead": "it is dead; the signal waits in its inbox for a day",
}


class NotAcknowledged(SquallError):
    """The signal is in the inbox, but was not acknowledged."""


async def answered(arguments: Namespace) -> int:
    return await (_wait if arguments.coord_command == "wait" else _send)(arguments)


async def _send(arguments: Namespace) -> int:
    options: dict[str, Any] = {
        "payload": payload_of(arguments.payload),
        "iteration": number_of(arguments.iteration, "--iteration"),
        "correlation_id": arguments.correlation,
        "allow_unknown": arguments.allow_unknown,
    }
    receiver = arguments.receiver
    async with joined(arguments) as member:
        begun = member.parts.clock.now()
        try:
            if arguments.no_ack:
                signal = await member.send_signal(receiver, arguments.type, **options)
                signal_id, acked = signal.signal_id, False
            else:
                ack = await member.send_signal_with_retry(receiver, arguments.type, **options)
                signal_id, acked = ack.signal_id, True
        except UnknownMemberError:
            raise UnknownMember(
                f"no member {receiver} ever registered; --allow-unknown sends it anyway"
            ) from None
        except SignalDeliveryError as error:
            raise NotAcknowledged(f"{error}; {await _state_of(member, receiver)}") from None
        took_s = member.parts.clock.now() - begun
    if arguments.json:
        return print_json(
            {"signal_id": signal_id, "receiver": receiver, "acknowledged": acked, "took_s": took_s}
        )
    how = f"acknowledged by {receiver}" if acked else f"in the inbox of {receiver}"
    print_or_drop(f"{signal_id} {how} after {took_s:.3f} s")
    return 0


async def _state_of(member: Coordinator, receiver: str) -> str:
    (found,) = await member.store.get(keys.member(receiver))
    known = None if found is None else member.parts.codec.read(MemberRecord, found.value)
    if found is not None and known is None:
        return "its registration is signed with another secret"
    return "it never registered" if known is None else STATES[known.status]


def payload_of(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"--payload {text}: {error}; write JSON, such as '{{\"job\": 7}}' or '\"text\"'"
        ) from None


async def _wait(arguments: Namespace) -> int:
    within_s = seconds_of(arguments.within, "--within")
    async with joined(arguments, member_id=arguments.member, max_timeout=within_s) as member:
        if not arguments.member:
            print(f"waiting as {member.member_id}", file=sys.stderr, flush=True)
        signal = await member.block_until_signal(
            correlation_id=arguments.correlation,
            types=arguments.type,
            from_=arguments.senders,
            timeout_s=within_s,
        )
    if arguments.json:
        return print_json(_fields(signal))
    about = f" about {signal.correlation_id}" if signal.correlation_id else ""
    lines = [f"{signal.type} from {signal.sender_id}{about}"]
    if signal.payload is not None:
        lines.append(json.dumps(signal.payload, ensure_ascii=False))
    print_or_drop("\n".join(lines))
    return 0


def _fields(signal: Signal) -> dict[str, Any]:
    """The fields of the signal without its signature."""
    hidden = ("v", "key_id", "signature")
    names = zip(signal.__struct_fields__, signal.__struct_encode_fields__, strict=True)
    return {shown: getattr(signal, name) for name, shown in names if name not in hidden}
