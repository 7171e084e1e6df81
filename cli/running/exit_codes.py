"""The exit code of all verbs besides 0 and those that a verb documents."""

ERROR = 2  # errors that the user can fix; for an interrupt, see `interrupts.exit_code`
