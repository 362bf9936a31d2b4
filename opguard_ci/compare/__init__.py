"""The comparison of two traces: values, origins, causes, verdicts. Pure. Called, it compares two traces by path."""

from typing import TYPE_CHECKING, Any

from ..callable_package import make_callable

if TYPE_CHECKING:
    from .findings import single_run_findings
    from .verdict import Verdict, compare_traces

__all__ = ["Verdict", "compare_traces", "single_run_findings"]

make_callable(__name__)


def __getattr__(name: str) -> Any:
    """Load the comparison when it is first asked for, so that importing the package costs nothing."""
    if name == "single_run_findings":
        from . import findings

        return findings.single_run_findings
    if name in __all__:
        from . import verdict

        return getattr(verdict, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
