"""`python -m ridgeline`."""

from ridgeline.cli.main import main

if __name__ == "__main__":
    main()
