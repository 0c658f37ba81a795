"""The parts of a plan's memory and time on every chart of the chapter: names and colours."""

from scalebook.charts.planner.expressions import MEMORY, TIME
from scalebook.charts.zero.parts import GRADIENTS, OPTIMIZER, PARTS, WEIGHTS
from scalebook.colours import COMPARED, IDLE, MESSAGE

# States as in chapter 5, where activations are grey.
STATES = (PARTS[WEIGHTS], PARTS[GRADIENTS], PARTS[OPTIMIZER])
MEMORY_COLOURS = dict(zip(MEMORY, (*STATES, COMPARED[1], IDLE, COMPARED[0]), strict=True))
KINDS = {"work": COMPARED[0], "more work": COMPARED[1], "messages": MESSAGE, "waiting": IDLE}
KIND_OF = dict(zip(TIME, ("work", "more work", "work", "messages", "waiting", "waiting", "messages", "messages",
                          "work"), strict=True))
