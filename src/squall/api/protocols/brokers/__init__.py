"""The author's API of message brokers, one module per protocol, as in the folder above.

`messages` has what they have in common: a message that was received.
"""
