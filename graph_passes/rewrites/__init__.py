"""Rewrites of formulas made of many nodes to one standard operator: one file each."""
