"""`python -m fedloom.testing.replicas NAME FOLDER [FORM]` writes a replica of a data set."""

from __future__ import annotations

import sys
from pathlib import Path

from ...core.errors import FedloomError
from . import make

if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    try:
        replica = make(sys.argv[1], Path(sys.argv[2]), int((*sys.argv, "0")[3]))
    except FedloomError as error:
        sys.exit(str(error))
    print(f"{replica.folder}: {dict(replica.expected.counts)}")
