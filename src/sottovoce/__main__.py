"""`python -m sottovoce`: the command line, where its script is not on the path."""

from sottovoce.cli.main import main

if __name__ == "__main__":
    main()
