"""The soak: promises about files, tried a hundred thousand times. `make soak` runs all of it, `make test` a slice.

    archives      mutated archives, raw and signed again: refused in a sentence, or their answers are the certified ones
    folders       mutated run folders and checkpoints: every command ends in a sentence, the other runs are still shown
    kills         processes killed in run, save, analyse and report: the same command goes on to the same result
    answers       old answers asked again after later tasks, removals, saving and loading: the same bits

Everything follows from a number, so that what fails can be made again: `python -m soak archives --only 4711`.
"""
