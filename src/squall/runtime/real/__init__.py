"""The runtime on a real machine: clocks, sockets, files, child processes. Start with `runtime`;
`node_process` runs a node as a process, and `launcher` starts it again when it is killed."""
