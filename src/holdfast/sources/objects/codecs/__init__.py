"""Codecs of the source `objects`: how bytes become records."""
