"""How the samples of a data set are dealt out to clients: general ways, and those of particular papers."""

from . import general as general
from . import papers as papers
