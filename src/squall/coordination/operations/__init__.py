"""Operations on a namespace: inspect, watch, diagnose, hand over, rotate secrets. The commands of
`squall coord` call them. Start with `inspect`.
"""
