"""ANALYSES: what can be computed from a run's archive and benchmark beyond its record; one file each."""

from forgetfree.lab.analyses import codes, convergence, embedding, landscape, reuse, tickets
from forgetfree.lab.analyses.subject import Analysis

ANALYSES: dict[str, Analysis] = {
    "tickets": tickets,
    "codes": codes,
    "reuse": reuse,
    "landscape": landscape,
    "convergence": convergence,
    "embedding": embedding,
}
