"""Membership on a manager or gate: starts it, orders it from workers, answers `squall members`.
Start with `member_presence`; `members_api` answers `squall members` and explains silent nodes.
"""
