"""The entry point of `python -m sottovoce`, which is the same as the command `sottovoce`."""

from sottovoce.cli.main import main

if __name__ == "__main__":
    main()
