"""Entry point of `python -m pvebench`."""

from pvebench.cli.main import main

if __name__ == "__main__":
    main()
