"""Which member leads which job (`choice`), the requests between members about such jobs
(`rpc`), and the copies of reports that a second member keeps (`report_copies`).
"""
