"""Reports about a graph: `print`, `debug`, `ir`, `kernels`, `memory`, `profile`, `explain`.

against_eager  compares a step with eager: `graph.config.check_against_eager(every=N)`
engines        the parts of a graph that another engine runs, and the ops that stayed with gflow's kernels, with reasons
explain        `graph.explain()`: what the compiler did with a graph, and why
frozen         the parts of a frozen graph that are computed once, and the tensors that it reads at each call
kernels        `graph.kernels()`: the generated functions, and their ops
memory         `graph.memory()`: the memory of a compiled graph
noise          eager with random rounding errors in every op: the possible distance between two correct results
notebook       representations of graphs and their reports in notebooks: `_repr_html_`
pages          pages for a browser of graphs and profiles: `explain().html(path)`, `profile().html(path)`
profile        `graph.profile()`: the time of a call by kernel, module and phase
spills         GPU kernels that spill registers, with the cost model's first choice
               or at all
stage          a graph's IR between two passes
step_state     the memory and the Python state around a step, which a check of the step restores
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gflow.call.plans.compilations import Recompiles
from gflow.errors import GraphError
from gflow.report.printing import graph_text
from gflow.tracing.context.debug_settings import debug_settings
from gflow.tracing.context.location import here

if TYPE_CHECKING:
    from gflow.call.plans.plan import Plan

    from .explain import Explanation
    from .kernels import KernelInfo
    from .memory import MemorySummary
    from .profile import Profile


class Inspection:
    """The methods of `Graph` for reports."""

    def __repr__(self) -> str:
        state: Any = self.__dict__.get("_state")
        if state is None:
            return object.__repr__(self)
        latest, config = state.latest, self.config  # type: ignore[attr-defined]
        return graph_text(
            state.name,
            type(self).__name__,
            bool(state.optimizers),
            config.switches(),
            self._roots(),  # type: ignore[attr-defined]
            None if latest is None else latest.trace,
            state.calls,
        )

    def _repr_html_(self) -> str:
        """For notebooks: the listing of `print`, as a collapsible tree of modules."""
        # imported here for start-up time: only notebooks need it
        from .notebook import graph_html

        return graph_html(repr(self))

    def debug(
        self,
        v_level: int = 0,
        *,
        ranks: int | list[int] | None = None,
        max_py_stack_depth: int = 2,
        only_user_py_stack: bool = True,
        op_repr_with_py_stack: bool = False,
    ) -> None:
        """Print the build of the graph on standard output: at the first call, and whenever it compiles again.

        Args:
            v_level: 0 the phases with their times; 1 also modules with their tensors, as they are called; 2 also every
                op with its operands; 3 also the Python lines of each op. -1 turns printing off.
            ranks: the processes that print: None for the first only, -1 for all, a rank or several.
            max_py_stack_depth: the maximal number of Python lines for an op.
            only_user_py_stack: omit lines inside of PyTorch, gflow and the standard library.
            op_repr_with_py_stack: show the Python lines at level 2, too, and in `print(graph)`, as level 3 does.

        `module.to(nn.graph.GraphModule).debug(…)` does the same for one module and its submodules.

        Raises:
            GraphError: an argument is invalid.
        """
        self._checked().debug = debug_settings(  # type: ignore[attr-defined]
            v_level,
            ranks=ranks,
            max_py_stack_depth=max_py_stack_depth,
            only_user_py_stack=only_user_py_stack,
            op_repr_with_py_stack=op_repr_with_py_stack,
        )

    def ir(self, stage: str = "planned", *, generic: bool = False) -> str:
        """The module of the latest compilation, as text that `gflow-opt` reads: in the dialect's assembly
        (docs/assembly.md), with source locations.

        Args:
            stage: "planned": as it runs, with every tensor's place in memory. "traced": before any pass. In between,
                if the graph's pipeline has these passes: "checkpointed", "mixed", "laid-out", "simplified", "fused",
                "scheduled", "rematerialized", "materialized".
            generic: print MLIR's generic form, for tools that do not know gflow.

        Raises:
            GraphError: the graph was not called yet, or its pipeline has no such stage.
        """
        # start-up: only reports need the assembly
        from gflow.dialects.assembly import to_assembly

        plan = self._latest("ir")
        if stage == "planned":
            return plan.compiled.ir if generic else to_assembly(plan.compiled.ir)
        # start-up: only reports need these parts of the compiler
        from gflow.compiler.driver import stages

        # start-up: only reports need these parts of the compiler
        from .stage import ir_at

        try:
            text = ir_at(plan, stage)
        except stages.NoStage as error:
            raise GraphError(f"{here()}: ir() takes a stage: {error}") from None
        return text if generic else to_assembly(text)

    def kernels(self, target: str | None = None) -> list[KernelInfo]:
        """The generated functions of the latest compilation, the most used first.

        Args:
            target: compile for this target instead: "cuda:90" gives the Triton kernels for a GPU of compute capability
                9.0, which need not be present.

        Raises:
            GraphError: the target is unknown.
        """
        # start-up: only reports need these parts of the compiler
        from gflow.compiler.targets import parse_target

        # start-up: only reports need these parts of the compiler
        from .kernels import kernels

        if target is not None:
            try:
                target = str(parse_target(target))
            except ValueError as error:
                raise GraphError(f"{here()}: kernels(): {error}") from None
        return kernels(self._latest("kernels"), target)

    def memory(self) -> MemorySummary:
        """The memory of the latest compilation: arena, arguments, constants and results in bytes, and the largest
        values. `print` it, or write `.html(path)`."""
        # start-up: only reports need these parts of the compiler
        from .memory import memory

        return memory(self._latest("memory"), self._checked().name)  # type: ignore[attr-defined]

    def profile(self, *args: Any, rounds: int = 10, **kwargs: Any) -> Profile:
        """Call the graph `rounds` times with these inputs, and measure each part and each step of a call, in seconds.
        `print` the result, or write `.html(path)`, `.graph_html(path)` or `.chrome_trace(path)`. The calls are real,
        and one more call warms up: a training graph makes `rounds + 1` steps. With gradient accumulation, the kernels
        are those of the last micro-batch.

        Raises:
            GraphError: `rounds` is no number from 1 on.
            GraphInputError: the graph cannot take these inputs.
        """
        # start-up: only reports need these parts of the compiler
        from .profile import profile

        if not isinstance(rounds, int) or rounds < 1:
            raise GraphError(f"{here()}: profile() takes rounds=1 or more; got {rounds!r}")
        return profile(self, args, kwargs, rounds)  # type: ignore[arg-type]

    def explain(self) -> Explanation:
        """What the compiler did and why: fusions, ops that run through PyTorch, recomputation, costs. `print` it, or
        write `.html(path)`."""
        # start-up: only reports need these parts of the compiler
        from .explain import explain

        plan = self._latest("explain")
        return explain(plan, self._checked().name, self.config.switches())  # type: ignore[attr-defined]

    def explain_recompiles(self) -> Recompiles:
        """Each compilation so far (the last 256), in order: when it happened, its duration in seconds, and the
        difference to all earlier programs: an argument, a size, a mode, a Python value, with the old and the new
        value. `print` it, or read the fields of its items (`gflow.call.plans.compilations.Compilation`)."""
        state: Any = self._checked()  # type: ignore[attr-defined]
        return Recompiles(made for made, *_ in state.compilations.found)

    @property
    def timings(self) -> dict[str, float]:
        """Seconds by phase of the latest compilation."""
        return dict(self._latest("timings").compiled.timings)

    def _latest(self, what: str = "") -> Plan:
        state = self._checked()  # type: ignore[attr-defined]
        if state.latest is None:
            raise GraphError(
                f"{here()}: {f'{what}: ' if what else ''}{state.name} is not compiled yet; call it "
                "once with its inputs first."
            )
        return state.latest
