"""Names that things had once: they still work, with a DeprecationWarning that says the new one.

A renamed name is kept for two minor versions (docs/architecture.md); names in files, such as archives and run folders,
are read for ever.
"""

import warnings
from collections.abc import Mapping
from typing import Any

LEARNER = {
    "parts": "task_modules",
    "guess": "zero_shot",
    "soft_parts": "zero_shot_modules",
    "room": "remaining_capacity",
    "stored": "to_state",
    "revived": "from_state",
}
"""Of learners."""


NETWORK = {"lend": "trainable_view", "lend_again": "view_of", "lend_from": "view_from", "move": "commit"}
"""Of SharedNetwork."""


def by_old_name(thing: Any, name: str, renamed: Mapping[str, str]) -> Any:
    """What `name` is called today; an AttributeError if it was never a name of this."""
    if name not in renamed:
        raise AttributeError(f"{type(thing).__name__!r} object has no attribute {name!r}")
    warnings.warn(f"{name} is called {renamed[name]} now.", DeprecationWarning, stacklevel=3)
    return getattr(thing, renamed[name])
