"""The version, for those who must not import the SDK."""

__version__ = "0.1.0"
