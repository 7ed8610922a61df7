"""How much longer `import forgetfree` takes than `import torch`: fresh processes in turn, medians."""

import statistics
import subprocess
import sys
import time

ROUNDS = 9


def measure() -> list[dict[str, str]]:
    times: dict[str, list[float]] = {"torch": [], "forgetfree": []}
    for _ in range(ROUNDS):
        for module, seconds in times.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
            seconds.append(time.perf_counter() - started)
    torch, ours = (statistics.median(seconds) for seconds in times.values())
    ratio = statistics.median(b / a for a, b in zip(times["torch"], times["forgetfree"], strict=True))
    return [{"import torch": f"{torch:.2f} s", "import forgetfree": f"{ours:.2f} s", "ratio": f"{ratio:.3f}"}]
