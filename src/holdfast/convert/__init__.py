"""Configuration files of other systems, made into files of holdfast."""
