"""`python -m forgetfree` is the command line, as `torchrun -m forgetfree` needs it."""

if __name__ == "__main__":
    from forgetfree.lab.command import main

    main()
