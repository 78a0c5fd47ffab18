"""Commands of a cluster: jobs, nodes, and the disks of managers."""
