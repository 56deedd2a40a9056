"""`python -m ranklaunch` is the executable that was installed with this file."""
import os
import sys


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    # That of PREFIX/lib/pythonX.Y/site-packages, and that of `pip install --target`.
    places = [os.path.normpath(os.path.join(here, *up, "bin", "ranklaunch")) for up in ([".."] * 3, [])]
    for place in places:
        if os.access(place, os.X_OK):
            os.execv(place, ["ranklaunch"] + sys.argv[1:])
    sys.exit("ranklaunch: no executable at {}\nhint: pip install --force-reinstall ranklaunch".format(" or ".join(places)))


if __name__ == "__main__":
    main()
