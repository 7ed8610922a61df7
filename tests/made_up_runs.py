"""Run folders whose events are written by hand."""

import json
from pathlib import Path


def write_events(folder: Path, events: list[dict], *, mode: str = "w") -> Path:
    """Write down events, or with mode "a" more of them, as a run of WSN would."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.toml").write_text('[run]\nexperiment = "til/made_up"\nmethod = "wsn"\n')
    with (folder / "events.jsonl").open(mode) as file:
        file.writelines(json.dumps(each) + "\n" for each in events)
    return folder
