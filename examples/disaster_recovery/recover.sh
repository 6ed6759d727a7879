#!/usr/bin/env bash
# Pulls the scheduler up again; with a number, the worker with that id.
EXEC_PATH=$(pwd)
HERE=$(dirname "${BASH_SOURCE[0]}")
export DATA_PATH=${EXEC_PATH}/MNIST_Data/train/

export MS_ENABLE_RECOVERY=1                # The same as in run.sh
export MS_RECOVERY_PATH=./recovery/
export MS_WORKER_NUM=8
export MS_SCHED_HOST=127.0.0.1
export MS_SCHED_PORT=${MS_SCHED_PORT:-8118}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

if [ $# -eq 0 ]; then
    export MS_ROLE=MS_SCHED
    export MS_NODE_ID=sched
    python "${HERE}/train.py" >> device/scheduler.log 2>&1 &
else
    export MS_ROLE=MS_WORKER
    export MS_NODE_ID=$1
    python "${HERE}/train.py" "${@:2}" >> "device/worker_$1.log" 2>&1 &
fi
