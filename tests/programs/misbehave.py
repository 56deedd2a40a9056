# Becomes the program that its arguments name, as `exec` in a shell. What it imports is imported by a warmed
# interpreter, so that the rank is forked from there.
import json
import os
import signal
import sys

# Python ignores these.
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
