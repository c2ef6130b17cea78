"""Chaos on an archive: real Kafka, real S3, real PostgreSQL, three real nodes, and faults drawn by a seed."""
