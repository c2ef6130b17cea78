"""Proof that what is visible is what was committed: reads store, manifests and files, and changes nothing.

Written anew from what the documents say of names and manifests. It shares no code with the writer but the format
readers, so that a mistake of the writer is not repeated here; an import contract checks that.
"""
