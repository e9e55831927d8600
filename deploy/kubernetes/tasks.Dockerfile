# An image of `rollout` with your own tasks, for jobs inside a cluster. Use its name as the `image` in job.yaml, and
# `datasets: [{path: /tasks}]` in the job file. The last argument is the directory with the tasks.
#
#   docker build -f deploy/kubernetes/tasks.Dockerfile -t registry.example.com/rollout/tasks my-tasks
FROM registry.example.com/rollout/rollout
COPY . /tasks
