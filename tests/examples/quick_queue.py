"""The worker of the task queue, whose jobs are delivered again soon after it has died."""

from examples.task_queue import WorkerSettings

__all__ = ["WorkerSettings"]

WorkerSettings.job_timeout = 1
