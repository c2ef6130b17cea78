"""holdfast: data pipelines on any number of Spark applications, every record exactly once."""

__version__ = "0.1.0"
