"""Programs of a cluster, composed from the parts below: manager, worker, client."""
