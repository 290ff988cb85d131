"""The charts of pages as records: positions and lengths in percent.

Percentages let a chart fill the page while its text stays readable on a phone.
"""
