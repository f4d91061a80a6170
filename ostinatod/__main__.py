"""`python -m ostinatod` is the `ostinato` command."""

from ostinatod.cli import main

if __name__ == "__main__":
    main()
