"""Performs the commands that `core` decides on, and appends the events to the log. Unlike `core`, this package uses a clock, and
it alone calls the functions of nodes.
"""
