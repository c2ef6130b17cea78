"""Functions: a Python handler per record of a stream, in order per shard."""
