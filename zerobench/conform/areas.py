"""Areas: what the properties are about, in a few rows, for a reader who has ten seconds."""

from __future__ import annotations

#: The properties of each area, in the words of the matrix. A property that is in none has a row of its own.
AREAS = {
    "training steps": (
        "each step follows from the one before",
        "buckets that end with a parameter follow",
        "sums in fp32 follow",
        "one reduction follows",
        "a block that rests",
        "exact steps",
        "building is inert",
        "rare values",
        "nine ranks",
        "seven ranks",  # in results of an earlier release
        "a large model",
        "ranks agree",
        "gradients within the bound of their sum",
        "error against float64",
        "micro steps equal one large batch",
        "exact data",
        "parameters move",
    ),
    "loss scale and overflow": (
        "ranks agree on overflow",
        "static scale changes nothing",
        "dynamic scale equals static",
        "overflow on one rank",
        "dynamic loss scale follows",
    ),
    "readings and evaluations": (
        "reading changes nothing",
        "evaluation changes nothing",
        "reading gradients changes nothing",
        "each step follows between readings",
        "outcomes need no reader",
    ),
    "saved states and loads": (
        "saving changes nothing",
        "random numbers go on after a load",
        "a load that fails changes nothing",
        "a trained engine keeps what a load leaves out",
        "a return to an older state",
        "each step follows over any load",
        "resume changes nothing",
        "each step follows after a load",
        "step counts follow after a load",
        "each step follows after two loads",
        "a dynamic loss scale follows after a load",
        "two leaves keep their bits",
        "exact sums keep their bits",
    ),
    "client code": (
        "the client keeps its state",
        "threads change nothing",
        "modes of the client change nothing",
        "a failure changes nothing",
        "a failed evaluation changes nothing",
        "inputs with gradients change nothing",
        "hooks of parameters hold",
        "hooks that come late hold",
        "calls within a forward",
    ),
    "several engines in one process": (
        "engines share nothing",
        "a group of other ranks",
        "engines train side by side",
        "torch is left as it was",
    ),
    "the canonical trainer's bits": (
        "equals the canonical trainer",
        "an edit reaches every store",
        "evaluation sees the trained values",
        "stages agree",
        "recomputation and dropout agree across stages",
        "settings change nothing",
        "buckets that end with a parameter",
        "lateness changes nothing",
        "late writes of an edit",
        "world size changes nothing",
        "ranks hold the same state",
        "equals ddp bitwise",
        "resume equals the canonical trainer",
        "resume of step counts",
        "load of a part equals the canonical trainer",
        "resume of a dynamic loss scale",
        "resume elsewhere",
        "resume at another world size",
        "buffers at another world size",
        "resume of several blocks",
        "settings are those of the engine that loads",
        "clipping",
        "static loss scale changes nothing",
        "dynamic loss scale",
        "overflow moves nothing",
        "peculiar parameters",
        "padding leaks nowhere",
        "engines take turns",
        "many steps",
    ),
    "known findings are still there": ("known finding is there",),
}

_AREA = {words: area for area, all_words in AREAS.items() for words in all_words}


def area_of(words: str) -> str:
    """The area of a property; the property itself if it has none."""
    return _AREA.get(words, words)
