"""Real ranks: run a function on N processes, and count what they send to each other.

`run` starts the processes on this machine and brings their results back; `launch` does the same, and steps aside when
`torchrun` has started them already. `count` counts the collectives that a piece of code calls. `device` says where
the tensors of this rank belong.
"""

from .member import RankError, RankTimeout
from .processes import device, launch, run
from .traffic import Traffic, count

__all__ = ["RankError", "RankTimeout", "Traffic", "count", "device", "launch", "run"]
