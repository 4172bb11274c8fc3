"""From stored runs to verdicts, changes and their sentences.

Updating verdicts takes time: it has its own thread, apart from scrapes and runs.
"""
