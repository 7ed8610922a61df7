"""What stands in the files of a run folder: the form of every field of record.json, run.toml and events.jsonl.

A run folder may come from anybody. What does not have these forms is refused where it is read, by a sentence that names
the file, so that tables, figures and pages need not ask again.
"""

from typing import Any

from forgetfree.errors import ForgetfreeError
from forgetfree.forms import (
    Form,
    FormError,
    both,
    either,
    fields,
    flag,
    listed,
    mapping,
    number,
    optional,
    plain,
    row,
    text,
    whole,
    word,
)

MOST_TASKS = 100_000
LARGEST = 1e15
"""Of a count or a size; beyond it, numbers do not print."""


def name(value: Any, where: str) -> None:
    """A text that can be written to a file."""
    text(10_000)(value, where)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise FormError(f"{where} is no text that can be written: {error.reason}") from error


FRACTION = number(0, 1)
COUNT = whole(0, 10**15)
AMOUNT = number(0, LARGEST)
VALUE = number(-LARGEST, LARGEST)
ACCURACIES = listed(optional(FRACTION), most=MOST_TASKS)
SETTINGS = mapping(plain, name)

FOOTPRINT = fields(
    {"formula": number(1e-9, LARGEST), "density": FRACTION, "weights": AMOUNT, "mask_bits": AMOUNT},
    dict.fromkeys(("own", "heads", "extras", "training"), AMOUNT)
    | {key: optional(AMOUNT) for key in ("written", "written_without_heads")},
)
ARCHIVE = fields(
    {}, {"bytes": COUNT, "sections": mapping(COUNT), "compared": COUNT, "different": COUNT, "verified": flag}
)  # fmt: skip
TRANSFER = fields(
    {},
    {
        **dict.fromkeys(("random", "noisy_accuracy"), listed(FRACTION)),
        **dict.fromkeys(("guesses", "noisy_guesses"), ACCURACIES),
        "matrix": mapping(listed(ACCURACIES)),
        "images": optional(COUNT),
    },
)
SESSIONS = fields(
    {},
    {
        "tested": listed(whole(1, 10**12)),
        "classes": listed(whole(1, 10**12)),
        "confusion": listed(optional(listed(listed(COUNT)))),
        "mistakes": listed(row(either(COUNT, name), either(COUNT, name), COUNT)),
    },
)
RECORD = fields(
    {
        "tasks": listed(name, 1, MOST_TASKS),
        "accuracy": listed(ACCURACIES, 1, MOST_TASKS),
        "footprints": listed(FOOTPRINT, 1),
        "compared": COUNT,
        "different": COUNT,
        "curves": mapping(listed(mapping(optional(VALUE), name)), name),
        "selections": mapping(name, name),
        "notes": mapping(either(name, plain), name),
        "seconds": fields({"learning": listed(AMOUNT), "testing": listed(AMOUNT)}),
    },
    {"archive": ARCHIVE, "transfer": TRANSFER, "sessions": SESSIONS},
    others=True,
)

RUN: dict[str, Form] = {"experiment": name, "method": name}
SECTIONS = ("overrides", "method", "recipe", "session", "protocol", "versions")
NAMED = fields({"name": name}, others=True)
NAMEABLE = both(SETTINGS, fields({}, {"name": name}, others=True))
PLAN = fields(
    {
        "run": fields(
            RUN, {"scale": name, "seed": whole(), "threads": whole(1, 1 << 16), "plugins": listed(name)}, others=True
        )
    },
    {"benchmark": NAMEABLE, "backbone": NAMEABLE, **dict.fromkeys(SECTIONS, SETTINGS)},
    others=True,
)
FINISHED_PLAN = fields(
    {
        "run": fields({**RUN, "scale": name, "seed": whole(), "threads": whole(1, 1 << 16)}, others=True),
        "benchmark": NAMED,
        "backbone": NAMED,
        "method": fields(
            {}, {"background_noise": FRACTION, "capacity": optional(either(FRACTION, word("none")))}, others=True
        ),
    },
    others=True,
)

NUMBER = optional(number(-LARGEST, LARGEST, finite=False))
COST = fields({"formula": AMOUNT}, {"density": FRACTION}, others=True)
EVENTS: dict[str, Form] = {
    "task": fields(
        {"task": name, "position": whole(0, MOST_TASKS), "tasks": whole(1, MOST_TASKS)}, others=True
    ),
    "epoch": fields(
        {"epoch": whole(1, 10**9), "done": FRACTION},
        dict.fromkeys(("loss", "valid_loss", "valid_accuracy", "lr"), NUMBER),
        others=True,
    ),
    "tested": fields(
        {"accuracy": ACCURACIES}, {"overall": optional(FRACTION), "footprint": optional(COST)}, others=True
    ),
}  # fmt: skip
EVENT = fields({"time": number(0, 1e11), "event": name}, others=True)


def check_record(content: Any) -> None:
    """Refuse a record with a field that cannot be, or with two that contradict each other."""
    RECORD(content, "the record")
    tasks, sessions, transfer = content["tasks"], content.get("sessions", {}), content.get("transfer", {})
    count = len(tasks)
    learning, testing = (len(content["seconds"][kind]) for kind in ("learning", "testing"))
    matrices = transfer.get("matrix", {}).values()
    per_task = [transfer[key] for key in ("random", "guesses", "noisy_guesses", "noisy_accuracy") if key in transfer]
    faults = {
        "a task is named twice": len(set(tasks)) != count,
        "accuracy is no matrix of a row and a column for each task": [*map(len, content["accuracy"])]
        != [count] * count,
        "some tasks were not tested at the end": None in content["accuracy"][-1],
        "a curve is of no task": not {*content["curves"]} <= {*tasks},
        "footprints are not of the tasks, or of the end only": len(content["footprints"]) not in range(1, count + 1),
        "seconds are not those of the tasks": learning != count or testing > count,
        "transfer is not of the tasks": (bool(transfer) and not {"random", "guesses"} <= {*transfer})
        or any(len(each) != count for each in per_task)
        or any([*map(len, each)] != [count] * count for each in matrices),
        "sessions are not those of the tasks": bool(sessions)
        and any(len(sessions.get(key, ())) != count for key in ("tested", "classes")),
    }
    for fault, there in faults.items():
        if there:
            raise FormError(fault)


def is_event(event: Any) -> bool:
    """Whether a line of events.jsonl is an event that can be told."""
    try:
        EVENT(event, "an event")
        EVENTS.get(event["event"], plain)(event, "an event")
    except ForgetfreeError:
        return False
    return True
