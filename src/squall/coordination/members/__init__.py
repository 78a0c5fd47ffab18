"""Registration, heartbeats, health and death of members. Start with `boots`: it runs one boot of a
member after another. The leader runs `monitor` and `housekeeping`.
"""
