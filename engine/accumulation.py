"""Accumulation: the micro-steps of a step, counted by the engine or declared by the caller."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class MicroStep:
    """The place of one backward in its step. If ``last`` is False, a later call may still end the step after it."""

    first: bool
    last: bool
    declared: bool
    divided: bool  # the step divides by the number of micro-steps
    repeated: bool = False  # it counts with the backward before it, and their gradients are added


class Accumulation:
    """Decides which backward is the first and the last of a step, and checks the order of the calls.

    There are three ways to end a step:

    - **Counted**, the default: every ``steps``-th micro-step is the boundary. The caller calls ``step()`` after each
      ``backward()``.
    - **Declared**, from the first :meth:`declare` on: the caller's last declaration before a ``backward()`` says if
      that backward is the last one. ``step()`` between boundaries is optional.
    - **By step()**, if the engine does not manage the accumulation: any number of backwards, and each ``step()`` is the
      boundary.

    Args:
        steps: the gradient accumulation steps of the configuration; the mean of a step divides by them.
        managed: False if each ``step()`` is the boundary.
    """

    #: Whether a backward that no step() may follow yet counts with the one before it; if not, it is an error.
    repeats = False

    def __init__(self, steps: int, managed: bool = True) -> None:
        self.steps, self.managed = steps, managed
        self.finished = 0  # micro-steps that a call after their backward has counted
        self._micro_step = 0  # finished micro-steps of the current step
        self._ahead = 0  # micro-steps by which the step after a change is shorter
        self._declared: bool | None = None
        self._pending: MicroStep | None = None  # a backward that no step() has followed
        self._divided = True
        self._dropped = False  # the caller has zeroed the gradients since the last backward

    @property
    def several(self) -> bool:
        """Whether a step may have more than one micro-step, so that sums are kept between them."""
        return self.steps > 1 or not self.managed

    @property
    def divisor(self) -> int:
        """The number of micro-steps by which the sum of the current step is divided."""
        return self.steps if self._divided else 1

    @property
    def at_boundary(self) -> bool:
        """Whether the next ``step()`` applies the optimizer."""
        if not self.managed:
            return True
        return self._micro_step + self._ahead >= self.steps - 1 if self._declared is None else self._declared

    def declare(self, is_boundary: bool | None) -> None:
        """Set whether the next backward is the last one of its step; None counts again.

        Raises:
            RuntimeError: the configuration leaves the boundary to ``step()``.
        """
        if not self.managed:
            raise RuntimeError(
                "managed_gradient_accumulation is false, so each step() is the boundary; do not declare it, or set "
                "managed_gradient_accumulation to true"
            )
        self._declared = is_boundary if is_boundary is None else bool(is_boundary)

    @property
    def begun(self) -> bool:
        """Whether there was a backward since the last boundary."""
        return self._micro_step > 0 or self._pending is not None

    @property
    def waiting(self) -> bool:
        """Whether ``step()`` needs a backward before it."""
        return self._pending is None

    def restart(self, global_steps: int, finished: int | None = None) -> None:
        """Begin a step anew, after this many steps and micro-steps; None: each step had all of them."""
        self._micro_step, self._ahead, self._pending = 0, 0, None
        self.finished = global_steps * self.steps if finished is None else finished

    def recount(self, finished: int) -> None:
        """Count on from this number of micro-steps; the next step ends at a multiple of ``steps``.

        Raises:
            RuntimeError: a step has begun, and would end at another micro-step.
        """
        if not self.begun:
            self._ahead = finished % self.steps
        elif (finished - self.finished) % self.steps:
            raise RuntimeError(
                f"micro_steps was set from {self.finished} to {finished} within a step of {self.steps} micro-steps, "
                "which would end elsewhere; set it after step() of the boundary"
            )
        self.finished = finished

    def change(self, steps: int) -> None:
        """Take another number of micro-steps; the next step ends at a multiple of it, counted from the beginning.

        Raises:
            RuntimeError: a step has begun.
        """
        if self.begun:
            raise RuntimeError("the gradient accumulation steps cannot change within a step; change them after step()")
        self.steps, self._ahead = steps, self.finished % steps

    def begin(self, divided: bool) -> MicroStep:
        """The place of the backward that begins now; ``divided`` as in MicroStep.

        Raises:
            RuntimeError: the last backward needs a ``step()`` first, or the backwards of a step differ in ``divided``.
        """
        if self._pending is not None:
            counted = self._declared is None and not self._pending.declared
            if self._pending.last or (self.managed and counted):
                if self.repeats and self._dropped:
                    return replace(self._pending, first=True, repeated=False, divided=divided)
                if self.repeats and divided == self._divided:
                    return replace(self._pending, first=False, repeated=True)
                raise RuntimeError(
                    "backward() was called twice; call step() after each backward(), also between boundaries, or say "
                    "which backward is the last one by set_gradient_accumulation_boundary()"
                )
            self._advance()
        if self._micro_step and divided != self._divided:
            raise RuntimeError(
                "the backwards of one step differ in scale_wrt_gas, so its mean is not defined; give all the same"
            )
        return MicroStep(self._micro_step == 0, self.managed and self.at_boundary, self._declared is not None, divided)

    def drop(self) -> None:
        """The caller has zeroed the gradients of a whole step: a backward in place of ``step()`` begins the step anew.

        A ``step()`` applies them all the same. Between micro-steps the call has no effect.
        """
        self._dropped = self._pending is not None and self._pending.last

    def done(self, micro_step: MicroStep) -> None:
        """A backward has ended."""
        self._pending, self._divided, self._dropped = micro_step, micro_step.divided, False

    def end(self) -> tuple[bool, bool]:
        """A ``step()`` follows: whether it is the boundary, and whether the last backward was known to be the last.

        Raises:
            RuntimeError: there was no ``backward()`` since the last ``step()``.
        """
        if self._pending is None:
            raise RuntimeError("step() was called without backward(); call backward(loss) once before each step()")
        known = self._pending.last
        boundary = known or self.at_boundary
        self._advance()
        if boundary:
            self._micro_step = self._ahead = 0
        return boundary, known

    def _advance(self) -> None:
        self._micro_step, self._pending = self._micro_step + 1, None
        self.finished += 1
