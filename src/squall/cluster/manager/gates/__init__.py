"""The manager's side of the handover of jobs by gates (R15): `part_api` answers the gates' orders,
`report_outbox` says what the gates have to be told, `report_driver` sends it.
"""
