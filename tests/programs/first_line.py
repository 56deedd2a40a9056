# Ranks that import torch and write down when they could say their first word, in seconds, into the file RANK of the
# folder that their argument names.
import os
import sys
import time

import torch

with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    file.write("%f %s" % (time.time(), torch.__version__))
