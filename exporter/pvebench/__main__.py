"""`python -m pvebench` is `pvebench`."""

from pvebench.cli.main import main

if __name__ == "__main__":
    main()
