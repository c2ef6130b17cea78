"""Proves that the visible files are what was committed: reads store, manifests and files, and changes nothing.

It is written from the documentation of names and manifests and shares no code with the writer except the format
readers, so that it does not repeat a mistake of the writer. An import contract checks that.
"""
