"""The exit code of all verbs besides 0 and those that a verb documents."""

ERROR = 2  # errors that the user can fix; `interrupts.exit_code` is that of an interrupt
