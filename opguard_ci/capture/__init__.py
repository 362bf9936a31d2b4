"""Capture of a run: operators, links, steps and the contract. Called, it captures a block of code
(``opguard_ci.api``).
"""

from ..callable_package import make_callable

make_callable(__name__)
