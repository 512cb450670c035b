"""`python -m dograph`, and so `torchrun -m dograph`."""

from dograph.cli.main import main

if __name__ == "__main__":
    main()
