"""The version of the library, written down once."""

__version__ = "0.1.0"
