"""The charts behind the explorers, one module per chapter.

A chart takes its curves from `formulas`, as expressions for the browser, and its schedules and other computed data
from the chapter's module, on a grid of the controls' values. It types no formula of its own.
"""
