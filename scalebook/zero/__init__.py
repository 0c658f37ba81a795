"""ZeRO: what data-parallel ranks keep, what they send, and the three stages by hand.

`states` counts without PyTorch. `buckets`, `adam`, `stages` and `checkpoint` compute with tensors. They are imported
when one of their names is first asked for, so that counting stays quick and needs no PyTorch.
"""

from scalebook.lazy import lazily
from scalebook.zero.kinds import OF_FUNCTIONS, TOGETHER

_NAMES = {
    "states": ["communication_bytes", "model_state_bytes", "passes"],
    "buckets": ["Bucket", "buckets_of", "units_of"],
    "adam": ["MixedAdam"],
    "stages": ["DataParallel", "Zero1", "Zero2", "Zero3"],
    "checkpoint": ["load", "save"],
}

__getattr__, __dir__ = lazily(__name__, _NAMES, OF_FUNCTIONS, TOGETHER)
