"""Bounded jobs beside the live pipeline: rewind, backfill."""
