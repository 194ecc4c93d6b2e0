"""`python -m fedloom`."""

from .cli.main import main

if __name__ == "__main__":
    main()
