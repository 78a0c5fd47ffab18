"""What nodes and clients say about membership on their links: the order to workers, and which
nodes hear which. Datagrams between members belong to `squall.cluster.membership`.
"""
