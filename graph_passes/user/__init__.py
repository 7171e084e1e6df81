"""Passes of the user: functions of their own modules."""
