"""Runs beside the live pipeline: rewind, backfill, redrive, and rewind in place (replace)."""
