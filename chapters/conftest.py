"""What `pytest --nbval chapters` needs: the chapters re-run as they were executed, and every output compared.

nbval starts one kernel for each notebook, in the notebook's folder, with this process's environment. With
SCALEBOOK_STATIC=1 explorers write their figure as text/html, which nbval compares, and their still as image/png, which
it does not. Stream text is joined before it is compared. A cell tagged `nbval-ignore-output` still runs, and fails when
it raises.
"""

import os

# Set while pytest collects, before the first kernel starts.
os.environ["SCALEBOOK_STATIC"] = "1"
