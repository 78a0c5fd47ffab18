"""Membership on a manager or gate: who takes part, and what is shown of it. Start with
`member_presence`; `members_api` answers `squall members`, and explains silent nodes.
"""
