"""The manager's side of the handover of jobs by gates (R15): `part_api` answers the gates' orders,
`report_outbox` derives the reports that gates still need, `report_driver` sends them.
"""
