"""Holdfast as a later version would be: it writes a newer form of an event into the log of every run that it claims."""

import sys

from holdfast.cli import main
from holdfast.core import events

VERSION = 99
events.RunClaimed.VERSION = VERSION
events.RunClaimed.lowest_version = lambda event: VERSION

sys.argv[0] = "holdfast"
main()
