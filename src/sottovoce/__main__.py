"""`python -m sottovoce`: the command line, where no script is on the path."""

from sottovoce.cli.main import main

if __name__ == "__main__":
    main()
