"""Audit of datasets that vidprep did not make."""
